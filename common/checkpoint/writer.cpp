#include <array>
#include <chrono>
#include <cstring>
#include <exception>
#include <utility>

#include "common/base/files.h"
#include "common/base/log.h"
#include "common/base/units.h"
#include "common/checkpoint/checkpoint.h"
#include "common/checkpoint/detail/background.h"
#include "common/checkpoint/detail/folders.h"
#include "common/checkpoint/detail/layout.h"
#include "common/checkpoint/detail/shard_image.h"
#include "common/checkpoint/detail/step_files.h"

namespace tandem::checkpoint {
namespace {

namespace fs = std::filesystem;
using base::Error;
using base::ErrorKind;

// What a rank reports once its shard is written; exchanged as plain bytes.
struct Report {
  std::int64_t failed = 0;
  std::int64_t bytes = 0;
  std::array<char, 32> hash{};
};
static_assert(std::has_unique_object_representations_v<Report>);

constexpr int descriptionTag = 1;

// Every rank's text on rank 0, which alone needs it; empty elsewhere.
std::vector<std::string> gatherTexts(comm::Communicator& ranks, const std::string& text) {
  auto count = static_cast<std::int64_t>(text.size());
  if (ranks.rank() != 0) {
    ranks.send({&count, base::DType::i64, 1}, 0, descriptionTag);
    ranks.send({text.data(), base::DType::u8, count}, 0, descriptionTag);
    return {};
  }
  std::vector<std::string> texts = {text};
  for (int source = 1; source < ranks.size(); ++source) {
    ranks.receive({&count, base::DType::i64, 1}, source, descriptionTag);
    std::string& other = texts.emplace_back(static_cast<std::size_t>(count), '\0');
    ranks.receive({other.data(), base::DType::u8, count}, source, descriptionTag);
  }
  return texts;
}

}  // namespace

// A save passes through stages on every rank alike:
//   writing     the thread writes this rank's shard
//   reporting   the ranks exchange sizes and checksums
//   committing  rank 0's thread writes checkpoint.h5, renames and deletes; the others pass on
//   announcing  rank 0's outcome is spread
//   ended       finish() will bring the outcome to the caller
// The exchanges are non-blocking and on a communicator of this object's own, so that each rank enters them when it is
// ready, whatever the step loop exchanges meanwhile.
class Writer::Implementation {
 public:
  Implementation(comm::Communicator& communicator, fs::path run, int keep, std::unique_ptr<RunLock> lock)
      : ranks_(communicator.split(0, communicator.rank())), run_(std::move(run)), keep_(keep), lock_(std::move(lock)) {
    comm::agreeOn(*ranks_, [&] {
      if (!isRoot()) return;
      base::createFolders(detail::stepsFolder(run_));
      base::syncFolder(run_);
      if (!lock_) lock_ = std::make_unique<RunLock>(run_);
      detail::removeLeftovers(run_);
    });
  }

  // Ends in good order, or in a hurry while an exception passes. False when this object must never be freed, since an
  // exchange that the other ranks may never join could still write into it.
  bool end() {
    if (std::uncaught_exceptions() > 0) {
      giveUp();
      return request_ == nullptr;
    }
    try {
      finish();
    } catch (const Error& failure) {
      TANDEM_LOG(error) << failure.message();
    }
    return true;
  }

  void save(const Metadata& metadata, std::span<const LocalTensor> tensors, const CopyToHost& copy) {
    finish();
    keptBesides_ = protected_;
    start_ = std::chrono::steady_clock::now();
    metadata_ = metadata;
    try {
      prepare(tensors, copy);
    } catch (...) {
      file_.reset();
      if (isRoot()) detail::removePartial(run_, metadata_.step);
      throw;
    }
    stage_ = Stage::writing;
    orders_.hurried = false;
    shardJob_.emplace([this] { detail::writeShard(*file_, image_.bytes(), orders_); });
  }

  void protect(std::int64_t step) { protected_ = step; }

  void poll() {
    while (advance()) {
    }
  }

  void finish() {
    if (stage_ == Stage::idle) return;
    orders_.hurried = true;
    while (stage_ != Stage::ended) {
      if (!advance()) std::this_thread::sleep_for(std::chrono::microseconds(500));
    }
    stage_ = Stage::idle;
    std::optional<Error> error = std::exchange(error_, std::nullopt);
    try {
      comm::agree(*ranks_, error);
    } catch (...) {
      if (isRoot()) detail::removePartial(run_, metadata_.step);
      throw;
    }
  }

  bool idle() const { return stage_ == Stage::idle || stage_ == Stage::ended; }
  bool failed() const { return stage_ != Stage::idle && failed_; }

 private:
  enum class Stage { idle, writing, reporting, committing, announcing, ended };

  bool isRoot() const { return ranks_->rank() == 0; }
  std::string shardFile() const { return detail::shardName(ranks_->rank(), ranks_->size()); }

  // All that can be done before the thread starts: the folder, the copy, the empty file, and rank 0's knowledge of who
  // has what. The file is opened here so that a thread never touches a folder of the same name that a later run made.
  void prepare(std::span<const LocalTensor> tensors, const CopyToHost& copy) {
    const fs::path partial = detail::partialFolder(run_, metadata_.step);
    failed_ = false;
    comm::agreeOn(*ranks_, [&] {
      if (isRoot()) detail::makePartial(run_, metadata_.step);
    });
    std::string description;
    comm::agreeOn(*ranks_, [&] {
      image_.build(shardFile(), tensors, copy);
      file_.emplace(base::File::create(partial / shardFile()));
      description = detail::describe(tensors);
    });
    const std::vector<std::string> descriptions = gatherTexts(*ranks_, description);
    comm::agreeOn(*ranks_, [&] {
      if (isRoot()) layout_.tensors = detail::merge(descriptions);
    });
  }

