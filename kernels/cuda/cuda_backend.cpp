// CUDA's side of the contract: memory of the device, streams and events, operators forwarded.
#include <string>

#include "common/base/error.h"
#include "kernels/backend.h"
#include "kernels/cuda/attention_path.h"
#include "kernels/cuda/cudnn_attention.h"
#include "kernels/cuda/fp8_linear.h"
#include "kernels/cuda/matrix_product.h"
#include "kernels/cuda/operators.h"

namespace tandem::kernels {

namespace {

using cuda::check;

class CudaEvent : public Event {
 public:
  explicit CudaEvent(cudaStream_t stream) {
    check(cudaEventCreateWithFlags(&event_, cudaEventDisableTiming), "making an event");
    check(cudaEventRecord(event_, stream), "recording an event");
  }
  ~CudaEvent() override { cudaEventDestroy(event_); }
  CudaEvent(const CudaEvent&) = delete;
  CudaEvent& operator=(const CudaEvent&) = delete;
  bool reached() override {
    const cudaError_t result = cudaEventQuery(event_);
    if (result == cudaErrorNotReady) return false;
    check(result, "asking how far the device is");
    return true;
  }
  void synchronize() override { check(cudaEventSynchronize(event_), "waiting for the device"); }
  cudaEvent_t handle() const { return event_; }

 private:
  cudaEvent_t event_ = nullptr;
};

class CudaStream : public Stream {
 public:
  CudaStream(const cuda::DeviceProperties& device, cuda::MatrixProduct& product, cuda::AttentionPaths& attention,
             cuda::CudnnAttention* cudnn) {
    check(cudaStreamCreateWithFlags(&context_.stream, cudaStreamNonBlocking), "making a stream");
    context_.device = &device;
    context_.matrixProduct = &product;
    context_.attention = &attention;
    context_.cudnn = cudnn;
  }
  ~CudaStream() override {
    cudaStreamSynchronize(context_.stream);  // nothing under way may outlive the scratch; an error was reported before
    cudaStreamDestroy(context_.stream);
  }
  CudaStream(const CudaStream&) = delete;
  CudaStream& operator=(const CudaStream&) = delete;

  void synchronize() override { check(cudaStreamSynchronize(context_.stream), "waiting for the device"); }
  std::unique_ptr<Event> record() override { return std::make_unique<CudaEvent>(context_.stream); }
  void waitFor(const Event& event) override {
    check(cudaStreamWaitEvent(context_.stream, static_cast<const CudaEvent&>(event).handle(), 0),
          "making a stream wait for another");
  }
  void* handle() const override { return context_.stream; }
  cuda::Context& context() { return context_; }

 private:
  cuda::Context context_;
};

class CudaRecording : public Recording {
 public:
  CudaRecording(cuda::Context& context, const std::function<void()>& work)
      : context_(context), generation_(context.scratch.generation()) {
    check(cudaStreamBeginCapture(context.stream, cudaStreamCaptureModeThreadLocal), "beginning to record");
    cudaGraph_t graph = nullptr;
    context.isRecording = true;
    try {
      work();
      context.isRecording = false;
    } catch (...) {
      context.isRecording = false;
      cudaStreamEndCapture(context.stream, &graph);
      if (graph != nullptr) cudaGraphDestroy(graph);
      throw;
    }
    check(cudaStreamEndCapture(context.stream, &graph), "ending a recording");
    const cudaError_t result = cudaGraphInstantiate(&executable_, graph, 0);
    cudaGraphDestroy(graph);
    check(result, "making a recording executable");
  }
  ~CudaRecording() override { cudaGraphExecDestroy(executable_); }
  CudaRecording(const CudaRecording&) = delete;
  CudaRecording& operator=(const CudaRecording&) = delete;

  bool isValid() const override { return generation_ == context_.scratch.generation(); }
  void enqueue() override { check(cudaGraphLaunch(executable_, context_.stream), "starting a recording"); }

 private:
  cuda::Context& context_;
  std::int64_t generation_;
  cudaGraphExec_t executable_ = nullptr;
};

cuda::Context& contextOf(Stream& stream) { return static_cast<CudaStream&>(stream).context(); }

class CudaBackend : public Backend {
 public:
  explicit CudaBackend(const CudaOptions& options)
      : device_(cuda::useDevice(options.device)),
        product_(cuda::makeMatrixProduct({.tf32 = options.tf32, .tune = options.tuneProducts})),
        cudnn_(takeCudnn(options.attention)),
        attention_(options.attention, device_, cudnn_.attention ? cudnn_.attention->name() : "", cudnn_.whyNot) {}

