#include <algorithm>
#include <map>
#include <mutex>
#include <optional>
#include <sstream>

#include "common/base/log.h"
#include "common/checkpoint/checkpoint.h"
#include "common/checkpoint/detail/folders.h"
#include "common/checkpoint/detail/step_files.h"
#include "common/hdf5/hdf5.h"

namespace tandem::checkpoint {
namespace {

namespace fs = std::filesystem;
using base::Error;
using base::ErrorKind;

// The step folders that a path stands for, the best first.
std::vector<fs::path> candidatesOf(const fs::path& path) {
  if (!fs::exists(path)) {
    throw Error(ErrorKind::usage, "the checkpoint " + path.string() + " does not exist");
  }
  const bool isStep = fs::exists(path / detail::indexName) || fs::exists(path / detail::checksumsName) ||
                      detail::parseStepName(path.filename().string());
  if (isStep) return {path};
  const std::vector<std::int64_t> steps = detail::stepsOf(path);
  if (steps.empty()) {
    throw Error(ErrorKind::badData, path.string() + " is neither a run folder with checkpoints nor a step's folder");
  }
  std::vector<fs::path> folders;
  for (auto step = steps.rbegin(); step != steps.rend(); ++step) {
    folders.push_back(detail::stepsFolder(path) / detail::stepName(*step));
  }
  return folders;
}

// What work throws, as text; empty when nothing.
template <class Work>
std::string problemOf(const Work& work) {
  try {
    work();
  } catch (...) {
    return comm::asError(std::current_exception()).message();
  }
  return {};
}

// The first step that `problemWith` finds nothing wrong with; empty when there is none. Damaged ones are told of.
template <class Work>
fs::path firstIntact(const std::vector<fs::path>& candidates, const Work& problemWith, std::string& problems) {
  for (std::size_t i = 0; i < candidates.size(); ++i) {
    const std::string problem = problemWith(candidates[i]);
    if (problem.empty()) return candidates[i];
    problems += (problems.empty() ? "" : "; ") + problem;
    if (i + 1 < candidates.size()) {
      TANDEM_LOG(warning) << "the checkpoint " << candidates[i].string() << " is damaged (" << problem
                          << "): going back to " << candidates[i + 1].string();
    }
  }
  return {};
}

Error noneIntact(const fs::path& path, const std::string& problems) {
  return Error(ErrorKind::badData, "no intact checkpoint at " + path.string() + ": " + problems);
}

void broadcastIndex(comm::Communicator& ranks, detail::Index& index) {
  Metadata& metadata = index.metadata;
  ranks.broadcast({&metadata.step, base::DType::i64, 1}, 0);
  for (std::string* text :
       {&metadata.tokenizer, &metadata.configuration, &metadata.options, &metadata.progress, &metadata.companions}) {
    *text = comm::broadcastText(ranks, *text, 0);
  }
  const std::string layout = comm::broadcastText(ranks, ranks.rank() == 0 ? detail::toText(index.layout) : "", 0);
  if (ranks.rank() != 0) index.layout = detail::parseLayout(layout);
}

// Checks a step, the shards being dealt out over the ranks. The first problem that any rank found, or nothing; then
// every rank has the index. With Verification::whenRead the shards are left for later.
std::string openStep(comm::Communicator& ranks, const fs::path& folder, Verification verification,
                     detail::Index& index) {
  std::string problem;
  if (ranks.rank() == 0) problem = problemOf([&] { index = detail::readIndex(folder); });
  problem = comm::broadcastText(ranks, problem, 0);
  if (!problem.empty()) return problem;
  broadcastIndex(ranks, index);
  if (verification == Verification::whenRead) return {};
  const auto shards = index.layout.shards.size();
  const std::string own = problemOf([&] {
    for (auto i = static_cast<std::size_t>(ranks.rank()); i < shards; i += static_cast<std::size_t>(ranks.size())) {
      detail::verifyShard(folder, index.layout.shards[i]);
    }
  });
  for (const std::string& text : comm::allGatherTexts(ranks, own)) {
    if (!text.empty()) return text;
  }
  return {};
}

}  // namespace

class Reader::Implementation {
 public:
  Implementation(comm::Communicator& ranks, const fs::path& path, Verification asked) {
    const Verification verification = ranks.size() == 1 ? asked : Verification::atOnce;
    std::string problems;
    folder_ = firstIntact(
        agreedCandidates(ranks, path),
        [&](const fs::path& folder) { return openStep(ranks, folder, verification, index_); }, problems);
    if (folder_.empty()) comm::agree(ranks, noneIntact(path, problems));
    describeTensors();
    if (verification == Verification::whenRead) verifier_.emplace(folder_, index_.layout.shards);
  }

