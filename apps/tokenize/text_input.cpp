#include "apps/tokenize/text_input.h"

#include "common/base/error.h"

namespace tandem::app {
namespace {

// "\n", "\t", "\r" and "\\" as people type them in a shell; other text stands for itself.
std::string unescape(const std::string& typed) {
  std::string text;
  for (std::size_t i = 0; i < typed.size(); ++i) {
    const std::size_t which = i + 1 < typed.size() ? std::string("ntr\\").find(typed[i + 1]) : std::string::npos;
    const bool isEscape = typed[i] == '\\' && which != std::string::npos;
    text += isEscape ? "\n\t\r\\"[which] : typed[i];
    i += isEscape;
  }
  return text;
}

}  // namespace

void declareTextInput(CLI::App& options, TextInput& input) {
  options
      .add_option("--input", input.arguments,
                  "Text: files, folders or patterns; .txt or .jsonl, each also with .gz or .zst behind it")
      ->required()
      ->type_name("PATH");
  options.add_option("--text-key", input.options.textKey, "Key of the text in .jsonl records")->type_name("NAME");
  options
      .add_option("--document-separator", input.separator,
                  "What parts the documents of a .txt file, such as '\\n\\n'; by default a file is one document")
      ->type_name("TEXT");
  options.add_flag("--skip-bad-records", input.options.skipBadRecords,
                   "Leave records that cannot be read out, and count them, instead of stopping");
}

std::vector<data::TextFile> findInput(comm::Communicator& world, TextInput& input) {
  if (!input.separator.empty()) input.options.documentSeparator = unescape(input.separator);
  return data::findTextFiles(world, input.arguments);
}

void logReport(const data::InputReport& report) {
  if (report.badRecords > 0) {
    TANDEM_LOG(warning) << report.badRecords << " bad records were skipped; the first: " << report.firstBadRecord;
  }
  if (report.emptyDocuments > 0) {
    TANDEM_LOG(warning) << report.emptyDocuments << " empty documents were left out";
  }
  if (report.invalidUtf8 > 0) {
    TANDEM_LOG(warning) << report.invalidUtf8 << " sequences of bytes are no UTF-8; they are kept as bytes";
  }
}

}  // namespace tandem::app