  std::string name() const override { return "cuda"; }
  std::string description() const override {
    return "CUDA " + cudaVersion() + " on " + device_.name + " (device " + std::to_string(device_.ordinal) + ", sm_" +
           std::to_string(device_.major) + std::to_string(device_.minor) + ", " +
           std::to_string(device_.multiprocessors) + " multiprocessors" +
           (device_.isIntegrated ? ", memory shared with the host" : "") + "), matrix products by " + product_->name() +
           ", attention by " + attention_.description();
  }

  std::string deviceIdentifier() const override { return device_.identifier; }
  std::string attentionReport() override { return attention_.report(); }
  std::string whyNoFp8() const override { return cuda::whyNoFp8(device_); }

  void* allocate(std::int64_t bytes) override {
    // A unified-memory machine freezes when it runs out, so there the reserve is kept, not tried.
    if (device_.isIntegrated && bytes > cuda::memoryAmount(device_).free) {
      throw base::Error(base::ErrorKind::device, outOfMemory(bytes, cudaErrorMemoryAllocation));
    }
    void* memory = nullptr;
    const cudaError_t result = cudaMalloc(&memory, static_cast<std::size_t>(bytes > 0 ? bytes : 1));
    if (result != cudaSuccess) {
      cudaGetLastError();  // forgets it
      throw base::Error(base::ErrorKind::device, outOfMemory(bytes, result));
    }
    return memory;
  }
  void release(void* memory) override { check(cudaFree(memory), "releasing memory of the device"); }
  void copyToDevice(void* target, const void* source, std::int64_t bytes, Stream& stream) override {
    copy(target, source, bytes, stream);
  }
  void copyToHost(void* target, const void* source, std::int64_t bytes, Stream& stream) override {
    copy(target, source, bytes, stream);
  }
  std::unique_ptr<Stream> makeStream() override {
    return std::make_unique<CudaStream>(device_, *product_, attention_, cudnn_.attention.get());
  }
  std::unique_ptr<Recording> record(Stream& stream, const std::function<void()>& work) override {
    return std::make_unique<CudaRecording>(contextOf(stream), work);
  }
  bool isHostMemory() const override { return false; }
  void* allocateStaging(std::int64_t bytes) override {
    void* memory = nullptr;
    check(cudaMallocHost(&memory, static_cast<std::size_t>(bytes > 0 ? bytes : 1)),
          "no pinned memory for " + std::to_string(bytes) + " bytes");
    return memory;
  }
  void releaseStaging(void* memory) override { check(cudaFreeHost(memory), "releasing pinned memory"); }