  const Metadata& metadata() const { return index_.metadata; }
  const fs::path& folder() const { return folder_; }
  const std::vector<Entry>& tensors() const { return entries_; }

  const detail::PlacedTensor* find(const std::string& name) const {
    const auto& tensors = index_.layout.tensors;
    const auto place = std::lower_bound(tensors.begin(), tensors.end(), name,
                                        [](const detail::PlacedTensor& a, const std::string& b) { return a.name < b; });
    return place != tensors.end() && place->name == name ? &*place : nullptr;
  }

  void read(const std::string& name, base::DType type, const base::Shape& shape, std::int64_t begin, std::int64_t count,
            void* target) const {
    const detail::PlacedTensor& tensor = expect(name, type, shape);
    if (begin < 0 || count < 0 || begin > shape.count() || count > shape.count() - begin) {
      throw Error(ErrorKind::badData, "elements " + std::to_string(begin) + " to " + std::to_string(begin + count) +
                                          " are outside of the tensor " + name + " " + shape.text());
    }
    for (const detail::PlacedPiece& piece : tensor.pieces) {
      if (piece.targetBegin >= begin + count) break;
      if (piece.repeats == 1) {
        readRun(tensor, piece, begin, count, target);
      } else {
        readRuns(tensor, piece, begin, count, target);
      }
    }
  }

  std::optional<FilePlace> place(const std::string& name, std::int64_t begin, std::int64_t count) const {
    const detail::PlacedTensor* const tensor = find(name);
    if (tensor == nullptr) return std::nullopt;
    const auto holdsAll = [&](const detail::PlacedPiece& piece) {
      return piece.repeats == 1 && piece.targetBegin <= begin && begin + count <= piece.targetBegin + piece.count;
    };
    const auto piece = std::ranges::find_if(tensor->pieces, holdsAll);
    if (piece == tensor->pieces.end()) return std::nullopt;
    const std::lock_guard lock(filesMutex_);
    const std::int64_t offset = datasetOf(*tensor, piece->shard).offset();
    const std::string& file = index_.layout.shards[static_cast<std::size_t>(piece->shard)].file;
    const std::int64_t element = piece->sourceBegin + begin - piece->targetBegin;
    return FilePlace{folder_ / file, offset + element * base::byteSize(tensor->type)};
  }

 private:
  // What elements [begin, begin + count) of the tensor have of a piece of one run.
  void readRun(const detail::PlacedTensor& tensor, const detail::PlacedPiece& piece, std::int64_t begin,
               std::int64_t count, void* target) const {
    const std::int64_t from = std::max(begin, piece.targetBegin);
    const std::int64_t to = std::min(begin + count, piece.targetBegin + piece.count);
    if (from >= to) return;
    readPiece(tensor, piece, from - piece.targetBegin, to - from,
              static_cast<char*>(target) + (from - begin) * base::byteSize(tensor.type));
  }

  // Of several runs, which are consecutive in their shard and so are read at once.
  void readRuns(const detail::PlacedTensor& tensor, const detail::PlacedPiece& piece, std::int64_t begin,
                std::int64_t count, void* target) const {
    const std::int64_t bytes = base::byteSize(tensor.type), end = begin + count;
    const std::int64_t afterFirst = begin - piece.targetBegin - piece.count;  // runs before end at or before `begin`
    const std::int64_t firstRun = afterFirst < 0 ? 0 : afterFirst / piece.stride + 1;
    const std::int64_t endRun = std::min(piece.repeats, (end - piece.targetBegin + piece.stride - 1) / piece.stride);
    if (firstRun >= endRun) return;
    std::vector<char> runs(static_cast<std::size_t>((endRun - firstRun) * piece.count * bytes));
    readPiece(tensor, piece, firstRun * piece.count, (endRun - firstRun) * piece.count, runs.data());
    for (std::int64_t index = firstRun; index < endRun; ++index) {
      const detail::PlacedPiece run = piece.run(index);
      const std::int64_t from = std::max(begin, run.targetBegin), to = std::min(end, run.targetBegin + run.count);
      if (from >= to) continue;
      const char* const source = runs.data() + ((index - firstRun) * piece.count + from - run.targetBegin) * bytes;
      std::copy(source, source + (to - from) * bytes, static_cast<char*>(target) + (from - begin) * bytes);
    }
  }

