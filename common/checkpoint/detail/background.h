#pragma once
// Work on a thread of its own, at a low priority so that it takes no time from the step loop.

#include <atomic>
#include <functional>
#include <optional>
#include <thread>

#include "common/base/error.h"

namespace tandem::checkpoint::detail {

class Background {
 public:
  explicit Background(std::function<void()> work);
  ~Background();  // waits
  Background(const Background&) = delete;
  Background& operator=(const Background&) = delete;

  bool done() const { return done_; }
  void wait();
  // What the work threw. Only once it is done.
  const std::optional<base::Error>& error() const { return error_; }

 private:
  std::atomic<bool> done_ = false;
  std::optional<base::Error> error_;
  std::thread thread_;
};

}  // namespace tandem::checkpoint::detail