  void run(const Embedding& call, Stream& stream) override { cuda::run(call, contextOf(stream)); }
  void run(const EmbeddingBackward& call, Stream& stream) override { cuda::run(call, contextOf(stream)); }
  void run(const Norm& call, Stream& stream) override { cuda::run(call, contextOf(stream)); }
  void run(const NormBackward& call, Stream& stream) override { cuda::run(call, contextOf(stream)); }
  void run(const Linear& call, Stream& stream) override { cuda::run(call, contextOf(stream)); }
  void run(const LinearBackwardInput& call, Stream& stream) override { cuda::run(call, contextOf(stream)); }
  void run(const LinearBackwardWeight& call, Stream& stream) override { cuda::run(call, contextOf(stream)); }
  void run(const QuantisedLinear& call, Stream& stream) override { cuda::run(call, contextOf(stream)); }
  void run(const QuantisedEmbedding& call, Stream& stream) override { cuda::run(call, contextOf(stream)); }
  void run(const Dequantise& call, Stream& stream) override { cuda::run(call, contextOf(stream)); }
  void run(const Activation& call, Stream& stream) override { cuda::run(call, contextOf(stream)); }
  void run(const ActivationBackward& call, Stream& stream) override { cuda::run(call, contextOf(stream)); }
  void run(const Add& call, Stream& stream) override { cuda::run(call, contextOf(stream)); }
  void run(const Dropout& call, Stream& stream) override { cuda::run(call, contextOf(stream)); }
  void run(const RowNorms& call, Stream& stream) override { cuda::run(call, contextOf(stream)); }
  void run(const Rescale& call, Stream& stream) override { cuda::run(call, contextOf(stream)); }
  void run(const RescaleBackward& call, Stream& stream) override { cuda::run(call, contextOf(stream)); }
  void run(const Rotary& call, Stream& stream) override { cuda::run(call, contextOf(stream)); }
  void run(const RotaryBackward& call, Stream& stream) override { cuda::run(call, contextOf(stream)); }
  void run(const Attention& call, Stream& stream) override { cuda::run(call, contextOf(stream)); }
  void run(const AttentionBackward& call, Stream& stream) override { cuda::run(call, contextOf(stream)); }
  void run(const MergeAttention& call, Stream& stream) override { cuda::run(call, contextOf(stream)); }
  void run(const CachedAttention& call, Stream& stream) override { cuda::run(call, contextOf(stream)); }
  void run(const LinearCrossEntropy& call, Stream& stream) override { cuda::run(call, contextOf(stream)); }
  void run(const PartialCrossEntropy& call, Stream& stream) override { cuda::run(call, contextOf(stream)); }
  void run(const MergeCrossEntropy& call, Stream& stream) override { cuda::run(call, contextOf(stream)); }
  void run(const PartialCrossEntropyBackward& call, Stream& stream) override { cuda::run(call, contextOf(stream)); }
  void run(const AdamW& call, Stream& stream) override { cuda::run(call, contextOf(stream)); }
  void run(const NewtonSchulz& call, Stream& stream) override { cuda::run(call, contextOf(stream)); }
  void run(const SquaredNorm& call, Stream& stream) override { cuda::run(call, contextOf(stream)); }
  void run(const Scale& call, Stream& stream) override { cuda::run(call, contextOf(stream)); }
  void run(const Axpy& call, Stream& stream) override { cuda::run(call, contextOf(stream)); }
  void run(const Cast& call, Stream& stream) override { cuda::run(call, contextOf(stream)); }
  void run(const Fill& call, Stream& stream) override { cuda::run(call, contextOf(stream)); }

 private:
  // Opening cuDNN takes a second, so it is not looked for where it would not be asked.
  static cuda::CudnnSearch takeCudnn(const std::string& path) {
    return path == "auto" || path == "cudnn" ? cuda::findCudnn() : cuda::CudnnSearch{};
  }

  void copy(void* target, const void* source, std::int64_t bytes, Stream& stream) {
    if (bytes == 0) return;
    check(cudaMemcpyAsync(target, source, static_cast<std::size_t>(bytes), cudaMemcpyDefault,
                          contextOf(stream).stream),
          "copying " + std::to_string(bytes) + " bytes between host and device");
  }

  std::string outOfMemory(std::int64_t bytes, cudaError_t result) const {
    if (result != cudaErrorMemoryAllocation) {
      return "asking the device for " + std::to_string(bytes) + " bytes: " + cudaGetErrorString(result);
    }
    const cuda::MemoryAmount amount = cuda::memoryAmount(device_);
    return "no memory for " + std::to_string(bytes) + " bytes on " + device_.name + ": " + std::to_string(amount.free) +
           " of " + std::to_string(amount.total) +
           " bytes are free; use a smaller --micro-batch, a shorter sequence, --recompute, or more ranks";
  }

  cuda::DeviceProperties device_;
  std::unique_ptr<cuda::MatrixProduct> product_;
  cuda::CudnnSearch cudnn_;
  cuda::AttentionPaths attention_;
};

}  // namespace

std::unique_ptr<Backend> makeCudaBackend(const CudaOptions& options) {
  const std::string reason = whyNoCuda();
  if (!reason.empty()) throw base::Error(base::ErrorKind::device, "no CUDA device can be used: " + reason);
  return std::make_unique<CudaBackend>(options);
}

std::string whyNoCuda() { return cuda::whyNoDevice(); }

int cudaDeviceCount() {
  int count = 0;
  return whyNoCuda().empty() && cudaGetDeviceCount(&count) == cudaSuccess ? count : 0;
}

std::string cudaVersion() {
  return std::to_string(CUDART_VERSION / 1000) + "." + std::to_string(CUDART_VERSION % 1000 / 10);
}

}  // namespace tandem::kernels
