// simt_runtime.h - shared by simt.cpp and the stand-ins for CUDA libraries; kernels never include it.
#pragma once
#include <chrono>
#include "kernels/cuda/launch.h"
namespace simt {
cudaError_t run_grid(const tandem::kernels::cuda::Grid&, std::string_view kernel, size_t param_bytes,
                     const std::function<void()>& thread, size_t smem_limit);
void set_error(std::string);
// Work of a stream. One that `meets` ends only together with work of other processes, and does not let other streams of
// its own go on meanwhile.
struct Work {
  std::function<cudaError_t()> run;
  bool meets = false;
};
// Queues work on a stream, exactly as a library call would; it may run later (SIMT_STREAMS=lazy).
cudaError_t enqueue(cudaStream_t, std::function<cudaError_t()>, bool meets = false);
// What work that waits for another process has to call: on a GPU the other streams go on by themselves. False where it
// has been let go on itself by other work that waits: then it returns cudaErrorNotReady and is called again, since that
// other work cannot end before it returns, and what it waits for may follow from that.
bool let_others_go_on();
// How long work takes at least, however quick the host is: rates are then those of a device that is made up, and the
// same on every host. SIMT_KERNEL_MILLISECONDS, SIMT_PRODUCT_MILLISECONDS and SIMT_VECTOR_PRODUCT_MILLISECONDS (products
// with one row or column); nothing without them.
enum class Kind { kernel, product, vector_product };
class Pace {
 public:
  explicit Pace(Kind);
  ~Pace();  // waits for the end
  Pace(const Pace&) = delete;
  Pace& operator=(const Pace&) = delete;

 private:
  std::chrono::steady_clock::time_point end_;
};
// True when [p, p+bytes) lies inside one live device (or pinned) allocation.
bool is_device(const void* p, size_t bytes);
}  // namespace simt
