// The file behind --config.

#include "common/base/config_text.h"
#include "tests/fuzz/fuzz.h"

void tandem::fuzz::fuzzOne(std::string_view bytes) {
  accepts([&] {
    int line = 0;
    for (const base::ConfigEntry& entry : base::parseConfigText(bytes, "the input")) {
      demand(entry.line > line || line == 0, "entries stand on lines of their own");
      line = entry.line;
    }
  });
}
