// preflight: is every node and link fit for a run, and what will the run take?

#include <algorithm>
#include <filesystem>
#include <iostream>

#include "apps/shared/device.h"
#include "apps/shared/program.h"
#include "apps/shared/run_plan.h"
#include "apps/shared/training_options.h"
#include "apps/shared/version.h"
#include "common/base/error.h"
#include "common/base/log.h"
#include "common/comm/nccl_fault.h"
#include "common/comm/nccl_group.h"
#include "common/comm/session.h"
#include "common/data/batch_stream.h"
#include "common/hdf5/hdf5.h"
#include "common/telemetry/preflight.h"
#include "common/telemetry/preflight_probes.h"
#include "common/train/memory_need.h"
#include "common/train/trial.h"

namespace {

using namespace tandem;
namespace reading = telemetry::reading;

struct Options {
  bool quick = false;
  double loadSeconds = 10;
  std::int64_t trialSteps = 20;
  double lockedClock = 0;
  train::TrainOptions declared;
  app::TrainingTexts texts;
};

void declare(CLI::App& app, Options& options) {
  app.add_flag("--quick", options.quick, "2 s of load instead of 10, and smaller messages");
  app.add_option("--load-seconds", options.loadSeconds, "How long matrix products are held")
      ->check(CLI::Range(0.01, 3600.0))
      ->type_name("SECONDS");
  app.add_option("--trial-steps", options.trialSteps, "Steps of the run to try; 0: none")
      ->check(CLI::Range(0, 100000))
      ->type_name("STEPS");
  app.add_option("--locked-clock", options.lockedClock,
                 "Clock that the devices are set to (nvidia-smi -lgc): limits are lowered by it; 0: none")
      ->type_name("MHZ");
  app::declareTrainingOptions(app, options.declared, options.texts);
  for (const char* name : {"--model", "--batch-tokens", "--sequence-length"}) app.get_option(name)->required(false);
}

bool isFirstOnHost(comm::Communicator& world) {
  const std::vector<std::string> hosts = comm::allGatherTexts(world, base::identity().host);
  return std::find(hosts.begin(), hosts.begin() + world.rank(), base::identity().host) == hosts.begin() + world.rank();
}

// Not one that hangs instead of failing, nor several that do not understand each other: that is for the table to tell.
bool isNcclUsable(comm::Communicator& world) {
  const std::string version = comm::ncclVersion();
  const auto fault = comm::ncclFault(version, telemetry::HostSensors().architecture());
  const std::vector<std::string> usable = comm::allGatherTexts(world, fault && fault->deadlocks ? "" : version);
  return std::ranges::all_of(usable, [&](const std::string& own) { return !own.empty() && own == usable.front(); });
}

void describeRank(comm::Communicator& world, const app::ChosenDevice& chosen, telemetry::HostSensors& host,
                  telemetry::RankFacts& facts) {
  facts.rank = world.rank();
  facts.host = base::identity().host;
  facts.processor = chosen.backend->description();
  facts.versions = {{"Tandem", app::version()},       {"MPI", comm::libraryVersion()},
                    {"HDF5", hdf5::libraryVersion()}, {"NCCL", comm::ncclVersion()},
                    {"CUDA", kernels::cudaVersion()}, {"operating system", host.operatingSystem()},
                    {"kernel", host.kernel()},        {"architecture", host.architecture()}};
  if (const std::string name = host.processorName(); !name.empty()) facts.versions["processor"] = name;
  facts.interfaces = host.networkInterfaces();
  const telemetry::HostReading now = host.read();
  facts.set(reading::available, now.availableBytes);
  facts.set(reading::memoryTotal, now.totalBytes);
  facts.set(reading::swap, now.swapTotalBytes);
}

// Opens the device's own sensors, and says what device it is.
std::unique_ptr<telemetry::DeviceSensors> describeDevice(const app::ChosenDevice& chosen,
                                                         const std::vector<telemetry::DeviceLimits>& limits,
                                                         telemetry::RankFacts& facts) {
  if (chosen.backend->isHostMemory()) return nullptr;
  telemetry::OpenedSensors opened = telemetry::openNvml(chosen.backend->deviceIdentifier());
  facts.device = chosen.backend->description();
  facts.whyNoSensors = opened.whyNot;
  if (opened.sensors) {
    facts.device = opened.sensors->identity().name;
    facts.versions["driver"] = opened.sensors->identity().driver;
    facts.set(reading::deviceFree, opened.sensors->read().freeBytes);
  }
  const telemetry::DeviceLimits* own = telemetry::limitsOf(limits, facts.device);
  facts.sharesMemory = own != nullptr && own->hasUnifiedMemory;
  return std::move(opened.sensors);
}

void hashFiles(const train::TrainOptions* run, telemetry::RankFacts& facts) {
  const std::filesystem::path self = std::filesystem::read_symlink("/proc/self/exe");
  facts.hashes["preflight (" + facts.versions["architecture"] + ")"] = telemetry::hashOfContent(self);
  const std::filesystem::path trainer = self.parent_path() / "pretrain";
  if (std::filesystem::exists(trainer)) {
    facts.hashes["pretrain (" + facts.versions["architecture"] + ")"] = telemetry::hashOfContent(trainer);
  }
  if (run == nullptr) return;
  std::vector<std::filesystem::path> files{run->model};
  for (const std::string& text : run->data) files.push_back(data::parseWeightedPath(text).path);
  for (const std::string& text : run->validation) files.emplace_back(text);
  for (const std::filesystem::path& file : files) facts.hashes[file.string()] = telemetry::hashOfContent(file);
}

void planRun(const train::TrainOptions& run, int ranks, telemetry::RankFacts& facts) {
  const train::MemoryNeed need = train::memoryNeed(run, ranks);
  facts.set(reading::planned, static_cast<double>(need.computing));
  facts.set(reading::plannedHost, static_cast<double>(need.hostStates + need.checkpointCopy));
  const std::int64_t kept = run.keep > 0 ? run.keep : run.steps / std::max<std::int64_t>(1, run.checkpointEvery);
  facts.set(reading::diskNeeded, static_cast<double>(need.checkpoint * (kept + 1)));
}

std::vector<telemetry::RankFacts> gatherFacts(comm::Communicator& world, const telemetry::RankFacts& own) {
  std::vector<telemetry::RankFacts> all;
  for (const std::string& text : comm::allGatherTexts(world, telemetry::toJson(own))) {
    all.push_back(telemetry::parseRankFacts(text));
  }
  return all;
}

std::vector<telemetry::DeviceLimits> knownDevices() {
  const std::filesystem::path folder = telemetry::deviceLimitsFolder();
  if (!folder.empty()) return telemetry::readDeviceLimits(folder);
  TANDEM_LOG(warning) << "data/devices was not found beside this program: devices are judged by comparison only; "
                         "TANDEM_DEVICES names the folder";
  return {};
}

// Of one rank, by what it is asked to try.
class Preflight {
 public:
  Preflight(comm::Communicator& world, const app::CommonOptions& common, const Options& options)
      : world_(world), common_(common), options_(options) {
    comm::agreeOn(world_, [&] {
      limits_ = knownDevices();
      if (!options_.declared.model.empty()) {
        run_ = app::completeTrainingOptions(common_, options_.declared, options_.texts);
      }
    });
  }

