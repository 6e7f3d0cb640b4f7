// Linear layers of 8-bit operands: the operands rounded to doubles' nearest values of the formats, then as any other.
#include <vector>

#include "kernels/fp8_operands.h"
#include "kernels/reference/access.h"
#include "kernels/reference/operators.h"

namespace tandem::kernels::reference {

namespace {

// Rounded copies of a call's operands, as long as it runs.
class Rounding {
 public:
  ConstTensorView operator()(int number, const ConstTensorView& operand, fp8::Format format, float scale,
                             float& largest) const {
    const Index count = operand.shape.count();
    std::vector<std::byte>& memory = memories_[number];
    memory.resize(static_cast<std::size_t>(count * base::byteSize(operand.type)));
    const TensorView copy(memory.data(), operand.type, operand.shape);
    for (Index i = 0; i < count; ++i) largest = std::max(largest, std::abs(static_cast<float>(load(operand, i))));
    const float factor = scale > 0 ? scale : fp8::scaleFor(format, largest);
    for (Index i = 0; i < count; ++i) {
      store(copy, i, static_cast<double>(fp8::rounded(format, static_cast<float>(load(operand, i)) * factor) / factor));
    }
    return copy;
  }

 private:
  mutable std::vector<std::byte> memories_[2];
};

}  // namespace

void runFp8(const Linear& op) {
  const Rounding rounding;
  run(fp8::withRoundedOperands(op, rounding));
}

void runFp8(const LinearBackwardInput& op) {
  const Rounding rounding;
  run(fp8::withRoundedOperands(op, rounding));
}

// The bias has the gradient as it came.
void runFp8(const LinearBackwardWeight& op) {
  const Rounding rounding;
  LinearBackwardWeight product = fp8::withRoundedOperands(op, rounding);
  product.gradBias = {};
  run(product);
  if (op.gradBias) biasGradient(op);
}

}  // namespace tandem::kernels::reference
