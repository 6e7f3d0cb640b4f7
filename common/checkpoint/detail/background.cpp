#include "common/checkpoint/detail/background.h"

#include <sys/resource.h>
#include <unistd.h>

#include <exception>

#include "common/comm/communicator.h"

namespace tandem::checkpoint::detail {
namespace {

// On Linux a priority belongs to a thread. An idle core is used all the same.
void lowerPriority() { ::setpriority(PRIO_PROCESS, static_cast<id_t>(::gettid()), 15); }

}  // namespace

Background::Background(std::function<void()> work) {
  thread_ = std::thread([this, work = std::move(work)] {
    lowerPriority();
    try {
      work();
    } catch (...) {
      error_ = comm::asError(std::current_exception());
    }
    done_ = true;
  });
}

Background::~Background() { wait(); }

void Background::wait() {
  if (thread_.joinable()) thread_.join();
}

}  // namespace tandem::checkpoint::detail
