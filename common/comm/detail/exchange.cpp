#include "common/comm/detail/exchange.h"

namespace tandem::comm::detail {

Exchange::~Exchange() {
  if (!handle_) return;
  if (!handle_.done()) {
    if (std::uncaught_exceptions() > 0) return;
    try {
      wait();
    } catch (const base::Error&) {  // the next call on the group reports it
      return;
    }
  }
  handle_.destroy();
}

bool Exchange::test() {
  while (!handle_.done()) {
    if (!handle_.promise().awaited->test()) return false;
    resume();
  }
  resume();
  return true;
}

void Exchange::wait() {
  while (!handle_.done()) {
    handle_.promise().awaited->wait();
    resume();
  }
  resume();
}

// Goes on where something has arrived; reports what went wrong on the way.
void Exchange::resume() {
  if (!handle_.done()) handle_.resume();
  if (handle_.done() && handle_.promise().error) {
    std::rethrow_exception(std::exchange(handle_.promise().error, nullptr));
  }
}

}  // namespace tandem::comm::detail
