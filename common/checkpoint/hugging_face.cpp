// Reading a Hugging Face folder.

#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "common/base/error.h"
#include "common/base/files.h"
#include "common/base/json.h"
#include "common/base/log.h"
#include "common/checkpoint/detail/foreign_model.h"
#include "common/checkpoint/hugging_face.h"
#include "common/checkpoint/safetensors.h"

namespace tandem::checkpoint {
namespace {

namespace fs = std::filesystem;
using base::Error;
using base::ErrorKind;
using nlohmann::json;

constexpr std::int64_t longestText = 256 << 20;  // of a JSON file

std::string readText(const fs::path& path) {
  if (base::File::openForReading(path).size() > longestText) {
    throw Error(ErrorKind::badData, path.string() + " is larger than any such text: it is no file of a model");
  }
  return base::readFile(path);
}

// Which file of the folder holds each tensor.
std::map<std::string, std::string> readIndex(const fs::path& path) {
  const std::string text = readText(path);
  base::refuseDeepNesting(text, ErrorKind::badData, path.string());
  const json index = base::parseJsonOrDiscard(text);
  if (!index.is_object() || !index.contains("weight_map") || !index["weight_map"].is_object()) {
    throw Error(ErrorKind::badData, path.string() + " is no JSON object with a weight_map");
  }
  std::map<std::string, std::string> files;
  for (const auto& [tensor, file] : index["weight_map"].items()) {
    const std::string name = file.is_string() ? file.get<std::string>() : "";
    if (name.empty() || name.find('/') != std::string::npos || !name.ends_with(".safetensors")) {
      throw Error(ErrorKind::badData,
                  path.string() + ": the weight_map has no file of the folder for '" + tensor + "'");
    }
    files[tensor] = name;
  }
  return files;
}

std::vector<std::unique_ptr<TensorFile>> openSharded(const fs::path& folder, const fs::path& indexPath) {
  const std::map<std::string, std::string> index = readIndex(indexPath);
  std::map<std::string, std::unique_ptr<TensorFile>> files;
  for (const auto& [tensor, name] : index) {
    auto& file = files[name];
    if (!file && !fs::exists(folder / name)) {
      throw Error(ErrorKind::badData, indexPath.string() + " names " + name + ", which is not there");
    }
    if (!file) file = std::make_unique<SafetensorsFile>(folder / name);
    if (file->find(tensor) == nullptr) {
      throw Error(ErrorKind::badData,
                  file->path().string() + " has no tensor '" + tensor + "', though " + indexPath.string() + " says so");
    }
  }
  std::vector<std::unique_ptr<TensorFile>> opened;
  for (auto& [name, file] : files) opened.push_back(std::move(file));
  return opened;
}

std::string readCompanions(const fs::path& folder) {
  json companions = json::object();
  for (const char* name : companionNames) {
    if (fs::exists(folder / name)) companions[name] = readText(folder / name);
  }
  try {
    return companions.empty() ? "" : base::jsonText(companions);
  } catch (const json::exception&) {
    throw Error(ErrorKind::badData, folder.string() + ": a text beside config.json is not UTF-8");
  }
}

}  // namespace

std::vector<std::unique_ptr<TensorFile>> openWeights(const fs::path& folder) {
  const fs::path single = folder / safetensorsName, index = folder / safetensorsIndexName;
  if (fs::exists(index)) return openSharded(folder, index);
  if (!fs::exists(single)) {
    throw Error(ErrorKind::badData, folder.string() + " has neither " + safetensorsName + " nor " +
                                        safetensorsIndexName + "; weights in other formats are not read");
  }
  std::vector<std::unique_ptr<TensorFile>> files;
  files.push_back(std::make_unique<SafetensorsFile>(single));
  return files;
}

namespace detail {

ForeignParts openHuggingFace(const fs::path& folder) {
  ForeignParts parts;
  parts.place = folder;
  const fs::path configuration = folder / configurationName, tokenizer = folder / tokenizerName;
  parts.metadata.configuration = readText(configuration);
  parts.configuration = parseForeignConfiguration(parts.metadata.configuration, "'" + configuration.string() + "'");
  if (fs::exists(tokenizer)) {
    parts.metadata.tokenizer = readText(tokenizer);
  } else if (fs::exists(folder / "tokenizer.model")) {
    TANDEM_LOG(warning) << (folder / "tokenizer.model").string() << " is a tokenizer of SentencePiece, which is not "
                        << "read: the model is read without one, and only token ids can be given to it";
  }
  parts.metadata.companions = readCompanions(folder);
  parts.layout = huggingFaceLayout(parts.configuration);
  parts.files = openWeights(folder);
  parts.optionalPrefix = parts.configuration.type == "gpt2" ? "transformer." : "model.";
  return parts;
}

}  // namespace detail

}  // namespace tandem::checkpoint
