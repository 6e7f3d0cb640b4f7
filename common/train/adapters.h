#pragma once
// Finetuning with low-rank adapters (graph/adapt.h): what they are asked to be, their first values, and how they are
// put into the weights that they were learned for.
//
// A checkpoint with adapters holds these alone, as model/NAME.lora_a, model/NAME.lora_b and where they are decomposed
// model/NAME.lora_m, and says in its progress where its base is, that is the checkpoint of the frozen weights, and the
// base's fingerprint.

#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "common/checkpoint/checkpoint.h"
#include "common/checkpoint/quantisation.h"
#include "common/graph/adapt.h"

namespace tandem::train {

struct AdapterOptions {
  std::int64_t rank = 16;
  double alpha = 32;
  double dropout = 0;
  bool rankStabilised = false;  // rsLoRA (Kalajdzievski 2023): the scale is alpha / sqrt(rank), not alpha / rank
  bool decomposed = false;      // DoRA (Liu et al. 2024): lengths of the weights' rows are learned too
  std::optional<checkpoint::QuantisedFormat> baseFormat;  // QLoRA: of the frozen matrices of the layers
  // Linears by the parts of their names: "attention.qkv", "attention.output", "mlp.gate_up", "mlp.up", "mlp.down", or
  // "attention", "mlp"; empty: all of the layers.
  std::vector<std::string> targets;

  float scale() const;
  graph::Adapters forTraining() const;
  graph::Adapters forEvaluation() const;  // without dropout

  // As progress and run.json have it.
  std::string json() const;
};

// Those of a training program; none without options.
std::optional<graph::Adapters> adaptersOf(const std::optional<AdapterOptions>& options);

// Throws Error of kind usage for a number out of its range or a target that no model has.
void check(const AdapterOptions& options);

// Whether a parameter is one of an adapter's.
bool isAdapter(const std::string& parameter);

// Elements from `begin` of a flattened adapter: B and what lengths gain are zero, so that training begins at the base;
// A is uniform within 1 / sqrt(inputs), as PEFT has it.
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

// Whether a checkpoint holds adapters alone. checkpoint::openModel reads such a one together with its base.
bool holdsAdapters(const checkpoint::Metadata& metadata);

}  // namespace tandem::train
