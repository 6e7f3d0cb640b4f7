#pragma once
// Small datasets for tests.

#include <filesystem>
#include <string>
#include <vector>

#include "common/base/files.h"
#include "common/data/dataset.h"

namespace tandem::data {

inline void makeDataset(const std::filesystem::path& path, const std::vector<std::vector<std::uint32_t>>& documents,
                        std::int64_t vocabularySize, const std::string& hash = std::string(32, 'a')) {
  DatasetWriter writer(path, vocabularySize);
  for (const auto& document : documents) {
    writer.beginDocument();
    writer.append(document);
  }
  writer.finish({.tokenizer = "{}", .tokenizerHash = hash, .vocabularySize = vocabularySize, .textBytes = 77});
}

// A dataset whose documents have these lengths and whose tokens count up from 0.
inline void makeCountingDataset(const std::filesystem::path& path, const std::vector<int>& lengths) {
  std::vector<std::vector<std::uint32_t>> documents;
  std::uint32_t next = 0;
  for (const int length : lengths) {
    documents.emplace_back();
    for (int i = 0; i < length; ++i) documents.back().push_back(next++);
  }
  makeDataset(path, documents, 65536);
}

}  // namespace tandem::data
