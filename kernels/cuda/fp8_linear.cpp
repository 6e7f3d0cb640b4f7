// cuBLASLt multiplies 8-bit floats only as rows by transposed rows, so the backward passes transpose what they
// multiply: gradInput = gradOutput (weight^T)^T and gradWeight = gradOutput^T (input^T)^T.
#include "kernels/cuda/fp8_linear.h"

#include <mutex>
#include <set>

#include "common/base/log.h"
#include "kernels/cuda/fp8_cast.h"

namespace tandem::kernels::cuda {

namespace {

using fp8::Format;

std::string whyNot(const ConstTensorView& left, const ConstTensorView& right, const Context& context) {
  const std::string obstacle = whyNoFp8(*context.device);
  if (!obstacle.empty()) return obstacle;
  if (left.type != DType::bf16 && left.type != DType::f16) {
    return std::string("it is stored as ") + base::name(left.type) + ", not in 16 bits";
  }
  for (const ConstTensorView* operand : {&left, &right}) {
    if (operand->shape.count() == 0) return "it is empty";
    if (operand->shape.rows() % 16 != 0 || operand->shape.last() % 16 != 0) {
      return "an operand is [" + std::to_string(operand->shape.rows()) + ", " + std::to_string(operand->shape.last()) +
             "], not of multiples of 16";
    }
    if (reinterpret_cast<std::uintptr_t>(operand->data) % 16 != 0) return "an operand does not lie at 16 bytes";
  }
  return "";
}

void tell(const char* operatorName, const std::string& obstacle) {
  static std::mutex mutex;
  static std::set<std::string> told;
  const std::lock_guard lock(mutex);
  if (told.insert(obstacle).second) {
    TANDEM_LOG(info) << "8-bit products: " << operatorName
                     << " (and any other call like it) keeps 16 bits: " << obstacle;
  }
}

// One operand of a product: where it comes from, and where its scale and largest value are in the state.
struct Source {
  const ConstTensorView& from;
  Format format;
  bool transposed;
  fp8::Place scale;
  bool raises;  // its largest value is noted
};

void replaceOperands(const char* operatorName, const TensorView& state, const Source& left, const Source& right,
                     Product& product, Context& context) {
  if (!state) return;
  const std::string obstacle = whyNot(left.from, right.from, context);
  if (!obstacle.empty()) return tell(operatorName, obstacle);
  auto* const values = static_cast<float*>(state.data);
  const auto cast = [&](const Source& source, Fp8Slot slot) {
    float* const largest = source.raises ? values + source.scale + fp8::inputLargest : nullptr;
    return castToFp8(source.from, source.format, source.transposed, values + source.scale, largest, slot, context);
  };
  Product made = product;
  made.left = cast(left, Fp8Slot::left);
  made.right = cast(right, Fp8Slot::right);
  made.transposeLeft = false;
  made.transposeRight = true;
  if (made.vector != nullptr) made.epilogue = Epilogue::bias;
  if (!context.matrixProduct->offers(made)) {
    return tell(operatorName, context.matrixProduct->name() + " has no algorithm for operands of " +
                                  std::to_string(made.left.rows) + " and " + std::to_string(made.right.rows) +
                                  " rows of " + std::to_string(made.left.columns));
  }
  made.epilogue = product.epilogue;
  product = made;
}

}  // namespace

std::string whyNoFp8(const DeviceProperties& device) {
  if (device.major > 8 || (device.major == 8 && device.minor >= 9)) return "";
  return device.name + " is sm_" + std::to_string(device.major) + std::to_string(device.minor) +
         ", and products of 8-bit floats begin with sm_89";
}

void takeFp8Operands(const Linear& call, Product& product, Context& context) {
  product.fastSums = static_cast<bool>(call.fp8);
  replaceOperands("Linear", call.fp8, {call.input, Format::e4m3, false, fp8::inputScale, true},
                  {call.weight, Format::e4m3, false, fp8::weightScale, true}, product, context);
  product.fastSums = product.left.fp8.has_value();
}

void takeFp8Operands(const LinearBackwardInput& call, Product& product, Context& context) {
  replaceOperands("LinearBackwardInput", call.fp8, {call.gradOutput, Format::e5m2, false, fp8::gradientScale, true},
                  {call.weight, Format::e4m3, true, fp8::weightScale, false}, product, context);
}

void takeFp8Operands(const LinearBackwardWeight& call, Product& product, Context& context) {
  replaceOperands("LinearBackwardWeight", call.fp8, {call.gradOutput, Format::e5m2, true, fp8::gradientScale, true},
                  {call.input, Format::e4m3, true, fp8::inputScale, false}, product, context);
}

}  // namespace tandem::kernels::cuda
