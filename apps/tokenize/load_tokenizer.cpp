#include "apps/tokenize/load_tokenizer.h"

#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>

#include "common/base/error.h"
#include "common/base/files.h"
#include "common/base/json.h"
#include "common/checkpoint/chat_template.h"
#include "common/hdf5/hdf5.h"
#include "common/tokenizer/tiktoken.h"
#include "common/tokenizer/tokenizer_json.h"

namespace tandem::app {
namespace {

using base::Error;
using base::ErrorKind;
using tokenizer::Tokenizer;

constexpr std::string_view hdf5Signature = "\x89HDF\r\n\x1a\n";

std::string readStart(const std::filesystem::path& path) {
  std::string start(64, '\0');
  const std::int64_t got = base::File::openForReading(path).readAt(0, std::as_writable_bytes(std::span(start)));
  start.resize(static_cast<std::size_t>(got));
  return start;
}

std::string readSourceOfFolder(const std::filesystem::path& folder) {
  if (std::filesystem::exists(folder / "tokenizer.json")) return base::readFile(folder / "tokenizer.json");
  if (!std::filesystem::exists(folder / "checkpoints") && !std::filesystem::exists(folder / "checkpoint.h5")) {
    throw Error(ErrorKind::usage, "the folder '" + folder.string() +
                                      "' holds no tokenizer: neither tokenizer.json nor a checkpoint of a run");
  }
  const std::string text = checkpoint::readMetadata(folder).tokenizer;
  if (text.empty()) throw Error(ErrorKind::badData, "the checkpoint of '" + folder.string() + "' has no tokenizer");
  return text;
}

// The text that a tokenizer is made from; of HDF5 files what is stored under /tokenizer.
std::string readSource(const std::string& path) {
  if (!std::filesystem::exists(path)) throw Error(ErrorKind::usage, "the tokenizer '" + path + "' does not exist");
  if (std::filesystem::is_directory(path)) return readSourceOfFolder(path);
  if (!readStart(path).starts_with(hdf5Signature)) return base::readFile(path);
  const hdf5::File file = hdf5::File::open(path);
  if (!file.has("/tokenizer")) {
    throw Error(ErrorKind::badData, "'" + path +
                                        "' holds no tokenizer: it has no /tokenizer, as our datasets and "
                                        "checkpoints do");
  }
  return file.readText("/tokenizer");
}

Tokenizer makeTokenizer(const std::string& text, const std::string& path, const std::string& pattern) {
  const std::size_t first = text.find_first_not_of(" \t\r\n");
  const bool isJson = first != std::string::npos && text[first] == '{';
  if (isJson || !path.ends_with(".tiktoken")) {
    if (!pattern.empty()) {
      throw Error(ErrorKind::usage, "--pattern is for .tiktoken files; the tokenizer of '" + path + "' says its own");
    }
    return tokenizer::fromJson(text, path);
  }
  if (pattern.empty()) {
    throw Error(ErrorKind::usage, "'" + path +
                                      "' does not say how it cuts text into words: give --pattern (gpt2, "
                                      "cl100k, o200k, llama3 or qwen2)");
  }
  return tokenizer::fromTiktoken(text, tokenizer::parsePattern(pattern), path);
}

// Of a Hugging Face folder, in the two places where it may stand.
std::string readTemplateOfFolder(const std::filesystem::path& folder) {
  if (std::filesystem::exists(folder / "chat_template.jinja")) return base::readFile(folder / "chat_template.jinja");
  if (!std::filesystem::exists(folder / "tokenizer_config.json")) return {};
  const std::string text = base::readFile(folder / "tokenizer_config.json");
  const auto config = base::parseJsonOrDiscard(text);
  const bool says = config.is_object() && config.contains("chat_template") && config["chat_template"].is_string();
  return says ? config["chat_template"].get<std::string>() : "";
}

std::string readTemplate(const std::filesystem::path& path) {
  const bool isFolder = std::filesystem::is_directory(path);
  if (isFolder && (std::filesystem::exists(path / "checkpoints") || std::filesystem::exists(path / "checkpoint.h5"))) {
    return checkpoint::chatTemplateOf(checkpoint::readMetadata(path));
  }
  if (isFolder || !readStart(path).starts_with(hdf5Signature)) {
    return readTemplateOfFolder(isFolder ? path : path.has_parent_path() ? path.parent_path() : ".");
  }
  const hdf5::File file = hdf5::File::open(path);
  if (file.has("/companions")) return checkpoint::chatTemplateOf({.companions = file.readText("/companions")});
  return file.has("/chat_template") ? file.readText("/chat_template") : "";
}

}  // namespace

std::string loadChatTemplate(comm::Communicator& world, const std::string& path) {
  std::string text;
  comm::agreeOn(world, [&] {
    if (world.rank() == 0) text = readTemplate(path);
  });
  return comm::broadcastText(world, std::move(text), 0);
}

Tokenizer loadTokenizer(comm::Communicator& world, const std::string& path, const std::string& pattern) {
  std::string text;
  comm::agreeOn(world, [&] {
    if (world.rank() == 0) text = readSource(path);
  });
  text = comm::broadcastText(world, std::move(text), 0);
  std::optional<Tokenizer> tokenizer;
  comm::agreeOn(world, [&] { tokenizer = makeTokenizer(text, path, pattern); });
  return *tokenizer;
}

}  // namespace tandem::app