  int run() {
    app::DeviceOptions device = options_.texts.device;
    if (!device.allowKnownBadNccl && !isNcclUsable(world_)) device.exchange = "mpi";
    chosen_ = app::chooseDevice(world_, common_, device);
    if (run_) app::chooseSplit(world_, &chosen_, options_.texts, *run_);
    telemetry::RankFacts facts;
    measure(facts);
    evidence_.ranks = gatherFacts(world_, facts);
    if (options_.lockedClock > 0) evidence_.lockedClockMegahertz = options_.lockedClock;
    if (run_ && options_.trialSteps > 0) tryRun(facts);
    const std::vector<telemetry::Check> checks = telemetry::judge(evidence_, limits_);
    if (common_.json) {
      app::printJson(telemetry::preflightJson(checks, evidence_));
    } else if (world_.rank() == 0) {
      std::cout << telemetry::preflightTable(checks, evidence_) << std::flush;
    }
    return telemetry::isGo(checks) ? 0 : telemetry::exitNoGo;
  }

 private:
  void measure(telemetry::RankFacts& facts) {
    const bool first = isFirstOnHost(world_);
    const double seconds = options_.quick ? std::min(2.0, options_.loadSeconds) : options_.loadSeconds;
    telemetry::HostSensors host;
    comm::agreeOn(world_, [&] {
      describeRank(world_, chosen_, host, facts);
      auto sensors = describeDevice(chosen_, limits_, facts);
      if (run_) planRun(*run_, world_.size(), facts);
      if (first) hashFiles(run_ ? &*run_ : nullptr, facts);
      if (first) measureFolder(facts);
      const auto interval = std::chrono::milliseconds(std::clamp(static_cast<int>(1000 * seconds / 50), 20, 500));
      sampler_ = std::make_unique<telemetry::HealthSampler>(std::move(sensors), host, interval);
    });
    if (world_.size() > 1) facts.set(reading::clockSkew, telemetry::measureClockSkew(world_));
    TANDEM_LOG(info) << "holding the load for " << seconds << " s on " << world_.size() << " ranks";
    telemetry::measureCompute(world_, *chosen_.backend, *chosen_.stream, *sampler_, seconds, facts);
    if (const std::string path = chosen_.backend->attentionReport(); !path.empty()) {
      // Without its rate, which differs from rank to rank.
      facts.versions["attention"] = path.substr(0, path.find(" at "));
    }
    TANDEM_LOG(info) << "measuring the links";
    const bool onDevice = chosen_.exchange != nullptr;
    const std::int64_t gather = (options_.quick ? 64 : onDevice ? 1024 : 256) * mebibyte;
    evidence_.links = telemetry::measureLinks(world_, chosen_.exchange.get(), *chosen_.backend, *chosen_.stream,
                                              (options_.quick ? 16 : 64) * mebibyte, gather);
  }

