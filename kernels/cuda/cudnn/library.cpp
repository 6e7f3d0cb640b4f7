// The functions of cuDNN under their own names, each handed on to the library that openCudnn() opened. cudnn-frontend
// could open it too, but would then open another CUDA runtime besides the one that we are linked with.
#include "kernels/cuda/cudnn/library.h"

#include <cudnn.h>
#include <dlfcn.h>
#include <nvrtc.h>

namespace tandem::kernels::cuda {

namespace {

struct Functions {
  decltype(&cudnnCreate) create = nullptr;
  decltype(&cudnnDestroy) destroy = nullptr;
  decltype(&cudnnGetVersion) getVersion = nullptr;
  decltype(&cudnnGetErrorString) getErrorString = nullptr;
  decltype(&cudnnGetLastErrorString) getLastErrorString = nullptr;
  decltype(&cudnnGetStream) getStream = nullptr;
  decltype(&cudnnSetStream) setStream = nullptr;
  decltype(&cudnnBackendCreateDescriptor) createDescriptor = nullptr;
  decltype(&cudnnBackendDestroyDescriptor) destroyDescriptor = nullptr;
  decltype(&cudnnBackendSetAttribute) setAttribute = nullptr;
  decltype(&cudnnBackendGetAttribute) getAttribute = nullptr;
  decltype(&cudnnBackendFinalize) finalize = nullptr;
  decltype(&cudnnBackendExecute) execute = nullptr;
} functions;

constexpr const char* libraryName = "libcudnn.so.9";

// The name of the first function that is missing; empty if none is.
std::string findFunctions(void* library) {
  std::string missing;
  const auto find = [&](auto& function, const char* name) {
    function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(dlsym(library, name));
    if (function == nullptr && missing.empty()) missing = name;
  };
  find(functions.create, "cudnnCreate");
  find(functions.destroy, "cudnnDestroy");
  find(functions.getVersion, "cudnnGetVersion");
  find(functions.getErrorString, "cudnnGetErrorString");
  find(functions.getLastErrorString, "cudnnGetLastErrorString");
  find(functions.getStream, "cudnnGetStream");
  find(functions.setStream, "cudnnSetStream");
  find(functions.createDescriptor, "cudnnBackendCreateDescriptor");
  find(functions.destroyDescriptor, "cudnnBackendDestroyDescriptor");
  find(functions.setAttribute, "cudnnBackendSetAttribute");
  find(functions.getAttribute, "cudnnBackendGetAttribute");
  find(functions.finalize, "cudnnBackendFinalize");
  find(functions.execute, "cudnnBackendExecute");
  return missing;
}

std::string open() {
  void* const library = dlopen(libraryName, RTLD_NOW | RTLD_LOCAL);  // stays open until the process ends
  if (library == nullptr) return std::string("cuDNN cannot be opened: ") + dlerror();
  const std::string missing = findFunctions(library);
  return missing.empty() ? ""
                         : std::string(libraryName) + " has no function " + missing + "; it needs cuDNN 9.6 or newer";
}

}  // namespace

std::string openCudnn() {
  static const std::string obstacle = open();
  return obstacle;
}

}  // namespace tandem::kernels::cuda

namespace {
using tandem::kernels::cuda::functions;
}

extern "C" {

cudnnStatus_t cudnnCreate(cudnnHandle_t* handle) { return functions.create(handle); }
cudnnStatus_t cudnnDestroy(cudnnHandle_t handle) { return functions.destroy(handle); }
std::size_t cudnnGetVersion() { return functions.getVersion(); }
const char* cudnnGetErrorString(cudnnStatus_t status) { return functions.getErrorString(status); }
void cudnnGetLastErrorString(char* message, std::size_t size) { functions.getLastErrorString(message, size); }
cudnnStatus_t cudnnGetStream(cudnnHandle_t handle, cudaStream_t* stream) { return functions.getStream(handle, stream); }
cudnnStatus_t cudnnSetStream(cudnnHandle_t handle, cudaStream_t stream) { return functions.setStream(handle, stream); }
cudnnStatus_t cudnnBackendCreateDescriptor(cudnnBackendDescriptorType_t type, cudnnBackendDescriptor_t* made) {
  return functions.createDescriptor(type, made);
}
cudnnStatus_t cudnnBackendDestroyDescriptor(cudnnBackendDescriptor_t it) { return functions.destroyDescriptor(it); }
cudnnStatus_t cudnnBackendSetAttribute(cudnnBackendDescriptor_t it, cudnnBackendAttributeName_t name,
                                       cudnnBackendAttributeType_t type, std::int64_t count, const void* elements) {
  return functions.setAttribute(it, name, type, count, elements);
}
cudnnStatus_t cudnnBackendGetAttribute(cudnnBackendDescriptor_t it, cudnnBackendAttributeName_t name,
                                       cudnnBackendAttributeType_t type, std::int64_t wanted, std::int64_t* count,
                                       void* elements) {
  return functions.getAttribute(it, name, type, wanted, count, elements);
}
cudnnStatus_t cudnnBackendFinalize(cudnnBackendDescriptor_t it) { return functions.finalize(it); }
cudnnStatus_t cudnnBackendExecute(cudnnHandle_t handle, cudnnBackendDescriptor_t plan, cudnnBackendDescriptor_t pack) {
  return functions.execute(handle, plan, pack);
}

// cudnn-frontend names NVRTC for engines of its own, which attention never asks for: nothing is to be linked for them.
nvrtcResult nvrtcCreateProgram(nvrtcProgram*, const char*, const char*, int, const char* const*, const char* const*) {
  return NVRTC_ERROR_INTERNAL_ERROR;
}
nvrtcResult nvrtcDestroyProgram(nvrtcProgram*) { return NVRTC_ERROR_INTERNAL_ERROR; }
nvrtcResult nvrtcCompileProgram(nvrtcProgram, int, const char* const*) { return NVRTC_ERROR_INTERNAL_ERROR; }
nvrtcResult nvrtcGetCUBIN(nvrtcProgram, char*) { return NVRTC_ERROR_INTERNAL_ERROR; }
nvrtcResult nvrtcGetCUBINSize(nvrtcProgram, std::size_t*) { return NVRTC_ERROR_INTERNAL_ERROR; }
nvrtcResult nvrtcGetProgramLog(nvrtcProgram, char*) { return NVRTC_ERROR_INTERNAL_ERROR; }
nvrtcResult nvrtcGetProgramLogSize(nvrtcProgram, std::size_t*) { return NVRTC_ERROR_INTERNAL_ERROR; }

}  // extern "C"
