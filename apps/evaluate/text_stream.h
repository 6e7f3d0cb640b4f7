#pragma once
// The text of an answer while its tokens arrive: ends at a stop text, and hands out only what is safe to show, whole
// characters that no stop text can still swallow.

#include <string>
#include <string_view>
#include <vector>

namespace tandem::evaluate {

class TextStream {
 public:
  // Some chat templates put a blank in front of an answer, which is no part of it.
  enum class Beginning { asItIs, withoutBlanks };

  explicit TextStream(std::vector<std::string> stops, Beginning beginning = Beginning::asItIs)
      : stops_(std::move(stops)), beginning_(beginning) {}

  void append(std::string_view bytes);
  // Whether a stop text has come; text() then ends before it.
  bool stopped() const { return stopped_; }
  const std::string& text() const { return text_; }

  // What can be shown now and was not yet.
  std::string takeReady();
  // The rest, once nothing more comes.
  std::string takeRest();

 private:
  std::size_t readyEnd() const;

  std::vector<std::string> stops_;
  Beginning beginning_;
  std::string text_;
  std::size_t shown_ = 0;
  bool stopped_ = false;
};

}  // namespace tandem::evaluate