  void measureFolder(telemetry::RankFacts& facts) const {
    const std::filesystem::path folder = run_ ? run_->output : std::filesystem::current_path();
    const telemetry::DiskFacts disk = telemetry::measureDisk(folder, (options_.quick ? 64 : 512) * mebibyte);
    facts.set(reading::diskFree, static_cast<double>(disk.freeBytes));
    facts.set(reading::diskRate, disk.bytesPerSecond);
  }

  // Not on nodes that are unfit already: a unit without memory to spare would stand still.
  void tryRun(const telemetry::RankFacts& facts) {
    if (!telemetry::isGo(telemetry::judge(evidence_, limits_))) {
      TANDEM_LOG(warning) << "the run is not tried: it is a no-go already";
      return;
    }
    TANDEM_LOG(info) << "trying " << std::min(options_.trialSteps, run_->steps) << " steps of the run";
    train::TrialOptions trial{.steps = options_.trialSteps};
    const telemetry::DeviceLimits* own = telemetry::limitsOf(limits_, facts.device);
    const std::string storage = run_->storage == base::DType::f32    ? "fp32"
                                : run_->storage == base::DType::bf16 ? "bf16"
                                                                     : "fp16";
    if (own != nullptr && own->peakFlops.contains(storage)) {
      trial.peakFlops = own->peakFlops.at(storage);
      trial.peakSource = own->peakSource;
    }
    evidence_.trial = train::runTrial(world_, chosen_.device(), *run_, trial, *sampler_);
  }

  static constexpr std::int64_t mebibyte = std::int64_t{1} << 20;

  comm::Communicator& world_;
  const app::CommonOptions& common_;
  const Options& options_;
  std::vector<telemetry::DeviceLimits> limits_;
  std::optional<train::TrainOptions> run_;
  app::ChosenDevice chosen_;
  std::unique_ptr<telemetry::HealthSampler> sampler_;
  telemetry::Evidence evidence_;
};

}  // namespace

int main(int argc, char** argv) {
  Options options;
  return app::runProgram(argc, argv,
                         {.name = "preflight",
                          .purpose = "Says whether every node and link is fit for a run, and what the run will take.",
                          .commands = {{.declare = [&](CLI::App& app) { declare(app, options); },
                                        .run =
                                            [&](comm::Communicator& world, const app::CommonOptions& common) {
                                              return Preflight(world, common, options).run();
                                            }}}});
}
