// The CPU's side of the contract: memory of the host, operators forwarded.
#include <omp.h>

#include <cstring>
#include <string>

#include "common/base/error.h"
#include "kernels/backend.h"
#include "kernels/cpu/host_memory.h"
#include "kernels/cpu/matrix_product.h"
#include "kernels/cpu/operators.h"
#include "kernels/cpu/processor.h"
#include "kernels/host_stream.h"

namespace tandem::kernels {

namespace {

class CpuBackend : public Backend {
 public:
  explicit CpuBackend(const CpuOptions& options) : library_(cpu::chooseMatrixLibrary(options.matrixLibrary)) {
    if (options.threads < 0) {
      throw base::Error(base::ErrorKind::usage, "the number of threads is " + std::to_string(options.threads) +
                                                    "; it is at least 1, or 0 for what OpenMP would take");
    }
    context_.threads = options.threads > 0 ? options.threads : omp_get_max_threads();
    product_ = cpu::makeMatrixProduct(library_.name, context_.threads);
    context_.matrixProduct = product_.get();
  }

  std::string name() const override { return "cpu"; }
  std::string description() const override {
    return "CPU, kernels for " + cpu::simdTarget() + ", " + std::to_string(context_.threads) +
           (context_.threads == 1 ? " thread" : " threads") + ", matrix products by " + product_->name() + " (" +
           library_.reason + ")";
  }

  void* allocate(std::int64_t bytes) override {
    void* memory = cpu::allocateHost(bytes);
    if (memory == nullptr) {
      throw base::Error(base::ErrorKind::device, "no memory for " + std::to_string(bytes) +
                                                     " bytes; use a smaller micro batch, a shorter sequence or more "
                                                     "ranks on other machines");
    }
    return memory;
  }
  void release(void* memory) override { cpu::releaseHost(memory); }
  void copyToDevice(void* target, const void* source, std::int64_t bytes, Stream&) override {
    if (bytes > 0) std::memcpy(target, source, static_cast<std::size_t>(bytes));
  }
  void copyToHost(void* target, const void* source, std::int64_t bytes, Stream&) override {
    if (bytes > 0) std::memcpy(target, source, static_cast<std::size_t>(bytes));
  }
  std::unique_ptr<Stream> makeStream() override { return std::make_unique<HostStream>(); }

  void run(const Embedding& call, Stream&) override { cpu::run(call, context_); }
  void run(const EmbeddingBackward& call, Stream&) override { cpu::run(call, context_); }
  void run(const Norm& call, Stream&) override { cpu::run(call, context_); }
  void run(const NormBackward& call, Stream&) override { cpu::run(call, context_); }
  void run(const Linear& call, Stream&) override { cpu::run(call, context_); }
  void run(const LinearBackwardInput& call, Stream&) override { cpu::run(call, context_); }
  void run(const LinearBackwardWeight& call, Stream&) override { cpu::run(call, context_); }
  void run(const QuantisedLinear& call, Stream&) override { cpu::run(call, context_); }
  void run(const QuantisedEmbedding& call, Stream&) override { cpu::run(call, context_); }
  void run(const Dequantise& call, Stream&) override { cpu::run(call, context_); }
  void run(const Activation& call, Stream&) override { cpu::run(call, context_); }
  void run(const ActivationBackward& call, Stream&) override { cpu::run(call, context_); }
  void run(const Add& call, Stream&) override { cpu::run(call, context_); }
  void run(const Dropout& call, Stream&) override { cpu::run(call, context_); }
  void run(const RowNorms& call, Stream&) override { cpu::run(call, context_); }
  void run(const Rescale& call, Stream&) override { cpu::run(call, context_); }
  void run(const RescaleBackward& call, Stream&) override { cpu::run(call, context_); }
  void run(const Rotary& call, Stream&) override { cpu::run(call, context_); }
  void run(const RotaryBackward& call, Stream&) override { cpu::run(call, context_); }
  void run(const Attention& call, Stream&) override { cpu::run(call, context_); }
  void run(const AttentionBackward& call, Stream&) override { cpu::run(call, context_); }
  void run(const MergeAttention& call, Stream&) override { cpu::run(call, context_); }
  void run(const CachedAttention& call, Stream&) override { cpu::run(call, context_); }
  void run(const LinearCrossEntropy& call, Stream&) override { cpu::run(call, context_); }
  void run(const PartialCrossEntropy& call, Stream&) override { cpu::run(call, context_); }
  void run(const MergeCrossEntropy& call, Stream&) override { cpu::run(call, context_); }
  void run(const PartialCrossEntropyBackward& call, Stream&) override { cpu::run(call, context_); }
  void run(const AdamW& call, Stream&) override { cpu::run(call, context_); }
  void run(const NewtonSchulz& call, Stream&) override { cpu::run(call, context_); }
  void run(const SquaredNorm& call, Stream&) override { cpu::run(call, context_); }
  void run(const Scale& call, Stream&) override { cpu::run(call, context_); }
  void run(const Axpy& call, Stream&) override { cpu::run(call, context_); }
  void run(const Cast& call, Stream&) override { cpu::run(call, context_); }
  void run(const Fill& call, Stream&) override { cpu::run(call, context_); }

 private:
  cpu::MatrixLibrary library_;
  std::unique_ptr<cpu::MatrixProduct> product_;
  cpu::Context context_;
};

}  // namespace

std::unique_ptr<Backend> makeCpuBackend(const CpuOptions& options) { return std::make_unique<CpuBackend>(options); }

}  // namespace tandem::kernels
