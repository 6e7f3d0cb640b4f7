#pragma once
// Finetuning with low-rank adapters (graph/adapt.h): what they are asked to be, their first values, and how they are
// put into the weights that they were learned for.
//
// A checkpoint with adapters holds these alone, as model/NAME.lora_a and model/NAME.lora_b, and says in its progress
// where its base is, that is the checkpoint of the frozen weights, and the base's fingerprint.

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "common/checkpoint/checkpoint.h"
#include "common/checkpoint/model_source.h"
#include "common/graph/adapt.h"

namespace tandem::train {

struct AdapterOptions {
  std::int64_t rank = 16;
  double alpha = 32;
  double dropout = 0;
  bool rankStabilised = false;  // rsLoRA (Kalajdzievski 2023): the scale is alpha / sqrt(rank), not alpha / rank
  // Linears by the parts of their names: "attention.qkv", "attention.output", "mlp.gate_up", "mlp.up", "mlp.down", or
  // "attention", "mlp"; empty: all of the layers.
  std::vector<std::string> targets;

  float scale() const;
  graph::Adapters forTraining() const;
  graph::Adapters forEvaluation() const;  // without dropout

  // As progress and run.json have it.
  std::string json() const;
  static AdapterOptions fromJson(const std::string& json);
};

// Those of a training program; none without options.
std::optional<graph::Adapters> adaptersOf(const std::optional<AdapterOptions>& options);

// Throws Error of kind usage for a number out of its range or a target that no model has.
void check(const AdapterOptions& options);

// Whether a parameter is one of an adapter's.
bool isAdapter(const std::string& parameter);

// Elements from `begin` of a flattened adapter: B is zero, so that training begins at the base; A is uniform within
// 1 / sqrt(inputs), as PEFT has it.
void initialiseAdapter(const std::string& name, std::int64_t inputs, std::uint64_t seed, std::int64_t begin,
                       std::span<float> target);

// Keys of the dropout masks of rows, two numbers each, by the rows' global sample indices.
std::vector<std::int32_t> dropoutKeys(std::uint64_t seed, std::int64_t firstSample, std::int64_t rows);

// What the frozen weights of a run are: where they were read from, and a checksum over all of them.
struct Base {
  std::string path;  // of one step's folder, absolute
  std::string fingerprint;
};
Base baseOf(const std::filesystem::path& step);

// The base and adapters of a checkpoint that holds adapters alone; nothing for any other.
struct Adapted {
  Base base;
  AdapterOptions options;
};
std::optional<Adapted> adaptedOf(const checkpoint::Metadata& metadata);

// Adapters in the host's memory, to be put into their weights.
class MergedAdapters {
 public:
  // Reads all adapters of a checkpoint. Not collective. Throws Error of kind badData when it has none or they do not
  // fit together.
  MergedAdapters(const checkpoint::Reader& reader, const AdapterOptions& options);

  // Adds scale * B A to elements [begin, begin + values.size()) of the flattened weight; nothing for a weight without
  // adapters. The sum is made in float64 and rounded once.
  void addTo(const std::string& weight, std::int64_t begin, std::span<float> values) const;

  struct Pair {
    std::string weight;
    std::int64_t inputs = 0, outputs = 0;
    std::vector<float> a;  // [rank, inputs]
    std::vector<float> b;  // [outputs, rank]
  };
  bool adapts(const std::string& weight) const;
  const std::vector<Pair>& pairs() const { return pairs_; }

 private:
  std::vector<Pair> pairs_;
  std::int64_t rank_;
  double scale_;
};

// Opens any model as checkpoint::openModel does; of a checkpoint that holds adapters alone, the model that they make of
// their base, which is looked for where it was, or at `base` if that is given. Collective. Throws Error of kind badData
// when there is no base, or it is another than the adapters were learned for; of kind usage for a `base` of a model
// that has none.
std::unique_ptr<checkpoint::ModelSource> openWithAdapters(comm::Communicator& communicator,
                                                          const std::filesystem::path& path,
                                                          const std::filesystem::path& base);

}  // namespace tandem::train
