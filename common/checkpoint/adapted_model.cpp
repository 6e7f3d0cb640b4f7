#include <algorithm>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <span>

#include "common/base/error.h"
#include "common/base/files.h"
#include "common/base/hash.h"
#include "common/base/json.h"
#include "common/checkpoint/derived_models.h"
#include "common/checkpoint/detail/foreign_model.h"
#include "common/checkpoint/safetensors.h"

namespace tandem::checkpoint {
namespace {

namespace fs = std::filesystem;
using base::DType;
using base::Error;
using base::ErrorKind;
using nlohmann::json;

// What adapter_config.json says that matters here.
struct AdapterSettings {
  double alpha = 0;
  bool rankStabilised = false;  // rsLoRA
  bool decomposed = false;      // DoRA
};

AdapterSettings readSettings(const fs::path& path) {
  const std::string text = base::readFile(path);
  const auto fail = [&](const std::string& what) { throw Error(ErrorKind::badData, path.string() + ": " + what); };
  base::refuseDeepNesting(text, ErrorKind::badData, path.string());
  const json object = base::parseJsonOrDiscard(text);
  if (!object.is_object()) fail("is no JSON object");
  if (object.value("peft_type", json()) != "LORA") fail("its peft_type is not LORA, the only kind that is merged");
  for (const char* name : {"rank_pattern", "alpha_pattern", "modules_to_save", "layer_replication"}) {
    if (object.contains(name) && !object[name].empty()) fail(std::string("sets ") + name + ", which is not merged");
  }
  if (object.contains("bias") && object["bias"] != "none") fail("trains biases, which are not merged");
  const auto flag = [&](const char* name) { return object.contains(name) && object[name] == true; };
  if (flag("lora_bias")) fail("has biases of its own, which are not merged");
  if (!object.contains("lora_alpha") || !object["lora_alpha"].is_number()) fail("its lora_alpha is no number");
  return {object["lora_alpha"].get<double>(), flag("use_rslora"), flag("use_dora")};
}

// The adapter of one of their matrices: rows [firstRow, firstRow + rows) of a parameter of ours.
struct Adapter {
  std::int64_t firstRow = 0;
  std::int64_t rows = 0;
  std::int64_t columns = 0;
  std::int64_t rank = 0;
  double scale = 0;
  std::vector<float> down;  // A [rank, columns]
  std::vector<float> up;    // B [rows, rank]
  // Of DoRA [rows], else empty: how long each row of what they make is, as PEFT has it, or how much longer than the row
  // that is frozen, as ours.
  std::vector<float> magnitude, gain;
};

class AdapterReader {
 public:
  explicit AdapterReader(const fs::path& folder)
      : settings_(readSettings(folder / "adapter_config.json")), file_(folder / "adapter_model.safetensors") {}

  // The adapters of each parameter that has any.
  std::map<std::string, std::vector<Adapter>> read(const model::Configuration& configuration) {
    std::map<std::string, std::vector<Adapter>> adapters;
    for (const Parameter& parameter : huggingFaceLayout(configuration)) {
      for (const Part& part : parameter.parts) {
        if (parameter.shape.rank() != 2 || !part.name.ends_with(".weight")) continue;
        const std::string module =
            "base_model.model." + part.name.substr(0, part.name.size() - std::string(".weight").size()) + ".";
        if (const auto adapter = readOne(module, part, parameter.shape.last())) {
          adapters[parameter.name].push_back(*adapter);
        }
      }
    }
    for (const StoredTensor& tensor : file_.tensors()) {
      if (!used_.contains(tensor.name)) fail("the tensor '" + tensor.name + "' adapts nothing that the model has");
    }
    if (adapters.empty()) fail("holds no adapter");
    return adapters;
  }

 private:
  [[noreturn]] void fail(const std::string& what) const {
    throw Error(ErrorKind::badData, file_.path().string() + ": " + what);
  }

