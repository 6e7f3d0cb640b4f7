# The headers of cuDNN 9 (C) and cudnn-frontend (C++), for attention by cuDNN: the target cudnn_headers where both are
# found. The library itself is opened at run time, so that nothing is linked. Both headers come with NVIDIA's packages
# for the system, and from PyPI (nvidia-cudnn-cu13, nvidia-cudnn-frontend), which have them in folders named `include`.
# The sanitizers' builds go without: cudnn-frontend takes long to compile, and there is nothing of it to run.
if(NOT TARGET cudnn_headers AND NOT TANDEM_SANITIZE)
  find_path(CUDNN_HEADERS cudnn.h HINTS ${CUDAToolkit_INCLUDE_DIRS} ${CUDA_HEADERS} ENV CUDNN_PATH
            PATH_SUFFIXES include DOC "Folder of cudnn.h")
  find_path(CUDNN_FRONTEND_HEADERS cudnn_frontend.h HINTS ${CUDNN_HEADERS} ${CUDAToolkit_INCLUDE_DIRS}
            ENV CUDNN_FRONTEND_PATH PATH_SUFFIXES include DOC "Folder of cudnn_frontend.h")
  if(CUDNN_HEADERS AND CUDNN_FRONTEND_HEADERS)
    message(STATUS "cuDNN: ${CUDNN_HEADERS}, cudnn-frontend: ${CUDNN_FRONTEND_HEADERS}")
    add_library(cudnn_headers INTERFACE)
    target_include_directories(cudnn_headers SYSTEM INTERFACE ${CUDNN_FRONTEND_HEADERS} ${CUDNN_HEADERS})
    target_link_libraries(cudnn_headers INTERFACE ${CMAKE_DL_LIBS})
  else()
    message(STATUS "cuDNN: no attention by cuDNN in this build, since cudnn.h (${CUDNN_HEADERS}) or cudnn_frontend.h "
                   "(${CUDNN_FRONTEND_HEADERS}) was not found; give -DCUDNN_HEADERS= and -DCUDNN_FRONTEND_HEADERS=")
  endif()
endif()

# The sources of attention by cuDNN, or of what says that it is not there.
if(TARGET cudnn_headers)
  file(GLOB cudnn_sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/kernels/cuda/cudnn/*.cpp)
  # It describes graphs, once a shape, and cudnn-frontend takes more than a minute to optimise.
  set_source_files_properties(${PROJECT_SOURCE_DIR}/kernels/cuda/cudnn/attention_graph.cpp PROPERTIES COMPILE_OPTIONS -O1)
else()
  file(GLOB cudnn_sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/kernels/cuda/without_cudnn/*.cpp)
endif()
