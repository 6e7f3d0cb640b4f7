#include "common/optim/optimizer.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "common/base/random.h"

namespace tandem::optim {
namespace {

using kernels::ConstTensorView;
using kernels::TensorView;

TensorView flat(float* data, std::int64_t count) { return TensorView(data, base::DType::f32, {count}); }

// Keys the random bits of a step apart from those of other steps and of all else that the seed is for.
std::uint64_t roundingKey(std::uint64_t seed, std::int64_t step) {
  static const std::uint64_t purpose = base::purposeOf("stochastic rounding of moments");
  const auto words = base::philox(seed, static_cast<std::uint64_t>(step), purpose);
  return (std::uint64_t{words[1]} << 32) | words[0];
}

}  // namespace

Method parseMethod(const std::string& text) {
  if (text == "adamw") return Method::adamw;
  if (text == "muon") return Method::muon;
  throw base::Error(base::ErrorKind::usage, "optimizer '" + text + "' is neither adamw nor muon");
}

base::DType parseStates(const std::string& text) {
  if (text == "fp32") return base::DType::f32;
  if (text == "bf16") return base::DType::bf16;
  throw base::Error(base::ErrorKind::usage, "--optimizer-states is '" + text + "'; it can be fp32 or bf16");
}

bool parseStatesOnHost(const std::string& text) {
  if (text == "device") return false;
  if (text == "host") return true;
  throw base::Error(base::ErrorKind::usage, "--optimizer-memory is '" + text + "'; it can be device or host");
}

Optimizer::Optimizer(const OptimizerOptions& options, std::vector<ParameterTraits> traits,
                     runtime::ParameterStore& parameters, comm::Communicator& communicator,
                     comm::Communicator& exchange, kernels::Backend& backend, kernels::Stream& stream)
    : options_(options),
      traits_(std::move(traits)),
      parameters_(parameters),
      communicator_(communicator),
      exchange_(exchange),
      backend_(backend),
      stream_(stream),
      sharer_(parameters.layout().ranks() == 1 ? 0 : exchange.rank()),
      runs_(parameters.layout().ownedRuns(sharer_)) {
  TANDEM_ASSERT(parameters.layout().ranks() == 1 || parameters.layout().ranks() == exchange.size(),
                "states are shared out over all replicas or none");
  // Where every replica has all, the first speaks for them.
  if (sharer_ == exchange.rank()) counted_ = parameters.layout().countedRuns(sharer_);
  TANDEM_ASSERT(traits_.size() == parameters.layout().parameters().size(), "traits for every parameter");
  const bool usesMuon = std::any_of(traits_.begin(), traits_.end(), [](const auto& each) { return each.usesMuon; });
  if (usesMuon && options.states != base::DType::f32) {  // on every rank, whatever it owns
    throw base::Error(base::ErrorKind::usage,
                      "--optimizer-states bf16 is for --optimizer adamw: Muon's momentum stays in fp32");
  }
  const std::int64_t shard = parameters.layout().shardCount(sharer_);
  using Place = runtime::DeviceMemory::Place;
  auto zeros = [&](std::int64_t count, Place place, base::DType type = base::DType::f32) {
    auto memory = std::make_unique<runtime::DeviceMemory>(backend, count * base::byteSize(type), place);
    backend.run(kernels::Fill{.target = TensorView(memory->data(), type, {count}), .value = 0}, stream);
    return memory;
  };
  const Place place = options.statesOnHost ? Place::host : Place::device;
  firstMoment_ = zeros(shard, place, options.states);
  secondMoment_ = zeros(shard, place, options.states);
  if (parameters.storage() != base::DType::f32) master_ = zeros(shard, place);
  std::int64_t largest = 0;
  for (const sharding::OwnedRun& run : runs_) {
    if (traits_[static_cast<std::size_t>(run.parameter)].usesMuon) largest = std::max(largest, run.count);
  }
  if (largest > 0) muonScratch_ = zeros(2 * largest, Place::device);
  squares_ = std::make_unique<runtime::DeviceMemory>(backend, std::ssize(counted_) * base::byteSize(base::DType::f64));
  stream.synchronize();  // a copy into memory of the host does not wait for kernels that write there
}

double Optimizer::gradientNorm() {
  squaredNorms_.resize(counted_.size());
  for (std::size_t i = 0; i < counted_.size(); ++i) {
    const TensorView result(squares_->data() + i * sizeof(double), base::DType::f64, {1});
    backend_.run(
        kernels::SquaredNorm{.input = flat(parameters_.gradientOf(counted_[i]), counted_[i].count), .result = result},
        stream_);
  }
  backend_.copyToHost(squaredNorms_.data(), squares_->data(),
                      std::ssize(squaredNorms_) * base::byteSize(base::DType::f64), stream_);
  stream_.synchronize();
  const double sum = std::accumulate(squaredNorms_.begin(), squaredNorms_.end(), 0.0);
  return std::sqrt(comm::allReduceScalar(communicator_, sum));
}

float* Optimizer::master(const sharding::OwnedRun& run) const {
  if (master_) return reinterpret_cast<float*>(master_->data()) + run.shardOffset;
  return static_cast<float*>(parameters_.weightOf(run));
}

TensorView Optimizer::lowWeight(const sharding::OwnedRun& run) const {
  if (!master_) return {};
  return TensorView(parameters_.weightOf(run), parameters_.storage(), {run.count});
}

// Where moments are rounded: a run cut where it skips elements of the logical parameter, each piece with its first
// one's place in that: ranks that hold the same elements, at other places of what they hold, then round them alike.
// Columns, which no two ranks share, keep the places that they have here.
std::vector<std::pair<sharding::OwnedRun, std::int64_t>> Optimizer::piecesOf(const sharding::OwnedRun& run) const {
  const sharding::Part& part = parameters_.layout().parameters()[static_cast<std::size_t>(run.parameter)].part;
  const bool areRounded = options_.states != base::DType::f32;
  if (!areRounded || part.axis() != 0) return {{run, run.begin}};
  std::vector<std::pair<sharding::OwnedRun, std::int64_t>> pieces;
  for (const sharding::Strip& strip : part.strips(run.begin, run.count)) {
    sharding::OwnedRun piece = run;
    const std::int64_t skipped = strip.partBegin - run.begin;
    piece.begin += skipped;
    piece.flatOffset += skipped;
    piece.shardOffset += skipped;
    piece.count = strip.count;
    pieces.emplace_back(piece, strip.wholeBegin);
  }
  return pieces;
}

void Optimizer::update(double learningRate, double gradientScale, std::int64_t step) {
  for (const sharding::OwnedRun& run : runs_) {
    const ParameterTraits& traits = traits_[static_cast<std::size_t>(run.parameter)];
    if (traits.usesMuon) {
      updateMuon(run, traits, learningRate, gradientScale);
    } else {
      for (const auto& [piece, firstElement] : piecesOf(run)) {
        updateAdamW(piece, firstElement, traits, learningRate, gradientScale, step);
      }
    }
  }
  stream_.synchronize();
}

void Optimizer::updateAdamW(const sharding::OwnedRun& run, std::int64_t firstElement, const ParameterTraits& traits,
                            double learningRate, double gradientScale, std::int64_t step) {
  auto shard = [&](const auto& memory) {
    return TensorView(memory->data() + run.shardOffset * base::byteSize(options_.states), options_.states, {run.count});
  };
  const std::string& name = parameters_.layout().parameters()[static_cast<std::size_t>(run.parameter)].name;
  backend_.run(kernels::AdamW{.gradient = flat(parameters_.gradientOf(run), run.count),
                              .weight = flat(master(run), run.count),
                              .firstMoment = shard(firstMoment_),
                              .secondMoment = shard(secondMoment_),
                              .lowWeight = lowWeight(run),
                              .learningRate = static_cast<float>(learningRate),
                              .beta1 = options_.beta1,
                              .beta2 = options_.beta2,
                              .epsilon = options_.epsilon,
                              .weightDecay = traits.decays ? options_.weightDecay : 0.0f,
                              .gradientScale = static_cast<float>(gradientScale),
                              .step = step,
                              .rounding = {.key = roundingKey(options_.seed, step),
                                           .stream = base::purposeOf(name),
                                           .firstElement = firstElement}},
               stream_);
}

// Muon with Nesterov momentum (Jordan et al. 2024); the orthogonal direction is scaled by 0.2 sqrt(max(rows, columns)),
// which gives it the root mean square of an AdamW update, so that both share one learning rate and decay
// (Liu et al. 2025, "Muon is scalable for LLM training").
void Optimizer::updateMuon(const sharding::OwnedRun& run, const ParameterTraits& traits, double learningRate,
                           double gradientScale) {
  const std::int64_t columns = parameters_.layout().parameters()[static_cast<std::size_t>(run.parameter)].shape.last();
  const TensorView gradient = flat(parameters_.gradientOf(run), run.count);
  const TensorView momentum = flat(reinterpret_cast<float*>(firstMoment_->data()) + run.shardOffset, run.count);
  float* const direction = reinterpret_cast<float*>(muonScratch_->data());
  float* const orthogonal = direction + run.count;
  backend_.run(kernels::Scale{.data = momentum, .factor = options_.muonMomentum}, stream_);
  backend_.run(kernels::Axpy{.source = gradient, .target = momentum, .factor = static_cast<float>(gradientScale)},
               stream_);
  backend_.run(kernels::Fill{.target = flat(direction, run.count), .value = 0}, stream_);
  backend_.run(kernels::Axpy{.source = momentum, .target = flat(direction, run.count), .factor = options_.muonMomentum},
               stream_);
  backend_.run(
      kernels::Axpy{
          .source = gradient, .target = flat(direction, run.count), .factor = static_cast<float>(gradientScale)},
      stream_);
  const double decay = traits.decays ? 1.0 - learningRate * static_cast<double>(options_.weightDecay) : 1.0;
  backend_.run(kernels::Scale{.data = flat(master(run), run.count), .factor = static_cast<float>(decay)}, stream_);
  std::int64_t offset = 0;
  for (const std::int64_t rows : traits.rowBlocks) {
    const TensorView from(direction + offset, base::DType::f32, {rows, columns});
    const TensorView to(orthogonal + offset, base::DType::f32, {rows, columns});
    backend_.run(kernels::NewtonSchulz{.matrix = from, .output = to}, stream_);
    const double scale = 0.2 * std::sqrt(static_cast<double>(std::max(rows, columns)));
    backend_.run(kernels::Axpy{.source = flat(orthogonal + offset, rows * columns),
                               .target = flat(master(run) + offset, rows * columns),
                               .factor = static_cast<float>(-learningRate * scale)},
                 stream_);
    offset += rows * columns;
  }
  TANDEM_ASSERT(offset == run.count, "Muon's row blocks must make up the whole parameter");
  if (master_) backend_.run(kernels::Cast{.input = flat(master(run), run.count), .output = lowWeight(run)}, stream_);
}

void Optimizer::publishMasters() {
  for (const sharding::OwnedRun& run : runs_) {
    if (master_) backend_.run(kernels::Cast{.input = flat(master(run), run.count), .output = lowWeight(run)}, stream_);
  }
  gatherWeights();
}

void Optimizer::gatherWeights() {
  runtime::WeightArrival arrival;
  gatherWeights(arrival);
  arrival.finish();
}

void Optimizer::gatherWeights(runtime::WeightArrival& arrival) {
  const sharding::FlatLayout& layout = parameters_.layout();
  if (layout.ranks() == 1 || parameters_.sharesWeights()) return;
  for (int bucket = 0; bucket < layout.buckets(); ++bucket) {
    const std::int64_t own = layout.pieceCounts(bucket)[static_cast<std::size_t>(exchange_.rank())];
    arrival.expect(bucket, exchange_.startAllGather(
                               {parameters_.weightPiece(bucket, exchange_.rank()), parameters_.storage(), own},
                               {parameters_.weightAt(layout.bucketBegin(bucket)), parameters_.storage(),
                                layout.bucketCount(bucket)},
                               layout.pieceCounts(bucket)));
  }
}

std::vector<Optimizer::State> Optimizer::states() const {
  return {{"first_moment", options_.states, firstMoment_->data()},
          {"second_moment", options_.states, secondMoment_->data()}};
}

}  // namespace tandem::optim
