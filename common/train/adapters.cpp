#include "common/train/adapters.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "common/base/error.h"
#include "common/base/hash.h"
#include "common/base/random.h"
#include "common/model/transformer.h"

namespace tandem::train {
namespace {

using base::Error;
using base::ErrorKind;
using nlohmann::json;

const std::vector<std::string>& knownTargets() {
  static const std::vector<std::string> names = {"attention",   "attention.qkv", "attention.output", "mlp",
                                                 "mlp.gate_up", "mlp.up",        "mlp.down"};
  return names;
}

// "layers.3.mlp.down.weight" is of the targets "mlp" and "mlp.down".
bool isTarget(const std::string& weight, const std::vector<std::string>& targets) {
  if (!weight.starts_with("layers.")) return false;
  if (targets.empty()) return true;
  const std::string part = weight.substr(weight.find('.', std::string_view("layers.").size()) + 1);
  return std::ranges::any_of(targets, [&](const std::string& target) { return part.starts_with(target + "."); });
}

}  // namespace

float AdapterOptions::scale() const {
  const auto size = static_cast<double>(rank);
  return static_cast<float>(alpha / (rankStabilised ? std::sqrt(size) : size));
}

graph::Adapters AdapterOptions::forTraining() const {
  graph::Adapters adapters = forEvaluation();
  adapters.dropout = static_cast<float>(dropout);
  return adapters;
}

graph::Adapters AdapterOptions::forEvaluation() const {
  return {.rank = rank, .scale = scale(), .dropout = 0, .isChosen = [chosen = targets](const std::string& weight) {
            return isTarget(weight, chosen);
          }};
}

std::string AdapterOptions::json() const {
  return nlohmann::json{
      {"rank", rank}, {"alpha", alpha}, {"dropout", dropout}, {"rank_stabilised", rankStabilised}, {"targets", targets}}
      .dump();
}

AdapterOptions AdapterOptions::fromJson(const std::string& text) {
  const auto object = nlohmann::json::parse(text);
  return {.rank = object.at("rank"),
          .alpha = object.at("alpha"),
          .dropout = object.at("dropout"),
          .rankStabilised = object.at("rank_stabilised"),
          .targets = object.at("targets")};
}

std::optional<graph::Adapters> adaptersOf(const std::optional<AdapterOptions>& options) {
  return options ? std::optional(options->forTraining()) : std::nullopt;
}

void check(const AdapterOptions& options) {
  const auto demand = [](bool holds, const std::string& what) {
    if (!holds) throw Error(ErrorKind::usage, what);
  };
  demand(options.rank >= 1 && options.rank <= 4096,
         "--lora-rank is " + std::to_string(options.rank) + "; it must be from 1 to 4096");
  demand(options.alpha > 0 && std::isfinite(options.alpha), "--lora-alpha must be a number above 0");
  demand(options.dropout >= 0 && options.dropout < 1, "--lora-dropout must be at least 0 and below 1");
  for (const std::string& target : options.targets) {
    std::string names;
    for (const std::string& name : knownTargets()) names += (names.empty() ? "" : ", ") + name;
    demand(std::ranges::count(knownTargets(), target) > 0, "--lora-targets has '" + target + "'; there are " + names);
  }
}

bool isAdapter(const std::string& parameter) {
  return parameter.ends_with(".lora_a") || parameter.ends_with(".lora_b");
}

void initialiseAdapter(const std::string& name, std::int64_t inputs, std::uint64_t seed, std::int64_t begin,
                       std::span<float> target) {
  if (name.ends_with(".lora_b")) {
    std::ranges::fill(target, 0.0f);
    return;
  }
  const double bound = 1 / std::sqrt(static_cast<double>(inputs));
  const std::uint64_t purpose = model::purposeOf(name);
  for (std::size_t i = 0; i < target.size(); ++i) {
    const std::uint64_t element = static_cast<std::uint64_t>(begin) + i;
    const std::uint32_t word = base::philox(seed, element / 4, purpose)[element % 4];
    target[i] = static_cast<float>(bound * (2 * (static_cast<double>(word) + 0.5) * 0x1p-32 - 1));
  }
}

std::vector<std::int32_t> dropoutKeys(std::uint64_t seed, std::int64_t firstSample, std::int64_t rows) {
  constexpr std::uint64_t purpose = 0x64726f70;  // "drop"
  std::vector<std::int32_t> keys;
  for (std::int64_t row = 0; row < rows; ++row) {
    const auto words = base::philox(seed, static_cast<std::uint64_t>(firstSample + row), purpose);
    keys.push_back(static_cast<std::int32_t>(words[0]));
    keys.push_back(static_cast<std::int32_t>(words[1]));
  }
  return keys;
}

Base baseOf(const std::filesystem::path& step) {
  return {.path = std::filesystem::canonical(step).string(), .fingerprint = base::hashFile(step / "checksums.xxh128")};
}

std::optional<Adapted> adaptedOf(const checkpoint::Metadata& metadata) {
  const json progress = json::parse(metadata.progress, nullptr, false);
  if (!progress.is_object() || !progress.contains("adapters")) return std::nullopt;
  try {
    const json& base = progress.at("base");
    return Adapted{.base = {.path = base.at("path"), .fingerprint = base.at("fingerprint")},
                   .options = AdapterOptions::fromJson(progress.at("adapters").dump())};
  } catch (const json::exception& error) {
    throw Error(ErrorKind::badData,
                std::string("the checkpoint's progress tells of adapters, but not all: ") + error.what());
  }
}

MergedAdapters::MergedAdapters(const checkpoint::Reader& reader, const AdapterOptions& options)
    : rank_(options.rank), scale_(static_cast<double>(options.scale())) {
  constexpr std::string_view prefix = "model/", endingA = ".lora_a", endingB = ".lora_b";
  for (const checkpoint::Reader::Entry& a : reader.tensors()) {
    if (!a.name.starts_with(prefix) || !a.name.ends_with(endingA)) continue;
    const std::string stem = a.name.substr(0, a.name.size() - endingA.size());
    const std::string nameOfB = stem + std::string(endingB);
    const auto b = std::ranges::find(reader.tensors(), nameOfB, &checkpoint::Reader::Entry::name);
    const bool fits = b != reader.tensors().end() && a.shape.rank() == 2 && b->shape.rank() == 2 &&
                      a.shape[0] == rank_ && b->shape[1] == rank_;
    if (!fits) {
      throw Error(ErrorKind::badData, "checkpoint '" + reader.folder().string() + "': '" + a.name + "' and '" +
                                          nameOfB + "' are no adapters of rank " + std::to_string(rank_));
    }
    Pair pair{.weight = stem.substr(prefix.size()) + ".weight",
              .inputs = a.shape[1],
              .outputs = b->shape[0],
              .a = {},
              .b = {}};
    pair.a.resize(static_cast<std::size_t>(a.shape.count()));
    pair.b.resize(static_cast<std::size_t>(b->shape.count()));
    reader.read(a.name, base::DType::f32, a.shape, 0, a.shape.count(), pair.a.data());
    reader.read(b->name, base::DType::f32, b->shape, 0, b->shape.count(), pair.b.data());
    pairs_.push_back(std::move(pair));
  }
  if (pairs_.empty()) {
    throw Error(ErrorKind::badData, "checkpoint '" + reader.folder().string() + "' holds no adapters");
  }
}

void MergedAdapters::addTo(const std::string& weight, std::int64_t begin, std::span<float> values) const {
  const auto pair = std::ranges::find(pairs_, weight, &Pair::weight);
  if (pair == pairs_.end()) return;
  const std::int64_t end = begin + std::ssize(values);
  std::vector<double> change(static_cast<std::size_t>(pair->inputs));
  for (std::int64_t row = begin / pair->inputs; row * pair->inputs < end; ++row) {
    std::ranges::fill(change, 0.0);
    for (std::int64_t r = 0; r < rank_; ++r) {
      const double factor = scale_ * static_cast<double>(pair->b[static_cast<std::size_t>(row * rank_ + r)]);
      const float* a = pair->a.data() + r * pair->inputs;
      for (std::size_t i = 0; i < change.size(); ++i) change[i] += factor * static_cast<double>(a[i]);
    }
    const std::int64_t from = std::max(begin, row * pair->inputs), to = std::min(end, (row + 1) * pair->inputs);
    for (std::int64_t i = from; i < to; ++i) {
      float& value = values[static_cast<std::size_t>(i - begin)];
      value = static_cast<float>(static_cast<double>(value) + change[static_cast<std::size_t>(i - row * pair->inputs)]);
    }
  }
}

bool MergedAdapters::adapts(const std::string& weight) const {
  return std::ranges::find(pairs_, weight, &Pair::weight) != pairs_.end();
}

namespace {

// A base with its adapters: what both are together is read as float32, all else as the base has it.
class AdaptedModel : public checkpoint::ModelSource {
 public:
  AdaptedModel(std::unique_ptr<checkpoint::ModelSource> base, MergedAdapters adapters, const checkpoint::Reader& reader)
      : base_(std::move(base)), adapters_(std::move(adapters)) {
    place_ = reader.folder();
    metadata_ = reader.metadata();
    configuration_ = base_->configuration();
    parameters_ = base_->parameters();
    for (checkpoint::StoredParameter& parameter : parameters_) {
      if (adapters_.adapts(parameter.name)) parameter.type = base::DType::f32;
    }
  }

