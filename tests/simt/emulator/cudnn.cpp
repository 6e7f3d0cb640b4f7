// A libcudnn.so.9 that knows no attention: it takes every description, and gives the answers that a test asks for, so
// that what we do with them can be tried. The program opens it as it opens the vendor's.
//
// SIMT_CUDNN=unsupported   no engine for any graph (what is not set means this)
//            unwilling     an engine, but no plan of it
//            late          a plan, whose execution fails
//            hungry        a plan that wants 3 GiB of workspace
//            idle          a plan that runs and writes nothing
#include <cudnn.h>

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <map>
#include <string>
#include <vector>

namespace {

struct Descriptor {
  cudnnBackendDescriptorType_t type;
  std::map<int, std::vector<std::int64_t>> attributes;  // those of 8 bytes an element: numbers, pointers, descriptors
};

struct Handle {
  cudaStream_t stream = nullptr;
};

std::string lastMessage;

bool modeIs(const char* mode) {
  const char* const set = std::getenv("SIMT_CUDNN");
  return std::strcmp(set == nullptr ? "unsupported" : set, mode) == 0;
}

cudnnStatus_t refuse(cudnnStatus_t status, const char* message) {
  lastMessage = message;
  return status;
}

Descriptor& at(cudnnBackendDescriptor_t it) { return *static_cast<Descriptor*>(it); }

}  // namespace

// Names and addresses of the tensors of the plan that ran last.
extern "C" int simtCudnnTensors(std::int64_t* names, void** addresses, int room);
namespace {
std::vector<std::int64_t> namesOfLast, addressesOfLast;
}
extern "C" int simtCudnnTensors(std::int64_t* names, void** addresses, int room) {
  const int count = static_cast<int>(namesOfLast.size());
  for (int i = 0; i < count && i < room; ++i) {
    names[i] = namesOfLast[static_cast<std::size_t>(i)];
    addresses[i] = reinterpret_cast<void*>(addressesOfLast[static_cast<std::size_t>(i)]);
  }
  return count;
}

extern "C" {

std::size_t cudnnGetVersion() { return CUDNN_VERSION; }
const char* cudnnGetErrorString(cudnnStatus_t status) {
  if (status == CUDNN_STATUS_SUCCESS) return "CUDNN_STATUS_SUCCESS";
  return status == CUDNN_STATUS_NOT_SUPPORTED ? "CUDNN_STATUS_NOT_SUPPORTED" : "CUDNN_STATUS_EXECUTION_FAILED";
}
void cudnnGetLastErrorString(char* message, std::size_t size) {
  std::strncpy(message, lastMessage.c_str(), size - 1);
  message[size - 1] = 0;
}

cudnnStatus_t cudnnCreate(cudnnHandle_t* handle) {
  *handle = reinterpret_cast<cudnnHandle_t>(new Handle);
  return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnDestroy(cudnnHandle_t handle) {
  delete reinterpret_cast<Handle*>(handle);
  return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnSetStream(cudnnHandle_t handle, cudaStream_t stream) {
  reinterpret_cast<Handle*>(handle)->stream = stream;
  return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnGetStream(cudnnHandle_t handle, cudaStream_t* stream) {
  *stream = reinterpret_cast<Handle*>(handle)->stream;
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnBackendCreateDescriptor(cudnnBackendDescriptorType_t type, cudnnBackendDescriptor_t* made) {
  *made = new Descriptor{type, {}};
  return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnBackendDestroyDescriptor(cudnnBackendDescriptor_t it) {
  delete static_cast<Descriptor*>(it);
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnBackendSetAttribute(cudnnBackendDescriptor_t it, cudnnBackendAttributeName_t name,
                                       cudnnBackendAttributeType_t type, std::int64_t count, const void* elements) {
  if (type == CUDNN_TYPE_INT64 || type == CUDNN_TYPE_VOID_PTR || type == CUDNN_TYPE_BACKEND_DESCRIPTOR) {
    std::vector<std::int64_t>& kept = at(it).attributes[name];
    kept.resize(static_cast<std::size_t>(count));
    if (count > 0) std::memcpy(kept.data(), elements, static_cast<std::size_t>(count) * sizeof(std::int64_t));
  }
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnBackendGetAttribute(cudnnBackendDescriptor_t, cudnnBackendAttributeName_t name,
                                       cudnnBackendAttributeType_t, std::int64_t wanted, std::int64_t* count,
                                       void* elements) {
  std::int64_t number = 0;
  switch (name) {
    case CUDNN_ATTR_ENGINEHEUR_RESULTS:  // descriptors that the caller made are filled in, with nothing here
    case CUDNN_ATTR_ENGINECFG_ENGINE:
      if (count != nullptr) *count = 1;
      return CUDNN_STATUS_SUCCESS;
    case CUDNN_ATTR_ENGINECFG_SHARED_MEMORY_USED: {
      const std::int32_t bytes = 0;
      if (count != nullptr) *count = 1;
      if (elements != nullptr) std::memcpy(elements, &bytes, sizeof bytes);
      return CUDNN_STATUS_SUCCESS;
    }
    case CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE:
      number = modeIs("hungry") ? std::int64_t{3} << 30 : 0;
      break;
    case CUDNN_ATTR_ENGINE_GLOBAL_INDEX:
    case CUDNN_ATTR_OPERATIONGRAPH_ENGINE_GLOBAL_COUNT:
      number = 1;
      break;
    default:
      if (count != nullptr) *count = 0;
      return CUDNN_STATUS_SUCCESS;
  }
  if (count != nullptr) *count = 1;
  if (wanted > 0 && elements != nullptr) std::memcpy(elements, &number, sizeof number);
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnBackendFinalize(cudnnBackendDescriptor_t it) {
  const cudnnBackendDescriptorType_t type = at(it).type;
  if (modeIs("unsupported") && type == CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR) {
    return refuse(CUDNN_STATUS_NOT_SUPPORTED, "no engine of this stand-in has attention");
  }
  if (modeIs("unwilling") && type == CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR) {
    return refuse(CUDNN_STATUS_NOT_SUPPORTED, "this stand-in makes no plan");
  }
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnBackendExecute(cudnnHandle_t, cudnnBackendDescriptor_t, cudnnBackendDescriptor_t pack) {
  if (modeIs("late")) return refuse(CUDNN_STATUS_EXECUTION_FAILED, "this stand-in fails when it is to run");
  namesOfLast = at(pack).attributes[CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS];
  addressesOfLast = at(pack).attributes[CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS];
  return CUDNN_STATUS_SUCCESS;
}

}  // extern "C"