  // Does what can be done now; true when that led to another stage.
  bool advance() {
    switch (stage_) {
      case Stage::idle:
      case Stage::ended:
        return false;
      case Stage::writing:
        if (!shardJob_->done()) return false;
        endWriting();
        return true;
      case Stage::reporting:
        if (!request_->test()) return false;
        endReporting();
        return true;
      case Stage::committing:
        if (commitJob_ && !commitJob_->done()) return false;
        endCommitting();
        return true;
      case Stage::announcing:
        if (!request_->test()) return false;
        request_.reset();
        failed_ = outcome_ != 0;
        stage_ = Stage::ended;
        return true;
    }
    return false;
  }

  void endWriting() {
    shardJob_->wait();
    error_ = shardJob_->error();
    shardJob_.reset();
    file_.reset();
    report_ = Report{};
    report_.failed = error_ ? 1 : 0;
    report_.bytes = static_cast<std::int64_t>(image_.bytes().size());
    if (!error_) image_.hash().copy(report_.hash.data(), report_.hash.size());
    const auto size = static_cast<std::int64_t>(sizeof(Report));
    reports_.assign(static_cast<std::size_t>(ranks_->size()), Report{});
    counts_.assign(reports_.size(), size);
    request_ = ranks_->startAllGather({&report_, base::DType::u8, size},
                                      {reports_.data(), base::DType::u8, size * ranks_->size()}, counts_);
    stage_ = Stage::reporting;
  }

  void endReporting() {
    request_.reset();
    for (const Report& report : reports_) failed_ = failed_ || report.failed != 0;
    if (failed_) {
      stage_ = Stage::ended;
      return;
    }
    stage_ = Stage::committing;
    if (!isRoot()) return;
    layout_.shards.clear();
    for (int rank = 0; rank < ranks_->size(); ++rank) {
      const Report& report = reports_[static_cast<std::size_t>(rank)];
      layout_.shards.push_back(
          {detail::shardName(rank, ranks_->size()), report.bytes, std::string(report.hash.data(), report.hash.size())});
    }
    commitJob_.emplace([this] { commit(); });
  }

  // Runs on a thread of rank 0.
  void commit() {
    const fs::path partial = detail::partialFolder(run_, metadata_.step);
    detail::writeIndex(partial, metadata_, layout_);
    detail::publish(run_, metadata_.step);
    std::int64_t bytes = 0;
    for (const Report& report : reports_) bytes += report.bytes;
    const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
    TANDEM_LOG(info) << "saved step " << metadata_.step << ": " << base::formatBytes(bytes) << " in "
                     << base::formatDuration(seconds) << ", "
                     << base::formatBytes(static_cast<std::int64_t>(static_cast<double>(bytes) / seconds)) << "/s";
    detail::deleteOldSteps(run_, metadata_.step, keep_, keptBesides_);
  }

  void endCommitting() {
    outcome_ = 0;
    if (commitJob_) {
      commitJob_->wait();
      error_ = commitJob_->error();
      outcome_ = error_ ? 1 : 0;
      commitJob_.reset();
    }
    request_ = ranks_->startAllReduce({&outcome_, base::DType::i64, 1}, comm::Reduction::maximum);
    stage_ = Stage::announcing;
  }

  // While an exception passes: the other ranks may not come to an agreement any more.
  void giveUp() {
    orders_.cancelled = true;
    const bool unfinished = shardJob_ || stage_ == Stage::reporting;
    shardJob_.reset();
    commitJob_.reset();
    if (unfinished && isRoot()) detail::removePartial(run_, metadata_.step);
    lock_.reset();
  }

  std::unique_ptr<comm::Communicator> ranks_;
  fs::path run_;
  int keep_;
  std::int64_t protected_ = -1;
  std::int64_t keptBesides_ = -1;  // by the save under way
  std::unique_ptr<RunLock> lock_;  // on rank 0

  Stage stage_ = Stage::idle;
  std::chrono::steady_clock::time_point start_;  // of the save under way
  bool failed_ = false;
  std::optional<Error> error_;  // of this rank
  Metadata metadata_;
  detail::ShardImage image_;
  std::optional<base::File> file_;
  detail::WriteOrders orders_;
  std::optional<detail::Background> shardJob_;

  Report report_;
  std::vector<Report> reports_;
  std::vector<std::int64_t> counts_;
  std::unique_ptr<comm::Request> request_;

  detail::Layout layout_;  // on rank 0
  std::optional<detail::Background> commitJob_;
  std::int64_t outcome_ = 0;
};

Writer::Writer(comm::Communicator& communicator, fs::path run, int keep, std::unique_ptr<RunLock> lock)
    : implementation_(std::make_unique<Implementation>(communicator, std::move(run), keep, std::move(lock))) {}
Writer::~Writer() {
  if (!implementation_->end()) static_cast<void>(implementation_.release());
}
void Writer::save(const Metadata& metadata, std::span<const LocalTensor> tensors, const CopyToHost& copy) {
  implementation_->save(metadata, tensors, copy);
}
void Writer::protect(std::int64_t step) { implementation_->protect(step); }
void Writer::poll() { implementation_->poll(); }
void Writer::finish() { implementation_->finish(); }
bool Writer::idle() const { return implementation_->idle(); }
bool Writer::failed() const { return implementation_->failed(); }

}  // namespace tandem::checkpoint
