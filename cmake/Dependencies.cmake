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

if(TANDEM_BUILD_TESTS)
  find_package(GTest REQUIRED)
endif()
