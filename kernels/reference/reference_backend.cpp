#include <cstdlib>
#include <cstring>

#include "common/base/error.h"
#include "kernels/backend.h"
#include "kernels/host_stream.h"
#include "kernels/reference/operators.h"

namespace tandem::kernels {

namespace {

class ReferenceBackend final : public Backend {
 public:
  std::string name() const override { return "reference"; }
  std::string description() const override { return "reference: one thread, plain loops, sums in double"; }

  void* allocate(std::int64_t bytes) override {
    constexpr std::size_t alignment = 64;
    const std::size_t rounded = (static_cast<std::size_t>(bytes) / alignment + 1) * alignment;
    void* memory = bytes < 0 ? nullptr : std::aligned_alloc(alignment, rounded);
    if (memory == nullptr) {
      throw base::Error(base::ErrorKind::device, "cannot allocate " + std::to_string(bytes) + " bytes of memory");
    }
    return memory;
  }
  void release(void* memory) override { std::free(memory); }
  void copyToDevice(void* target, const void* source, std::int64_t bytes, Stream&) override {
    if (bytes > 0) std::memcpy(target, source, static_cast<std::size_t>(bytes));
  }
  void copyToHost(void* target, const void* source, std::int64_t bytes, Stream&) override {
    if (bytes > 0) std::memcpy(target, source, static_cast<std::size_t>(bytes));
  }
  std::unique_ptr<Stream> makeStream() override { return std::make_unique<HostStream>(); }

  void run(const Embedding& op, Stream&) override { reference::run(op); }
  void run(const EmbeddingBackward& op, Stream&) override { reference::run(op); }
  void run(const Norm& op, Stream&) override { reference::run(op); }
  void run(const NormBackward& op, Stream&) override { reference::run(op); }
  void run(const Linear& op, Stream&) override { reference::run(op); }
  void run(const LinearBackwardInput& op, Stream&) override { reference::run(op); }
  void run(const LinearBackwardWeight& op, Stream&) override { reference::run(op); }
  void run(const QuantisedLinear& op, Stream&) override { reference::run(op); }
  void run(const QuantisedEmbedding& op, Stream&) override { reference::run(op); }
  void run(const Dequantise& op, Stream&) override { reference::run(op); }
  void run(const Activation& op, Stream&) override { reference::run(op); }
  void run(const ActivationBackward& op, Stream&) override { reference::run(op); }
  void run(const Add& op, Stream&) override { reference::run(op); }
  void run(const Dropout& op, Stream&) override { reference::run(op); }
  void run(const RowNorms& op, Stream&) override { reference::run(op); }
  void run(const Rescale& op, Stream&) override { reference::run(op); }
  void run(const RescaleBackward& op, Stream&) override { reference::run(op); }
  void run(const Rotary& op, Stream&) override { reference::run(op); }
  void run(const RotaryBackward& op, Stream&) override { reference::run(op); }
  void run(const Attention& op, Stream&) override { reference::run(op); }
  void run(const AttentionBackward& op, Stream&) override { reference::run(op); }
  void run(const MergeAttention& op, Stream&) override { reference::run(op); }
  void run(const CachedAttention& op, Stream&) override { reference::run(op); }
  void run(const LinearCrossEntropy& op, Stream&) override { reference::run(op); }
  void run(const PartialCrossEntropy& op, Stream&) override { reference::run(op); }
  void run(const MergeCrossEntropy& op, Stream&) override { reference::run(op); }
  void run(const PartialCrossEntropyBackward& op, Stream&) override { reference::run(op); }
  void run(const AdamW& op, Stream&) override { reference::run(op); }
  void run(const NewtonSchulz& op, Stream&) override { reference::run(op); }
  void run(const SquaredNorm& op, Stream&) override { reference::run(op); }
  void run(const Scale& op, Stream&) override { reference::run(op); }
  void run(const Axpy& op, Stream&) override { reference::run(op); }
  void run(const Cast& op, Stream&) override { reference::run(op); }
  void run(const Fill& op, Stream&) override { reference::run(op); }
};

}  // namespace

std::unique_ptr<Backend> makeReferenceBackend() { return std::make_unique<ReferenceBackend>(); }

}  // namespace tandem::kernels