 protected:
  void readStored(std::size_t parameter, std::int64_t begin, std::int64_t count, void* target) const override {
    const checkpoint::StoredParameter& own = parameters_[parameter];
    base_->read(base_->parameters()[parameter], begin, count, own.type, target);
    if (!adapters_.adapts(own.name)) return;
    adapters_.addTo(own.name, begin, {static_cast<float*>(target), static_cast<std::size_t>(count)});
  }

 private:
  std::unique_ptr<checkpoint::ModelSource> base_;
  MergedAdapters adapters_;
};

// What a checkpoint of ours at a path says of its adapters.
std::optional<Adapted> adaptedAt(const std::filesystem::path& path) {
  if (checkpoint::formatOf(path) != checkpoint::ModelFormat::tandem) return std::nullopt;
  return adaptedOf(checkpoint::readMetadata(path));
}

}  // namespace

std::unique_ptr<checkpoint::ModelSource> openWithAdapters(comm::Communicator& communicator,
                                                          const std::filesystem::path& path,
                                                          const std::filesystem::path& base) {
  const std::string place = "checkpoint '" + path.string() + "'";
  std::optional<Adapted> adapted;
  std::filesystem::path basePath = base;
  comm::agreeOn(communicator, [&] {
    adapted = adaptedAt(path);
    if (!adapted && !base.empty()) {
      throw Error(ErrorKind::usage, place + " holds a whole model: it has no base to be given by --base");
    }
    if (!adapted) return;
    if (base.empty()) basePath = adapted->base.path;
    if (std::filesystem::exists(basePath)) return;
    throw Error(ErrorKind::badData, place + " holds adapters for the model at '" + basePath.string() +
                                        "', which is not there; say by --base where it is now");
  });
  if (!adapted) return checkpoint::openModel(communicator, path);
  const checkpoint::Reader reader(communicator, path);
  std::unique_ptr<checkpoint::ModelSource> model = checkpoint::openModel(communicator, basePath);
  comm::agreeOn(communicator, [&] {
    if (baseOf(model->place()).fingerprint != adapted->base.fingerprint) {
      throw Error(ErrorKind::badData, place + " holds adapters for another model than '" + model->place().string() +
                                          "' (it was '" + adapted->base.path + "')");
    }
    model = std::make_unique<AdaptedModel>(std::move(model), MergedAdapters(reader, adapted->options), reader);
  });
  return model;
}

}  // namespace tandem::train
