#include "common/comm/session.h"

#include <mpi.h>
#include <unistd.h>
#include <xxhash.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <thread>
#include <vector>

#include "common/base/log.h"
#include "common/base/signals.h"
#include "common/comm/detail/mpi_communicator.h"
#include "common/comm/detail/progress.h"
#include "common/comm/detail/watchdog.h"

namespace tandem::comm {
namespace {

using detail::checkMpi;

// How the body ended on a rank. Sent between the ranks as plain bytes.
struct Ending {
  std::int64_t failed = 0;
  std::int64_t exitCode = 0;
  std::uint64_t cause = 0;  // a hash of the error's message: alike on ranks that failed for the same reason
};

void flushAll() {
  std::clog.flush();
  std::cout.flush();
  std::fflush(nullptr);
}

// Ends every process of the job, and this one in any case.
[[noreturn]] void abortJob(int code) {
  flushAll();
  std::thread([code] {
    std::this_thread::sleep_for(std::chrono::seconds(10));
    _exit(code);
  }).detach();
  MPI_Abort(MPI_COMM_WORLD, code);
  _exit(code);
}

// Open MPI starts a daemon for a process that nobody has launched, and tries every network for it: most of a second of
// each start, for nothing that one rank needs. So such a process goes without, unless its caller has decided; its own
// children see nothing of it. Other MPI libraries have no such settings.
class SettingsOfOneProcess {
 public:
  SettingsOfOneProcess() {
    constexpr const char* launchers[] = {"OMPI_COMM_WORLD_SIZE", "PMIX_RANK", "PMI_RANK", "PMI_SIZE", "SLURM_PROCID"};
    if (std::ranges::any_of(launchers, [](const char* name) { return std::getenv(name) != nullptr; })) return;
    set("OMPI_MCA_ess_singleton_isolated", "1");
    set("OMPI_MCA_pml", "ob1");
    set("OMPI_MCA_btl", "self");
  }
  ~SettingsOfOneProcess() {
    for (const char* name : set_) ::unsetenv(name);
  }
  SettingsOfOneProcess(const SettingsOfOneProcess&) = delete;
  SettingsOfOneProcess& operator=(const SettingsOfOneProcess&) = delete;

 private:
  void set(const char* name, const char* value) {
    if (std::getenv(name) != nullptr) return;
    ::setenv(name, value, 0);
    set_.push_back(name);
  }