  std::optional<Adapter> readOne(const std::string& module, const Part& part, std::int64_t columns) {
    const StoredTensor* const down = find(module + "lora_A.weight");
    const StoredTensor* const up = find(module + "lora_B.weight");
    if (down == nullptr && up == nullptr) return std::nullopt;
    if (down == nullptr || up == nullptr) fail("of " + module + " there is only one of lora_A and lora_B");
    Adapter adapter{.firstRow = part.firstRow, .rows = part.rows, .columns = columns};
    adapter.rank = down->shape.rank() == 2 ? down->shape[0] : 0;
    if (adapter.rank <= 0) fail("the tensor '" + down->name + "' has no rank");
    adapter.down = floats(*down, {adapter.rank, columns});
    adapter.up = floats(*up, {part.rows, adapter.rank});
    const auto rank = static_cast<double>(adapter.rank);
    adapter.scale = settings_.alpha / (settings_.rankStabilised ? std::sqrt(rank) : rank);
    if (!settings_.decomposed) return adapter;
    const StoredTensor* magnitude = find(module + "lora_magnitude_vector");
    if (magnitude == nullptr) magnitude = find(module + "lora_magnitude_vector.weight");
    if (magnitude == nullptr) fail("of " + module + " there is no lora_magnitude_vector, as DoRA has");
    adapter.magnitude = floats(*magnitude, {part.rows});
    return adapter;
  }

  const StoredTensor* find(const std::string& name) {
    const StoredTensor* const tensor = file_.find(name);
    if (tensor != nullptr) used_.insert(name);
    return tensor;
  }

  std::vector<float> floats(const StoredTensor& tensor, const base::Shape& shape) const {
    if (!tensor.encoding || !(tensor.shape == shape)) {
      fail("the tensor '" + tensor.name + "' is " + tensor.type + " " + tensor.shape.text() + "; it must be floats " +
           shape.text());
    }
    std::vector<float> values(static_cast<std::size_t>(shape.count()));
    detail::readElements(file_, tensor, 0, shape.count(), DType::f32, reinterpret_cast<std::byte*>(values.data()));
    return values;
  }

  AdapterSettings settings_;
  SafetensorsFile file_;
  std::set<std::string> used_;
};

double lengthOf(std::span<const float> row) {
  double squares = 0;
  for (const float value : row) squares += static_cast<double>(value) * static_cast<double>(value);
  return std::sqrt(squares);
}

// The length that DoRA gives to a row, `frozen` being that of the base.
double learnedLength(const Adapter& adapter, std::size_t row, std::span<const float> frozen) {
  if (adapter.gain.empty()) return static_cast<double>(adapter.magnitude[row]);
  return lengthOf(frozen) + static_cast<double>(adapter.gain[row]);
}

// Adds the adapter to one of its rows.
void adapt(const Adapter& adapter, std::int64_t row, std::span<float> values) {
  const auto columns = static_cast<std::size_t>(adapter.columns), rank = static_cast<std::size_t>(adapter.rank);
  std::vector<double> sums(columns);
  for (std::size_t k = 0; k < rank; ++k) {
    const double factor = adapter.scale * static_cast<double>(adapter.up[static_cast<std::size_t>(row) * rank + k]);
    const float* const down = adapter.down.data() + k * columns;
    for (std::size_t i = 0; i < columns; ++i) sums[i] += factor * static_cast<double>(down[i]);
  }
  double squares = 0;
  for (std::size_t i = 0; i < columns; ++i) {
    sums[i] += static_cast<double>(values[i]);
    squares += sums[i] * sums[i];
  }
  const bool isDecomposed = !adapter.magnitude.empty() || !adapter.gain.empty();
  // A row of zeros has no direction to be long in.
  const double stretch = isDecomposed && squares > 0
                             ? learnedLength(adapter, static_cast<std::size_t>(row), values) / std::sqrt(squares)
                             : 1.0;
  for (std::size_t i = 0; i < columns; ++i) values[i] = static_cast<float>(stretch * sums[i]);
}

using Adapters = std::map<std::string, std::vector<Adapter>>;  // by parameter

class AdaptedModel : public ModelSource {
 public:
  // `baseFormat`: what the matrices of the layers were quantised to while the adapters were learned beside them
  // (QLoRA). They are read as what they were then.
  AdaptedModel(std::unique_ptr<ModelSource> model, Adapters adapters, const fs::path& place, const Metadata& metadata,
               std::optional<QuantisedFormat> baseFormat = std::nullopt)
      : model_(std::move(model)), adapters_(std::move(adapters)), baseFormat_(baseFormat) {
    place_ = place;
    metadata_ = metadata;
    configuration_ = model_->configuration();
    parameters_ = model_->parameters();
  }

