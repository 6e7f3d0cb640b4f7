#pragma once
// libcudnn.so.9, opened when it is needed: a program that was linked against it would not start without it.

#include <string>

namespace tandem::kernels::cuda {

// Opens it, once, and finds all its functions that we call; from then on they can be called. Returns why that is not
// possible, or nothing.
std::string openCudnn();

}  // namespace tandem::kernels::cuda