  std::vector<const char*> set_;
};

base::Identity startMpi(int argc, char** argv) {
  int granted = MPI_THREAD_SINGLE;
  {
    const SettingsOfOneProcess settings;
    checkMpi(MPI_Init_thread(&argc, &argv, MPI_THREAD_SERIALIZED, &granted), "MPI_Init_thread");
  }
  base::Identity self;
  checkMpi(MPI_Comm_rank(MPI_COMM_WORLD, &self.rank), "MPI_Comm_rank");
  checkMpi(MPI_Comm_size(MPI_COMM_WORLD, &self.ranks), "MPI_Comm_size");
  char host[256] = "unknown host";
  gethostname(host, sizeof host - 1);
  self.host = host;
  base::setIdentity(self);
  if (granted < MPI_THREAD_SERIALIZED) {
    throw base::Error(base::ErrorKind::communication,
                      "the MPI library grants no communication from several threads; use "
                      "one that was built with thread support");
  }
  return self;
}

// Every rank's ending, in the order of the ranks; empty when a rank that failed alone waited in vain for the others.
std::vector<Ending> exchange(const Ending& mine, bool othersComeToo, MPI_Comm group, int ranks) {
  std::vector<Ending> all(static_cast<std::size_t>(ranks));
  MPI_Request request = MPI_REQUEST_NULL;
  checkMpi(MPI_Iallgather(&mine, sizeof mine, MPI_BYTE, all.data(), sizeof mine, MPI_BYTE, group, &request),
           "MPI_Iallgather");
  constexpr std::chrono::seconds patience(1);  // ranks that fail for the same reason do so at about the same time
  const auto start = std::chrono::steady_clock::now();
  for (int done = 0;;) {
    checkMpi(MPI_Test(&request, &done, MPI_STATUS_IGNORE), "MPI_Test");
    if (done) return all;
    if (!othersComeToo && std::chrono::steady_clock::now() - start > patience) return {};
    std::this_thread::sleep_for(std::chrono::microseconds(200));
  }
}

void report(const base::Error& error) { TANDEM_LOG_ALL(error) << error.what(); }

// The exit code of all ranks: of the lowest that failed, otherwise the largest.
int commonCode(const std::vector<Ending>& all) {
  std::int64_t largest = 0;
  for (const Ending& each : all) {
    if (each.failed) return static_cast<int>(each.exitCode);
    largest = std::max(largest, each.exitCode);
  }
  return static_cast<int>(largest);
}

bool isFirstOfItsCause(const std::vector<Ending>& all, int rank) {
  for (int lower = 0; lower < rank; ++lower) {
    const Ending& other = all[static_cast<std::size_t>(lower)];
    if (other.failed && other.cause == all[static_cast<std::size_t>(rank)].cause) return false;
  }
  return true;
}

int endTogether(int code, const std::optional<base::Error>& error, MPI_Comm group) {
  const base::Identity& self = base::identity();
  Ending mine{.failed = error.has_value(), .exitCode = error ? base::exitCode(error->kind()) : code};
  if (error) mine.cause = XXH3_64bits(error->message().data(), error->message().size());
  const bool othersComeToo = !error || error->onEveryRank() || self.ranks == 1;
  const std::vector<Ending> all = exchange(mine, othersComeToo, group, self.ranks);
  if (all.empty()) {
    report(*error);
    abortJob(static_cast<int>(mine.exitCode));
  }
  if (error && isFirstOfItsCause(all, self.rank)) report(*error);
  flushAll();
  const int result = commonCode(all);
  if (std::any_of(all.begin(), all.end(), [](const Ending& each) { return each.failed; })) {
    MPI_Barrier(group);  // all have reported
    _exit(result);
  }
  MPI_Comm_free(&group);
  return result;
}

}  // namespace

int Session::run(int argc, char** argv, const std::function<int(Communicator& world)>& body) {
  base::receiveSignalsApart();
  base::startLogging(base::LogLevel::info);
  MPI_Comm endings = MPI_COMM_NULL;
  std::optional<base::Error> error;
  int code = 0;
  try {
    startMpi(argc, argv);
    std::unique_ptr<Communicator> world = detail::makeMpiWorld();
    checkMpi(MPI_Comm_dup(MPI_COMM_WORLD, &endings), "MPI_Comm_dup");
    const detail::Watchdog watchdog([] { abortJob(1); });
    const detail::ProgressThread progress;
    code = body(*world);
  } catch (...) {
    error = asError(std::current_exception());
  }
  if (endings == MPI_COMM_NULL) {  // MPI did not come up
    report(*error);
    abortJob(base::exitCode(error->kind()));
  }
  try {
    code = endTogether(code, error, endings);
    checkMpi(MPI_Finalize(), "MPI_Finalize");
  } catch (const base::Error& failure) {
    report(failure);
    abortJob(base::exitCode(failure.kind()));
  }
  return code;
}

std::string libraryVersion() {
  char text[MPI_MAX_LIBRARY_VERSION_STRING] = "";
  int length = 0;
  MPI_Get_library_version(text, &length);
  std::string version(text, static_cast<std::size_t>(length));  // "Open MPI v4.1.4, package: Debian OpenMPI, ..."
  version = version.substr(0, version.find(','));
  const std::size_t v = version.find(" v");
  if (v != std::string::npos) version.erase(v + 1, 1);
  return version;
}

}  // namespace tandem::comm