 private:
  void readStored(std::size_t parameter, std::int64_t begin, std::int64_t count, void* target) const override {
    const StoredParameter& stored = model_->parameters()[parameter];
    const auto adapters = adapters_.find(stored.name);
    const auto format = formatToRoundTo(stored);
    if (adapters == adapters_.end() && !format) return model_->read(stored, begin, count, stored.type, target);
    // Whole rows, as DoRA asks for their lengths.
    const std::int64_t columns = stored.shape.last(), firstRow = begin / columns;
    const std::int64_t rows = (begin + count + columns - 1) / columns - firstRow;
    std::vector<float> values(static_cast<std::size_t>(rows * columns));
    model_->read(stored, firstRow * columns, rows * columns, DType::f32, values.data());
    if (format) {
      const RowsPlace place{stored.name, firstRow};
      dequantiseRows(*format, quantiseRows(*format, values, columns, place), columns, values, place);
    }
    static const std::vector<Adapter> noAdapters;
    for (const Adapter& adapter : adapters == adapters_.end() ? noAdapters : adapters->second) {
      const std::int64_t from = std::max(firstRow, adapter.firstRow);
      const std::int64_t to = std::min(firstRow + rows, adapter.firstRow + adapter.rows);
      for (std::int64_t row = from; row < to; ++row) {
        adapt(adapter, row - adapter.firstRow,
              std::span(values).subspan(static_cast<std::size_t>((row - firstRow) * columns),
                                        static_cast<std::size_t>(columns)));
      }
    }
    convert(DType::f32, values.data() + (begin - firstRow * columns), stored.type, target, count);
  }

  // Nothing: as it is, which a matrix that is stored quantised already is too.
  std::optional<QuantisedFormat> formatToRoundTo(const StoredParameter& stored) const {
    if (!baseFormat_ || model_->quantisedFormat(stored)) return std::nullopt;
    return formatOfFrozen(stored.name, stored.shape, *baseFormat_);
  }