  static std::vector<fs::path> agreedCandidates(comm::Communicator& ranks, const fs::path& path) {
    std::string text;
    comm::agreeOn(ranks, [&] {
      if (ranks.rank() != 0) return;
      for (const fs::path& folder : candidatesOf(path)) text += folder.string() + '\n';
    });
    std::istringstream lines(comm::broadcastText(ranks, text, 0));
    std::vector<fs::path> candidates;
    for (std::string line; std::getline(lines, line);) candidates.emplace_back(line);
    return candidates;
  }

  void describeTensors() {
    for (const detail::PlacedTensor& tensor : index_.layout.tensors) {
      entries_.push_back({tensor.name, tensor.type, tensor.shape});
    }
  }

  const detail::PlacedTensor& expect(const std::string& name, base::DType type, const base::Shape& shape) const {
    const detail::PlacedTensor* tensor = find(name);
    if (tensor == nullptr)
      throw Error(ErrorKind::badData, "the checkpoint " + folder_.string() + " has no tensor " + name);
    if (tensor->type != type || !(tensor->shape == shape)) {
      throw Error(ErrorKind::badData, "the tensor " + name + " of the checkpoint " + folder_.string() + " is " +
                                          base::name(tensor->type) + " " + tensor->shape.text() + "; expected is " +
                                          base::name(type) + " " + shape.text());
    }
    return *tensor;
  }

  void readPiece(const detail::PlacedTensor& tensor, const detail::PlacedPiece& piece, std::int64_t offset,
                 std::int64_t count, void* target) const {
    const std::lock_guard lock(filesMutex_);
    datasetOf(tensor, piece.shard).read(piece.sourceBegin + offset, count, target);
  }

  hdf5::Dataset datasetOf(const detail::PlacedTensor& tensor, int number) const {
    hdf5::Dataset dataset = shard(number).dataset(tensor.name);
    if (dataset.type() != tensor.type) {
      throw Error(ErrorKind::badData, "the tensor " + tensor.name + " is of type " + base::name(dataset.type()) +
                                          " in " + index_.layout.shards[static_cast<std::size_t>(number)].file);
    }
    return dataset;
  }

  // Keeps shards open, but not without bound: there may be more than a process may open.
  const hdf5::File& shard(int number) const {
    constexpr std::size_t mostOpen = 64;
    const auto open = files_.find(number);
    if (open != files_.end()) return open->second;
    if (verifier_) verifier_->await(number);
    if (files_.size() >= mostOpen) files_.clear();
    const std::string& name = index_.layout.shards[static_cast<std::size_t>(number)].file;
    return files_.emplace(number, hdf5::File::open(folder_ / name)).first->second;
  }

  detail::Index index_;
  fs::path folder_;
  std::vector<Entry> entries_;
  mutable std::mutex filesMutex_;
  mutable std::optional<detail::ShardVerifier> verifier_;  // only where shards are verified as they are read
  mutable std::map<int, hdf5::File> files_;
};

Reader::Reader(comm::Communicator& communicator, const fs::path& path, Verification verification)
    : implementation_(std::make_unique<Implementation>(communicator, path, verification)) {}
Reader::~Reader() = default;
const Metadata& Reader::metadata() const { return implementation_->metadata(); }
const fs::path& Reader::folder() const { return implementation_->folder(); }
const std::vector<Reader::Entry>& Reader::tensors() const { return implementation_->tensors(); }
bool Reader::has(const std::string& name) const { return implementation_->find(name) != nullptr; }
void Reader::read(const std::string& name, base::DType type, const base::Shape& shape, std::int64_t begin,
                  std::int64_t count, void* target) const {
  implementation_->read(name, type, shape, begin, count, target);
}

std::optional<FilePlace> Reader::place(const std::string& name, std::int64_t begin, std::int64_t count) const {
  return implementation_->place(name, begin, count);
}

Metadata readMetadata(const fs::path& path) {
  detail::Index index;
  std::string problems;
  const auto read = [&](const fs::path& folder) { return problemOf([&] { index = detail::readIndex(folder); }); };
  if (firstIntact(candidatesOf(path), read, problems).empty()) throw noneIntact(path, problems);
  return index.metadata;
}

std::filesystem::path relativePathOf(std::int64_t step) { return detail::stepsFolder({}) / detail::stepName(step); }

std::vector<std::int64_t> completeSteps(const fs::path& run) {
  std::vector<std::int64_t> steps = detail::stepsOf(run);
  std::erase_if(steps, [&](std::int64_t step) {
    return !fs::exists(detail::stepsFolder(run) / detail::stepName(step) / detail::indexName);
  });
  return steps;
}

}  // namespace tandem::checkpoint
