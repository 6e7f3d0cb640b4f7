#include <memory>

#include "apps/checkpoint-convert/commands.h"
#include "apps/checkpoint-convert/result.h"
#include "common/base/json.h"
#include "common/base/units.h"
#include "common/checkpoint/inventory.h"

namespace tandem::convert {
namespace {

using checkpoint::GgufValue;
using checkpoint::Inventory;
using checkpoint::InventoryTensor;

struct Options {
  std::string input;
  bool hashes = false;
};

Json toJson(const base::Shape& shape) {
  Json extents = Json::array();
  for (int axis = 0; axis < shape.rank(); ++axis) extents.push_back(shape[axis]);
  return extents;
}

// A long list is shown by its length.
template <class Element>
Json toJson(const std::vector<Element>& list) {
  constexpr std::size_t longest = 64;
  if (list.size() <= longest) return list;
  return std::to_string(list.size()) + " values";
}
template <class Value>
Json toJson(const Value& value) {
  return value;
}

// JSON texts are shown as what they say.
Json parsed(const std::string& text) {
  Json value = base::parseOrderedJsonOrDiscard(text);
  return value.is_discarded() ? Json(text) : value;
}

Json toJson(const Inventory& inventory) {
  Json document = {{"format", inventory.format}, {"place", inventory.place.string()}};
  if (inventory.step >= 0) document["step"] = inventory.step;
  for (const auto& [name, text] : inventory.texts) {
    if (!text.empty()) document[name] = parsed(text);
  }
  for (const auto& [name, value] : inventory.values) {
    document["values"][name] = std::visit([](const auto& each) { return toJson(each); }, value);
  }
  std::int64_t bytes = 0, elements = 0;
  Json tensors = Json::array();
  for (const InventoryTensor& tensor : inventory.tensors) {
    bytes += tensor.bytes;
    elements += tensor.shape.count();
    Json entry = {
        {"name", tensor.name}, {"type", tensor.type}, {"shape", toJson(tensor.shape)}, {"bytes", tensor.bytes}};
    if (!tensor.file.empty()) entry["file"] = tensor.file;
    if (!tensor.hash.empty()) entry["xxh128"] = tensor.hash;
    tensors.push_back(std::move(entry));
  }
  document["elements"] = elements;
  document["bytes"] = bytes;
  document["tensors"] = std::move(tensors);
  return document;
}

// The tensors as a tree, by the dots and slashes of their names: what several begin with is written once.
std::string tree(const Inventory& inventory) {
  std::string text;
  std::vector<std::string> open;
  for (const InventoryTensor& tensor : inventory.tensors) {
    std::vector<std::string> parts(1);
    for (const char c : tensor.name) {
      if (c == '.' || c == '/') {
        parts.emplace_back();
      } else {
        parts.back() += c;
      }
    }
    std::size_t shared = 0;
    while (shared < open.size() && shared + 1 < parts.size() && open[shared] == parts[shared]) ++shared;
    open.resize(shared);
    for (; open.size() + 1 < parts.size(); open.push_back(parts[open.size()])) {
      text += std::string(2 * open.size(), ' ') + parts[open.size()] + "\n";
    }
    text += std::string(2 * open.size(), ' ') + parts.back() + "  " + tensor.type + " " + tensor.shape.text() + "  " +
            base::formatBytes(tensor.bytes) + (tensor.hash.empty() ? "" : "  " + tensor.hash) + "\n";
  }
  return text;
}

std::string asText(const Inventory& inventory, const Json& document) {
  std::string text = inventory.format + " at " + inventory.place.string();
  if (inventory.step >= 0) text += ", step " + std::to_string(inventory.step);
  text += "\n";
  for (const char* name : {"configuration", "options", "progress"}) {
    if (document.contains(name)) text += std::string(name) + ": " + base::jsonText(document[name]) + "\n";
  }
  if (document.contains("values")) {
    for (const auto& [name, value] : document["values"].items()) text += name + ": " + base::jsonText(value) + "\n";
  }
  return text + tree(inventory) + std::to_string(inventory.tensors.size()) + " tensors, " +
         base::formatCount(document["elements"].get<double>()) + " elements, " +
         base::formatBytes(document["bytes"].get<std::int64_t>());
}

int run(comm::Communicator& world, const app::CommonOptions& common, const Options& options) {
  const Inventory inventory = checkpoint::takeInventory(world, options.input, options.hashes);
  const Json document = toJson(inventory);
  report(common, document, asText(inventory, document));
  return 0;
}

}  // namespace

app::Command inspectCommand() {
  const auto options = std::make_shared<Options>();
  return {.name = "inspect",
          .purpose = "Says what a checkpoint, a Hugging Face folder, a safetensors or a GGUF file holds.",
          .declare =
              [options](CLI::App& app) {
                app.add_option("--input", options->input, "What to look at")->required()->type_name("PATH");
                app.add_flag("--hashes", options->hashes, "With the XXH3-128 of each tensor's bytes");
              },
          .run = [options](comm::Communicator& world,
                           const app::CommonOptions& common) { return run(world, common, *options); }};
}

}  // namespace tandem::convert
