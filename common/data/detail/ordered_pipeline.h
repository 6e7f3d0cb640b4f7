#pragma once
// Work on a sequence of items by several threads, with the results in the order of the items.

#include <condition_variable>
#include <cstddef>
#include <deque>
#include <exception>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

namespace tandem::data::detail {

// The calling thread calls produce() -> std::optional<Item>, and consume(Result) in the order of production; `threads`
// workers call work(worker, Item) -> Result. Bounded: about two items a worker are under way. The first exception, in
// the order of the items, is thrown on, after all workers have ended. With one thread everything runs in the calling
// thread.
template <class Produce, class Work, class Consume>
class OrderedPipeline {
  using Item = typename std::invoke_result_t<Produce>::value_type;
  using Result = std::invoke_result_t<Work, std::size_t, Item>;

 public:
  OrderedPipeline(Produce produce, Work work, Consume consume, int threads)
      : produce_(produce), work_(work), consume_(consume), threads_(static_cast<std::size_t>(threads)) {}

  void run() {
    if (threads_ <= 1) {
      while (std::optional<Item> item = produce_()) consume_(work_(0, std::move(*item)));
      return;
    }
    for (std::size_t worker = 0; worker < threads_; ++worker) {
      workers_.emplace_back([this, worker] { serve(worker); });
    }
    const Joiner joiner{*this};
    bool more = true;
    while (more || !inOrder_.empty()) {
      while (more && inOrder_.size() < 2 * threads_ + 1) more = offer();
      if (!inOrder_.empty()) consume_(takeOldest());
    }
  }

 private:
  struct Job {
    std::optional<Item> item;
    std::optional<Result> result;
    std::exception_ptr failure;
    bool done = false;
  };

  // Ends and joins the workers however run() is left.
  struct Joiner {
    OrderedPipeline& pipeline;
    ~Joiner() {
      {
        const std::lock_guard lock(pipeline.mutex_);
        pipeline.stopping_ = true;
        pipeline.waiting_.clear();
        pipeline.changed_.notify_all();
      }
      for (std::thread& worker : pipeline.workers_) worker.join();
    }
  };

  bool offer() {
    std::optional<Item> item = produce_();
    if (!item) return false;
    auto job = std::make_shared<Job>();
    job->item = std::move(item);
    inOrder_.push_back(job);
    const std::lock_guard lock(mutex_);
    waiting_.push_back(std::move(job));
    changed_.notify_all();
    return true;
  }

  Result takeOldest() {
    const std::shared_ptr<Job> job = std::move(inOrder_.front());
    inOrder_.pop_front();
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return job->done; });
    if (job->failure) std::rethrow_exception(job->failure);
    return std::move(*job->result);
  }

  void serve(std::size_t worker) {
    for (;;) {
      std::shared_ptr<Job> job;
      {
        std::unique_lock lock(mutex_);
        changed_.wait(lock, [&] { return stopping_ || !waiting_.empty(); });
        if (waiting_.empty()) return;
        job = std::move(waiting_.front());
        waiting_.pop_front();
      }
      try {
        job->result = work_(worker, std::move(*job->item));
      } catch (...) {
        job->failure = std::current_exception();
      }
      const std::lock_guard lock(mutex_);
      job->done = true;
      changed_.notify_all();
    }
  }

  Produce produce_;
  Work work_;
  Consume consume_;
  std::size_t threads_;
  std::vector<std::thread> workers_;
  std::deque<std::shared_ptr<Job>> inOrder_;  // used by the calling thread alone
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::shared_ptr<Job>> waiting_;
  bool stopping_ = false;
};

}  // namespace tandem::data::detail
