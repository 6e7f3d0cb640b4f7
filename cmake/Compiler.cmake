# Flags that every target of ours is compiled with, carried by one interface target.
#
# No -march: the binaries run on any x86-64 or aarch64 machine; kernels choose their instructions at run time.
add_library(tandem_compile_options INTERFACE)
set(tandem_warnings -Wall -Wextra -Wpedantic -Wshadow -Wconversion -Wsign-conversion -Wnon-virtual-dtor -Woverloaded-virtual
  -Wno-missing-field-initializers  # what a designated initialiser leaves out has its default
  -Werror)
target_compile_options(tandem_compile_options INTERFACE
  "$<$<COMPILE_LANGUAGE:CXX>:${tandem_warnings};-fno-math-errno>"
  "$<$<COMPILE_LANGUAGE:CUDA>:--Werror=all-warnings;-Xcompiler=-Wall,-Wextra,-Wno-missing-field-initializers>")
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 13)
  # GCC 12 warns of overlapping copies in "text" + std::string, wrongly (GCC bug 105651).
  target_compile_options(tandem_compile_options INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-Wno-restrict>)
endif()
target_include_directories(tandem_compile_options INTERFACE ${PROJECT_SOURCE_DIR})

if(TANDEM_SANITIZE)
  add_compile_definitions(TANDEM_SANITIZED)
endif()
if(TANDEM_SANITIZE STREQUAL "address")
  # Null pointers are AddressSanitizer's find too, and pointers that run over an address are not used before it finds them;
  # leaving these checks out takes more than a third off the time to compile.
  add_compile_options(-fsanitize=address,undefined
                      -fno-sanitize=null,object-size,vptr,nonnull-attribute,returns-nonnull-attribute,pointer-overflow
                      -fno-sanitize-recover=undefined -fno-omit-frame-pointer)
  add_link_options(-fsanitize=address,undefined)
elseif(TANDEM_SANITIZE STREQUAL "thread")
  add_compile_options(-fsanitize=thread -fno-omit-frame-pointer)
  add_link_options(-fsanitize=thread)
elseif(TANDEM_SANITIZE)
  message(FATAL_ERROR "TANDEM_SANITIZE is '${TANDEM_SANITIZE}'; it can be address, thread or empty")
endif()
if(TANDEM_FUZZ)
  if(NOT CMAKE_CXX_COMPILER_ID MATCHES "Clang" OR CMAKE_CXX_COMPILER_VERSION VERSION_LESS 16)
    message(FATAL_ERROR "TANDEM_FUZZ needs clang, which has libFuzzer, from version 16 on, which has std::source_location: "
                        "configure with -DCMAKE_CXX_COMPILER=clang++-16, say")
  endif()
  # Warnings are GCC's matter, which every commit is built with.
  target_compile_options(tandem_compile_options INTERFACE -w)
  add_compile_options(-fsanitize=fuzzer-no-link,address,undefined -fno-sanitize-recover=undefined
                      -fno-omit-frame-pointer)
  add_link_options(-fsanitize=address,undefined)
endif()
if(TANDEM_COVERAGE)
  add_compile_options(--coverage -fprofile-update=atomic)
  add_link_options(--coverage)
endif()
