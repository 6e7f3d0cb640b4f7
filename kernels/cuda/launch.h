#pragma once
// The one header that every kernel source includes: how kernels are started and how shared memory is declared, such
// that the same source is compiled by nvcc for a GPU and by a C++ compiler for the emulator of tests/simt.
//
//   __global__ void __launch_bounds__(256) k(const float* x, int n) {
//     SHARED_ARRAY(float, part, [8][33]);     // __shared__ float part[8][33]
//     SHARED_DYNAMIC(float, tile);            // extern __shared__, aligned to 1024 bytes
//   }
//   check(launch<k>({grid, block, sharedBytes, stream}, x, n), "k");
//
// Never <<<>>>: launch takes the kernel as a template argument, so that its name and the place of the launch stand in
// every error, and opts in to shared memory above 48 KiB by itself. Kernels cannot be overloaded.

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>
#include <device_launch_parameters.h>  // declares threadIdx and friends before the emulator's macros hide them
#include <vector_functions.h>

#include <cstdint>
#include <source_location>
#include <type_traits>
#include <utility>

namespace tandem::kernels::cuda {

// The shape of a launch; the constructor records where it was written.
struct Grid {
  dim3 grid, block;
  std::size_t sharedBytes = 0;
  cudaStream_t stream = nullptr;
  std::source_location where;
  Grid(dim3 grid_, dim3 block_, std::size_t sharedBytes_, cudaStream_t stream_,
       std::source_location where_ = std::source_location::current())
      : grid(grid_), block(block_), sharedBytes(sharedBytes_), stream(stream_), where(where_) {}
};

namespace detail {
template <class Function>
struct Invoke;
}

}  // namespace tandem::kernels::cuda

#if defined(__CUDACC__)
#define SIMT_EMULATED 0
#define SHARED_ARRAY(type, name, ...) __shared__ type name __VA_ARGS__
#define SHARED_DYNAMIC(type, name)                                       \
  extern __shared__ __align__(1024) unsigned char dynamicSharedMemory[]; \
  type* const name = reinterpret_cast<type*>(dynamicSharedMemory)

namespace tandem::kernels::cuda::detail {
template <class... Parameters>
struct Invoke<void(Parameters...)> {
  template <auto* kernel>
  static cudaError_t run(const Grid& grid, Parameters... parameters) {
    if (grid.sharedBytes > 48 * 1024) {
      const cudaError_t error =
          cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel), cudaFuncAttributeMaxDynamicSharedMemorySize,
                               static_cast<int>(grid.sharedBytes));
      if (error != cudaSuccess) return error;
    }
    void* arguments[] = {const_cast<void*>(static_cast<const void*>(&parameters))..., nullptr};
    return cudaLaunchKernel(reinterpret_cast<const void*>(kernel), grid.grid, grid.block, arguments, grid.sharedBytes,
                            grid.stream);
  }
};
}  // namespace tandem::kernels::cuda::detail
#else
#define SIMT_EMULATED 1
#include <simt/device.h>
#endif

namespace tandem::kernels::cuda {

template <auto* kernel, class... Arguments>
cudaError_t launch(const Grid& grid, Arguments&&... arguments) {
  return detail::Invoke<std::remove_pointer_t<decltype(kernel)>>::template run<kernel>(
      grid, std::forward<Arguments>(arguments)...);
}

}  // namespace tandem::kernels::cuda
