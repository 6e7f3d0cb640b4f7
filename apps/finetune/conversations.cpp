#include "apps/finetune/conversations.h"

#include <algorithm>
#include <filesystem>
#include <optional>

#include "apps/shared/chat.h"
#include "common/base/error.h"
#include "common/base/files.h"
#include "common/base/log.h"
#include "common/checkpoint/chat_template.h"
#include "common/data/batch_stream.h"
#include "common/data/corpus.h"
#include "common/data/dataset.h"
#include "common/tokenizer/tokenizer_json.h"

namespace tandem::finetune {
namespace {

using base::Error;
using base::ErrorKind;

class Encoding {
 public:
  Encoding(comm::Communicator& world, const train::TrainOptions& options, const ConversationSettings& settings)
      : world_(world), settings_(settings), folder_(options.output / "data"), base_(options.base.string()) {}

  // The dataset that takes the place of a conversation file; the held-out part, if any, is added to `validation`.
  std::string encode(const std::string& path, const std::string& name, bool holdsOut,
                     std::vector<std::string>& validation) {
    prepare();
    const std::string arguments[] = {path};
    const std::vector<data::TextFile> files = data::findTextFiles(world_, arguments);
    data::EncodeSettings encode{
        .output = folder_ / (name + ".h5"), .chat = chat_, .pairs = settings_.pairs, .threads = settings_.threads};
    if (holdsOut) {
      encode.validationFraction = settings_.validationFraction;
      encode.validationOutput = folder_ / (name + "-val.h5");
      validation.push_back(encode.validationOutput->string());
    }
    const data::EncodeSummary summary =
        data::encodeCorpus(world_, *tokenizer_, files, {.skipBadRecords = settings_.skipBadRecords}, encode, {});
    TANDEM_LOG(info) << "'" << path << "': " << (settings_.pairs ? summary.documents / 2 : summary.documents)
                     << (settings_.pairs ? " pairs, " : " conversations, ") << summary.tokens
                     << " tokens, by the template " << chat_->name();
    if (summary.report.badRecords > 0) {
      TANDEM_LOG(warning) << summary.report.badRecords
                          << " bad records were skipped; the first: " << summary.report.firstBadRecord;
    }
    return encode.output.string();
  }

 private:
  // What the base says, read when the first file needs it.
  void prepare() {
    if (tokenizer_) return;
    comm::agreeOn(world_, [&] {
      const checkpoint::Metadata metadata = checkpoint::readMetadata(base_);
      if (metadata.tokenizer.empty()) {
        throw Error(ErrorKind::badData, "checkpoint '" + base_ + "' holds no tokenizer to encode conversations with");
      }
      tokenizer_ = tokenizer::fromJson(metadata.tokenizer, "the tokenizer of '" + base_ + "'");
      chat_ = app::chooseChatTemplate(settings_.chatTemplate, checkpoint::chatTemplateOf(metadata), base_);
      tokenizer::ChatEncoder(*chat_, *tokenizer_);  // says what the tokenizer lacks
      if (world_.rank() == 0) base::createFolders(folder_);
    });
  }

  comm::Communicator& world_;
  const ConversationSettings& settings_;
  std::filesystem::path folder_;
  std::string base_;
  std::optional<tokenizer::Tokenizer> tokenizer_;
  std::optional<tokenizer::ChatTemplate> chat_;
};

bool isConversationFile(comm::Communicator& world, const std::filesystem::path& path) {
  bool isFile = false;
  comm::agreeOn(world, [&] { isFile = !data::isDataset(path); });
  return isFile;
}

}  // namespace

bool namesConversations(comm::Communicator& world, const train::TrainOptions& options) {
  const auto isConversation = [&](const std::filesystem::path& path) { return isConversationFile(world, path); };
  return std::ranges::any_of(options.validation, isConversation) ||
         std::ranges::any_of(options.data, isConversation,
                             [](const std::string& text) { return data::parseWeightedPath(text).path; });
}

void encodeConversations(comm::Communicator& world, train::TrainOptions& options,
                         const ConversationSettings& settings) {
  Encoding encoding(world, options, settings);
  std::vector<std::string> heldOut;
  for (std::size_t i = 0; i < options.data.size(); ++i) {
    const data::WeightedPath given = data::parseWeightedPath(options.data[i]);
    if (!isConversationFile(world, given.path)) {
      if (settings.validationFraction > 0) {
        throw Error(ErrorKind::usage, "--val-fraction is for conversation files, and '" + given.path.string() +
                                          "' is a dataset; tokenize encode --chat parts it");
      }
      continue;
    }
    const std::string encoded =
        encoding.encode(given.path.string(), "train-" + std::to_string(i), settings.validationFraction > 0, heldOut);
    const std::string weight = options.data[i].substr(given.path.string().size());
    options.data[i] = encoded + weight;
  }
  for (std::size_t i = 0; i < options.validation.size(); ++i) {
    if (!isConversationFile(world, options.validation[i])) continue;
    options.validation[i] = encoding.encode(options.validation[i], "val-" + std::to_string(i), false, heldOut);
  }
  options.validation.insert(options.validation.end(), heldOut.begin(), heldOut.end());
}

}  // namespace tandem::finetune
