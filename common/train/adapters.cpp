#include "common/train/adapters.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "common/base/error.h"
#include "common/base/hash.h"
#include "common/base/json.h"
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
  return {.rank = rank,
          .scale = scale(),
          .dropout = 0,
          .decomposed = decomposed,
          .isChosen = [chosen = targets](const std::string& weight) { return isTarget(weight, chosen); }};
}

std::string AdapterOptions::json() const {
  nlohmann::json settings = {{"rank", rank},
                             {"alpha", alpha},
                             {"dropout", dropout},
                             {"rank_stabilised", rankStabilised},
                             {"targets", targets}};
  if (decomposed) settings["decomposed"] = true;
  if (baseFormat) settings["base_format"] = checkpoint::name(*baseFormat);
  return base::jsonText(settings);
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
  return parameter.ends_with(".lora_a") || parameter.ends_with(".lora_b") || parameter.ends_with(".lora_m");
}

void initialiseAdapter(const std::string& name, std::int64_t inputs, std::uint64_t seed, std::int64_t begin,
                       std::span<float> target) {
  if (!name.ends_with(".lora_a")) {
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

bool holdsAdapters(const checkpoint::Metadata& metadata) {
  const json progress = base::parseJsonOrDiscard(metadata.progress);
  return progress.is_object() && progress.contains("adapters");
}

}  // namespace tandem::train
