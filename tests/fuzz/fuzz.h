#pragma once
// What the fuzz targets share. A target is one file NAME_fuzz.cpp that defines fuzzOne; it reads foreign bytes as the
// programs do. Whatever the bytes are, it must end soon, in bounded memory, in a value or in an Error of kind usage or
// bad data: that is checked by whoever runs it, libFuzzer or the replayer beside this file.

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "common/base/error.h"

namespace tandem::fuzz {

// The target, defined once in each fuzz program.
void fuzzOne(std::string_view bytes);

// Runs work; an Error that input may lead to is its normal end, and everything else is let through, to be found.
template <class Work>
bool accepts(const Work& work) {
  try {
    work();
    return true;
  } catch (const base::Error& error) {
    if (error.kind() != base::ErrorKind::badData && error.kind() != base::ErrorKind::usage) throw;
    return false;
  }
}

// Ends the program when what must hold does not.
void demand(bool holds, const char* what);

// A file that lies in memory only, for parsers that open files. The path is good as long as this lives.
class MemoryFile {
 public:
  explicit MemoryFile(std::string_view bytes);
  ~MemoryFile();
  MemoryFile(const MemoryFile&) = delete;
  MemoryFile& operator=(const MemoryFile&) = delete;
  std::string path() const;

 private:
  int descriptor_;
};

}  // namespace tandem::fuzz
