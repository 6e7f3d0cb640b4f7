#pragma once
// A case of the operator harness: operands with shapes and random contents, and the operator calls over them.
//
// A case is written once and serves every use: it is run on each backend and compared with the reference, its gradients
// are checked by finite differences, its time is measured. So it holds no memory and no backend, only the recipe:
//
//   Case c("activation", "gelu_17x65");
//   c.tensor("input", {17, 65}, normal());           // drawn at random
//   c.tensor("gradOutput", {17, 65}, normal());
//   c.result("output", {17, 65});                    // to be written
//   c.result("gradInput", {17, 65});
//   c.step("Activation", flops, [](Operands& o, Backend& b, Stream& s) {
//     b.run(Activation{ActivationKind::geluTanh, o.in("input"), o.out("output")}, s);
//   });
//   c.step("ActivationBackward", flops, ...);
//   c.loss("output", "gradOutput");                  // gradOutput is the gradient of the loss by output,
//   c.derivative("input", "gradInput");              // and then gradInput that by input
//
// What a step asks for by out() it may write, and must write completely; all else must stay as it was.

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "common/base/random.h"
#include "kernels/backend.h"

namespace tandem::kernels::test {

// Draws the contents of an operand, as doubles, in the order of its elements.
using Draw = std::function<void(base::RandomStream&, std::vector<double>&)>;
Draw normal(double deviation = 1, double mean = 0);
Draw uniformIndex(std::int64_t bound);                 // integers in [0, bound)
Draw targets(std::int64_t bound, double maskedShare);  // the same, some of them -1
Draw constant(double value);
Draw values(std::vector<double> given);

// The storage type of a case's activations and weights, which the harness varies, and the types that stay.
enum class Storage {
  varied,   // what the harness asks for: float32, bfloat16, float16; float64 when differentiating
  single,   // float32 by contract; float64 when differentiating
  index,    // int32
  wide,     // float64 by contract
  half,     // bfloat16 by contract
  float16,  // by contract
  codes,    // uint8: of quantised weights, which begin at multiples of 16 bytes
};

struct Operand {
  std::string name;
  std::string buffer;  // operands that share memory have one buffer
  Storage storage = Storage::varied;
  Shape shape;
  Shape strides;            // in elements
  std::int64_t offset = 0;  // of the first element in the buffer
  Draw draw;                // none: a result, whose memory begins as NaN
  bool isTable = false;     // looked up row by row: a step touches no more of it than of its other operands
};

// The views of a case's operands on one backend, as a step asks for them; an operand the case lacks is a null view.
class Operands {
 public:
  void add(const std::string& name, const TensorView& view) { views_[name] = view; }
  ConstTensorView in(const std::string& name);
  TensorView out(const std::string& name);
  bool has(const std::string& name) const { return views_.contains(name); }

  // What was asked for since the last forget().
  const std::set<std::string>& read() const { return read_; }
  const std::set<std::string>& written() const { return written_; }
  void forget();

 private:
  std::map<std::string, TensorView> views_;
  std::set<std::string> read_, written_;
};

using Run = std::function<void(Operands&, Backend&, Stream&)>;

struct Step {
  std::string operatorName;
  double flops = 0;  // floating point operations of the formula, a multiply-add being two
  Run run;
};

class Case {
 public:
  Case(std::string family, std::string variant) : family_(std::move(family)), variant_(std::move(variant)) {}

  Case& tensor(const std::string& name, const Shape& shape, Draw draw) {
    return add({name, name, Storage::varied, shape, {}, 0, std::move(draw)});
  }
  Case& single(const std::string& name, const Shape& shape, Draw draw) {
    return add({name, name, Storage::single, shape, {}, 0, std::move(draw)});
  }
  Case& index(const std::string& name, const Shape& shape, Draw draw) {
    return add({name, name, Storage::index, shape, {}, 0, std::move(draw)});
  }
  Case& result(const std::string& name, const Shape& shape, Storage storage = Storage::varied) {
    return add({name, name, storage, shape, {}, 0, nullptr});
  }
  // A result in the memory of another operand of the same shape and type.
  Case& inPlace(const std::string& name, const std::string& of);
  // As tensor(), for one that is looked up row by row.
  Case& table(const std::string& name, const Shape& shape, Draw draw) {
    tensor(name, shape, std::move(draw)).operands.back().isTable = true;
    return *this;
  }
  // Everything else, like slices of a larger buffer. Empty strides mean dense ones.
  Case& add(Operand operand);

  Case& step(const std::string& operatorName, double flops, Run run) {
    steps.push_back({operatorName, flops, std::move(run)});
    return *this;
  }
  // The loss that is differentiated is the sum of outputs times their gradients (one number may scale all).
  Case& loss(const std::string& output, const std::string& gradient) {
    losses.emplace_back(output, gradient);
    return *this;
  }
  Case& derivative(const std::string& input, const std::string& gradient) {
    derivatives.emplace_back(input, gradient);
    return *this;
  }
  // Largest allowed error, relative to the magnitude of the element and of the operand's typical element; `half` is
  // that of bfloat16; float16 with its three bits more may err by a fourth of it, or as float32.
  Case& tolerance(double single, double half) {
    singleTolerance = single;
    halfTolerance = half;
    return *this;
  }
  Case& onlySingle() {
    types = {DType::f32};
    return *this;
  }

  std::string name() const { return family_ + "_" + variant_; }
  const std::string& family() const { return family_; }
  const Operand& operand(const std::string& operandName) const;

  std::vector<Operand> operands;
  std::vector<Step> steps;
  std::vector<std::pair<std::string, std::string>> losses, derivatives;
  std::vector<DType> types = {DType::f32, DType::bf16, DType::f16};
  double singleTolerance = 1e-5, halfTolerance = 1e-2;
  double smallestMagnitude = 0;  // by which errors are judged at least, where results cancel to nothing
  double differenceStep = 1e-5;  // of finite differences; well below the scale on which the operator bends

 private:
  std::string family_, variant_;
};

// All cases that are compared and differentiated, and the larger ones that are timed. A family of operators has a file
// of its own that fills both.
struct Registry {
  std::vector<Case> cases;
  std::vector<Case> timed;
};
const Registry& registry();

void addEmbeddingCases(Registry&);
void addNormCases(Registry&);
void addLinearCases(Registry&);
void addQuantisedCases(Registry&);
void addActivationCases(Registry&);
void addRotaryCases(Registry&);
void addAttentionCases(Registry&);
void addCrossEntropyCases(Registry&);
void addOptimizerCases(Registry&);
void addFlatCases(Registry&);
void addDropoutCases(Registry&);
void addRescaleCases(Registry&);

}  // namespace tandem::kernels::test
