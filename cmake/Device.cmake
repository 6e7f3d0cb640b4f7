# What a program computes on besides the CPU, chosen when it is linked: tandem_device is the CUDA kernels and NCCL where
# this build has them, and otherwise what says that they are not there. The tests also link programs with the CUDA
# kernels on an emulated device (tests/simt).
set(cuda_folder ${PROJECT_SOURCE_DIR}/kernels/cuda)
set(nccl_folder ${PROJECT_SOURCE_DIR}/common/comm/nccl)
add_library(tandem_device INTERFACE)

if(TANDEM_CUDA)
  include(cmake/Cudnn.cmake)
  file(GLOB cuda_sources CONFIGURE_DEPENDS ${cuda_folder}/*.cu ${cuda_folder}/*.cpp)
  add_library(tandem_cuda STATIC ${cuda_sources} ${cudnn_sources})
  target_include_directories(tandem_cuda SYSTEM PUBLIC ${CUDAToolkit_INCLUDE_DIRS})
  target_link_libraries(tandem_cuda PRIVATE tandem_compile_options
                        PUBLIC tandem_reference CUDA::cudart_static CUDA::cublasLt)
  if(TARGET cudnn_headers)
    target_link_libraries(tandem_cuda PRIVATE cudnn_headers)
  endif()
  target_link_libraries(tandem_device INTERFACE tandem_cuda)
else()
  tandem_room(without_cuda FOLDER ${PROJECT_SOURCE_DIR}/kernels/without_cuda LIBRARIES tandem_kernels)
  target_link_libraries(tandem_device INTERFACE tandem_without_cuda)
endif()

if(TANDEM_CUDA AND NCCL_INCLUDE_DIR AND NCCL_LIBRARY)
  tandem_room(nccl FOLDER ${nccl_folder} LIBRARIES tandem_comm)
  target_include_directories(tandem_nccl SYSTEM PUBLIC ${NCCL_INCLUDE_DIR} ${CUDAToolkit_INCLUDE_DIRS})
  target_link_libraries(tandem_nccl PUBLIC ${NCCL_LIBRARY})
  target_link_libraries(tandem_device INTERFACE tandem_nccl)
else()
  tandem_room(without_nccl FOLDER ${PROJECT_SOURCE_DIR}/common/comm/without_nccl LIBRARIES tandem_comm)
  target_link_libraries(tandem_device INTERFACE tandem_without_nccl)
endif()
