# Every library that we use, found once, each with a message that says what to install.
# jobscripts/install-deps.sh installs them all.
find_package(PkgConfig REQUIRED)
find_package(Threads REQUIRED)
find_package(OpenMP REQUIRED COMPONENTS CXX)
find_package(MPI REQUIRED COMPONENTS CXX)

set(HDF5_PREFER_PARALLEL TRUE)
find_package(HDF5 REQUIRED COMPONENTS C)
if(NOT HDF5_IS_PARALLEL)
  message(FATAL_ERROR "HDF5 was found without MPI support; install libhdf5-openmpi-dev (run jobscripts/install-deps.sh)")
endif()

find_package(Boost 1.74 REQUIRED COMPONENTS log log_setup thread)
find_package(CLI11 REQUIRED)
find_package(nlohmann_json REQUIRED)
find_package(ZLIB REQUIRED)
pkg_check_modules(HIGHWAY REQUIRED IMPORTED_TARGET libhwy)
pkg_check_modules(XXHASH REQUIRED IMPORTED_TARGET libxxhash)
pkg_check_modules(ZSTD REQUIRED IMPORTED_TARGET libzstd)
pkg_check_modules(UTF8PROC REQUIRED IMPORTED_TARGET libutf8proc)

# Matrix products: oneDNN where there is one (x86-64), a CBLAS everywhere; kernels/cpu chooses at run time.
# (oneDNN's own CMake package asks for OpenCL, which we do not use, so it is found by name.)
find_path(DNNL_INCLUDE_DIR dnnl.h)
find_library(DNNL_LIBRARY dnnl)
pkg_check_modules(OPENBLAS REQUIRED IMPORTED_TARGET openblas)

if(TANDEM_CUDA)
  # sm_80, sm_90 and sm_121 (DGX Spark), and PTX of the first for everything newer.
  set(CMAKE_CUDA_ARCHITECTURES 80 90-real 121-real CACHE STRING "GPUs to compile for")
  find_program(CMAKE_CUDA_COMPILER nvcc HINTS /usr/local/cuda/bin)
  if(NOT CMAKE_CUDA_COMPILER)
    message(FATAL_ERROR "the preset `cuda` needs the CUDA toolkit, 13.0 or newer: no nvcc on PATH or in /usr/local/cuda/bin")
  endif()
  enable_language(CUDA)
  # CMake 3.25.1 does not know that nvcc has C++20.
  if(NOT CMAKE_CUDA20_STANDARD_COMPILE_OPTION)
    set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION "-std=c++20")
    set(CMAKE_CUDA20_EXTENSION_COMPILE_OPTION "-std=c++20")
  endif()
  set(CMAKE_CUDA_STANDARD 20)
  find_package(CUDAToolkit 13.0 REQUIRED)
  # NCCL is optional: without it, ranks exchange device memory over MPI by way of the host.
  find_path(NCCL_INCLUDE_DIR nccl.h HINTS ${CUDAToolkit_INCLUDE_DIRS})
  find_library(NCCL_LIBRARY nccl HINTS ${CUDAToolkit_LIBRARY_DIR})
  if(NCCL_INCLUDE_DIR AND NCCL_LIBRARY)
    message(STATUS "NCCL: ${NCCL_LIBRARY}")
  else()
    message(STATUS "NCCL was not found: several ranks exchange gradients over MPI, through the host's memory")
  endif()
endif()

if(TANDEM_BUILD_TESTS)
  find_package(GTest REQUIRED)
endif()
