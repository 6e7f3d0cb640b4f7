// simt_runtime.h - shared by simt.cpp and the stand-ins for CUDA libraries; kernels never include it.
#pragma once
#include "kernels/cuda/launch.h"
namespace simt {
cudaError_t run_grid(const tandem::kernels::cuda::Grid&, std::string_view kernel, size_t param_bytes,
                     const std::function<void()>& thread, size_t smem_limit);
void set_error(std::string);
// Queues work on a stream, exactly as a library call would; it may run later (SIMT_STREAMS=lazy).
cudaError_t enqueue(cudaStream_t, std::function<cudaError_t()>);
// True when [p, p+bytes) lies inside one live device (or pinned) allocation.
bool is_device(const void* p, size_t bytes);
}  // namespace simt