  std::unique_ptr<ModelSource> model_;
  Adapters adapters_;
  std::optional<QuantisedFormat> baseFormat_;
};

// What a run of finetuning says of its adapters.
json settingsOf(const Reader& run, const char* what) {
  const json progress = base::parseJsonOrDiscard(run.metadata().progress);
  if (progress.is_object() && progress.contains(what) && progress[what].is_object()) return progress[what];
  throw Error(ErrorKind::badData, "the checkpoint " + run.folder().string() +
                                      " holds adapters, but its progress does not "
                                      "say of what: it has no object '" +
                                      std::string(what) + "'");
}

template <class Value>
Value settingOf(const Reader& run, const char* what, const char* name) {
  try {
    return settingsOf(run, what).at(name).get<Value>();
  } catch (const json::exception&) {
    throw Error(ErrorKind::badData, "the progress of the checkpoint " + run.folder().string() + " has no " + what +
                                        "/" + name + ", or another than it must be");
  }
}

// Whether they are DoRA's.
bool isDecomposed(const Reader& run) {
  return settingsOf(run, "adapters").contains("decomposed") && settingOf<bool>(run, "adapters", "decomposed");
}

// What the frozen matrices were held as.
std::optional<QuantisedFormat> baseFormatOf(const Reader& run) {
  if (!settingsOf(run, "adapters").contains("base_format")) return std::nullopt;
  return parseQuantisedFormat(settingOf<std::string>(run, "adapters", "base_format"));
}

constexpr std::string_view endingOfDown = ".lora_a", endingOfUp = ".lora_b", endingOfGain = ".lora_m";

const Reader::Entry* find(const Reader& run, const std::string& name) {
  const auto found = std::ranges::find(run.tensors(), name, &Reader::Entry::name);
  return found == run.tensors().end() ? nullptr : &*found;
}

std::vector<float> readWhole(const Reader& run, const Reader::Entry& entry, const base::Shape& shape) {
  std::vector<float> values(static_cast<std::size_t>(shape.count()));
  run.read(entry.name, DType::f32, shape, 0, shape.count(), values.data());
  return values;
}

Adapters ownAdapters(const Reader& run, const model::Configuration& configuration) {
  const auto alpha = settingOf<double>(run, "adapters", "alpha");
  const bool rankStabilised = settingOf<bool>(run, "adapters", "rank_stabilised"), decomposed = isDecomposed(run);
  Adapters adapters;
  for (const Parameter& parameter : ourLayout(configuration)) {
    if (parameter.shape.rank() != 2 || !parameter.name.ends_with(".weight")) continue;
    const std::string stem = "model/" + parameter.name.substr(0, parameter.name.rfind('.'));
    const Reader::Entry* const down = find(run, stem + std::string(endingOfDown));
    const Reader::Entry* const up = find(run, stem + std::string(endingOfUp));
    if (down == nullptr || up == nullptr) continue;
    Adapter adapter{.rows = parameter.shape[0], .columns = parameter.shape[1], .rank = down->shape[0]};
    adapter.down = readWhole(run, *down, {adapter.rank, adapter.columns});
    adapter.up = readWhole(run, *up, {adapter.rows, adapter.rank});
    const auto rank = static_cast<double>(adapter.rank);
    // The factor that training computes with is a float32.
    adapter.scale = static_cast<double>(static_cast<float>(alpha / (rankStabilised ? std::sqrt(rank) : rank)));
    if (decomposed) {
      const Reader::Entry* const gain = find(run, stem + std::string(endingOfGain));
      if (gain == nullptr) {
        throw Error(ErrorKind::badData, "the checkpoint " + run.folder().string() + " has no tensor '" + stem +
                                            std::string(endingOfGain) + "', as decomposed adapters have");
      }
      adapter.gain = readWhole(run, *gain, {adapter.rows});
    }
    adapters[parameter.name].push_back(std::move(adapter));
  }
  return adapters;
}

// Makes lengths of what the rows have gained over those of `base`, which are as they were frozen.
void addLengths(Adapters& adapters, const ModelSource& base) {
  constexpr std::int64_t panelElements = 1 << 20;
  for (auto& [name, ofParameter] : adapters) {
    const StoredParameter& stored = base.parameter(name);
    Adapter& adapter = ofParameter.front();
    const std::int64_t columns = adapter.columns, panel = std::max<std::int64_t>(1, panelElements / columns);
    std::vector<float> values;
    for (std::int64_t begin = 0; begin < adapter.rows; begin += panel) {
      const std::int64_t rows = std::min(panel, adapter.rows - begin);
      values.resize(static_cast<std::size_t>(rows * columns));
      base.read(stored, begin * columns, rows * columns, DType::f32, values.data());
      for (std::int64_t row = 0; row < rows; ++row) {
        const auto frozen = std::span<const float>(values).subspan(static_cast<std::size_t>(row * columns),
                                                                   static_cast<std::size_t>(columns));
        adapter.magnitude.push_back(
            static_cast<float>(learnedLength(adapter, static_cast<std::size_t>(begin + row), frozen)));
      }
    }
  }
}

// A tensor of an adapter to write: all of A, or some rows of B or of the lengths.
struct PeftTensor {
  NewTensor tensor;
  std::span<const float> values;
};

std::vector<PeftTensor> peftTensors(const Adapters& adapters, const model::Configuration& configuration,
                                    std::set<std::string>& modules) {
  std::vector<PeftTensor> tensors;
  for (const Parameter& parameter : huggingFaceLayout(configuration)) {
    const auto found = adapters.find(parameter.name);
    if (found == adapters.end()) continue;
    const Adapter& adapter = found->second.front();
    for (const Part& part : parameter.parts) {
      const std::string module = part.name.substr(0, part.name.rfind('.'));
      modules.insert(module.substr(module.rfind('.') + 1));
      const auto first = static_cast<std::size_t>(part.firstRow * adapter.rank);
      const auto count = static_cast<std::size_t>(part.rows * adapter.rank);
      const std::string prefix = "base_model.model." + module + ".";
      tensors.push_back({{prefix + "lora_A.weight", Encoding::f32, {adapter.rank, adapter.columns}}, adapter.down});
      tensors.push_back({{prefix + "lora_B.weight", Encoding::f32, {part.rows, adapter.rank}},
                         std::span(adapter.up).subspan(first, count)});
      if (adapter.magnitude.empty()) continue;
      tensors.push_back({{prefix + "lora_magnitude_vector", Encoding::f32, {part.rows}},
                         std::span(adapter.magnitude)
                             .subspan(static_cast<std::size_t>(part.firstRow), static_cast<std::size_t>(part.rows))});
    }
  }
  return tensors;
}

void writePeft(const Adapters& adapters, const model::Configuration& configuration, const Reader& run,
               const fs::path& folder) {
  std::set<std::string> modules;
  const std::vector<PeftTensor> tensors = peftTensors(adapters, configuration, modules);
  std::map<std::string, std::span<const float>> values;
  std::vector<NewTensor> heads;
  for (const PeftTensor& each : tensors) {
    heads.push_back(each.tensor);
    values[each.tensor.name] = each.values;
  }
  const FileLayout layout = layOutSafetensors(heads, {{"format", "pt"}});
  std::string bytes = layout.head;
  for (const StoredTensor& tensor : layout.tensors) {
    const auto content = std::as_bytes(values.at(tensor.name));
    bytes.append(reinterpret_cast<const char*>(content.data()), content.size());
  }
  const nlohmann::ordered_json settings = {{"base_model_name_or_path", settingOf<std::string>(run, "base", "path")},
                                           {"bias", "none"},
                                           {"fan_in_fan_out", configuration.type == "gpt2"},
                                           {"inference_mode", true},
                                           {"lora_alpha", settingOf<double>(run, "adapters", "alpha")},
                                           {"lora_dropout", settingOf<double>(run, "adapters", "dropout")},
                                           {"peft_type", "LORA"},
                                           {"r", settingOf<std::int64_t>(run, "adapters", "rank")},
                                           {"target_modules", modules},
                                           {"task_type", "CAUSAL_LM"},
                                           {"use_dora", isDecomposed(run)},
                                           {"use_rslora", settingOf<bool>(run, "adapters", "rank_stabilised")}};
  base::createFolders(folder);
  base::replaceFile(folder / "adapter_model.safetensors", bytes);
  base::replaceFile(folder / "adapter_config.json", base::jsonText(settings, 2) + "\n");
}

}  // namespace

std::unique_ptr<ModelSource> withAdapter(std::unique_ptr<ModelSource> model, const fs::path& adapter) {
  Adapters adapters = AdapterReader(adapter).read(model->configuration());
  const fs::path place = model->place();
  const Metadata metadata = model->metadata();
  return std::make_unique<AdaptedModel>(std::move(model), std::move(adapters), place, metadata);
}

bool holdsAdapters(const Reader& run) {
  return std::ranges::any_of(run.tensors(), [](const Reader::Entry& entry) {
    return entry.name.starts_with("model/") && entry.name.ends_with(endingOfDown);
  });
}

fs::path baseOfAdapters(const Reader& run) {
  const fs::path path = settingOf<std::string>(run, "base", "path");
  const fs::path checksums = path / "checksums.xxh128";
  const std::string place = "the base " + path.string() + " of the adapters in " + run.folder().string();
  if (!fs::exists(checksums)) throw Error(ErrorKind::badData, place + " is not there any more");
  if (base::hashFile(checksums) != settingOf<std::string>(run, "base", "fingerprint")) {
    throw Error(ErrorKind::badData, place + " is another than they were learned for");
  }
  return path;
}

std::unique_ptr<ModelSource> withAdapters(std::unique_ptr<ModelSource> model, const Reader& run) {
  Adapters adapters = ownAdapters(run, model->configuration());
  const std::optional<QuantisedFormat> format = baseFormatOf(run);
  Metadata metadata = run.metadata();
  json progress = base::parseJson(metadata.progress);
  progress.erase("adapters");
  progress.erase("base");
  metadata.progress = base::jsonText(progress);
  if (metadata.companions.empty()) metadata.companions = model->metadata().companions;
  return std::make_unique<AdaptedModel>(std::move(model), std::move(adapters), run.folder(), metadata, format);
}

void writeAdapter(comm::Communicator& communicator, const Reader& run, const fs::path& folder) {
  fs::path baseOfLengths;  // empty: adapters alone are needed
  comm::agreeOn(communicator, [&] {
    if (!holdsAdapters(run)) {
      throw Error(ErrorKind::usage, "the checkpoint " + run.folder().string() + " holds no adapters to write");
    }
    if (communicator.rank() == 0 && fs::exists(folder)) {
      throw Error(ErrorKind::usage, "the output '" + folder.string() + "' exists: choose another, or remove it");
    }
    if (isDecomposed(run)) baseOfLengths = baseOfAdapters(run);
  });
  std::unique_ptr<ModelSource> base;
  if (!baseOfLengths.empty()) base = openModel(communicator, baseOfLengths);
  comm::agreeOn(communicator, [&] {
    if (communicator.rank() != 0) return;
    const model::Configuration configuration =
        detail::parseForeignConfiguration(run.metadata().configuration, "in the checkpoint " + run.folder().string());
    Adapters adapters = ownAdapters(run, configuration);
    if (base) {
      addLengths(adapters, AdaptedModel(std::move(base), {}, run.folder(), run.metadata(), baseFormatOf(run)));
    }
    writePeft(adapters, configuration, run, folder);
  });
}

}  // namespace tandem::checkpoint
