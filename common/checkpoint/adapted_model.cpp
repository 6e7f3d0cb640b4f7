#include <algorithm>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "common/base/error.h"
#include "common/base/files.h"
#include "common/base/json_nesting.h"
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
  const json object = json::parse(text, nullptr, false);
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
  std::vector<float> down;       // A [rank, columns]
  std::vector<float> up;         // B [rows, rank]
  std::vector<float> magnitude;  // of DoRA [rows]; else empty
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
  const double stretch =
      adapter.magnitude.empty()
          ? 1.0
          : static_cast<double>(adapter.magnitude[static_cast<std::size_t>(row)]) / std::sqrt(squares);
  for (std::size_t i = 0; i < columns; ++i) values[i] = static_cast<float>(stretch * sums[i]);
}

class AdaptedModel : public ModelSource {
 public:
  AdaptedModel(std::unique_ptr<ModelSource> model, const fs::path& folder) : model_(std::move(model)) {
    place_ = model_->place();
    metadata_ = model_->metadata();
    configuration_ = model_->configuration();
    parameters_ = model_->parameters();
    adapters_ = AdapterReader(folder).read(configuration_);
  }

 private:
  void readStored(std::size_t parameter, std::int64_t begin, std::int64_t count, void* target) const override {
    const StoredParameter& stored = model_->parameters()[parameter];
    const auto adapters = adapters_.find(stored.name);
    if (adapters == adapters_.end()) return model_->read(stored, begin, count, stored.type, target);
    // Whole rows, as DoRA asks for their lengths.
    const std::int64_t columns = stored.shape.last(), firstRow = begin / columns;
    const std::int64_t rows = (begin + count + columns - 1) / columns - firstRow;
    std::vector<float> values(static_cast<std::size_t>(rows * columns));
    model_->read(stored, firstRow * columns, rows * columns, DType::f32, values.data());
    for (const Adapter& adapter : adapters->second) {
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

  std::unique_ptr<ModelSource> model_;
  std::map<std::string, std::vector<Adapter>> adapters_;
};

}  // namespace

std::unique_ptr<ModelSource> withAdapter(std::unique_ptr<ModelSource> model, const fs::path& adapter) {
  return std::make_unique<AdaptedModel>(std::move(model), adapter);
}

}  // namespace tandem::checkpoint
