#pragma once
// The text of a configuration: the file behind --config, whose entries are options by their flags' names, and
// descriptions of clusters. It is the part of TOML that a flat list of entries needs.
//
//   steps = 1000                        # numbers, true and false, and single words stand for themselves
//   output = "runs/a"                   # quoted as in TOML, "with \n and the like" or 'literally'
//   data = ["train.h5:3", "more.h5"]    # a list may go over several lines
//
// What cannot be understood is refused with its line: an option of a long run is never lost or cut silently.

#include <string>
#include <string_view>
#include <vector>

namespace tandem::base {

struct ConfigEntry {
  std::string name;
  std::vector<std::string> values;  // of a list; else one
  int line = 0;                     // counted from 1
};

// The entries in their order. Throws Error of kind usage, naming `source` and the line: text that is no entry, a name
// given twice, a section.
std::vector<ConfigEntry> parseConfigText(std::string_view text, const std::string& source);

}  // namespace tandem::base
