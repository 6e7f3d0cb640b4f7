#pragma once
// An exchange written as a coroutine: one function that reads from top to bottom, and waits for messages by co_await
// while its caller computes. test() lets it go on as far as what has arrived allows, wait() to its end.

#include <coroutine>
#include <exception>
#include <utility>

#include "common/comm/communicator.h"

namespace tandem::comm::detail {

class Exchange : public Request {
 public:
  struct promise_type;
  using Handle = std::coroutine_handle<promise_type>;

  struct Arrival {
    Request& request;
    promise_type& promise;
    bool await_ready() const { return request.test(); }
    void await_suspend(Handle) const { promise.awaited = &request; }
    void await_resume() const {}
  };
  struct promise_type {
    Request* awaited = nullptr;
    std::exception_ptr error;

    Exchange get_return_object() { return Exchange(Handle::from_promise(*this)); }
    std::suspend_never initial_suspend() const { return {}; }
    std::suspend_always final_suspend() const noexcept { return {}; }
    void return_void() const {}
    void unhandled_exception() { error = std::current_exception(); }
    Arrival await_transform(Request& request) { return {request, *this}; }
  };

  Exchange(Exchange&& other) noexcept : handle_(std::exchange(other.handle_, {})) {}
  Exchange& operator=(Exchange&&) = delete;
  // Waits, since buffers are still in use; not while an exception passes, when the ranks no longer agree: then the
  // library may still write into what the coroutine holds, and it is left as it is.
  ~Exchange() override;

  bool test() override;
  void wait() override;

 private:
  explicit Exchange(Handle handle) : handle_(handle) {}
  void resume();

  Handle handle_;
};

}  // namespace tandem::comm::detail
