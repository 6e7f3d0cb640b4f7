#include "common/graph/detail/operator_entry.h"

#include "common/base/error.h"

namespace tandem::graph::detail {
namespace {

CheckedOperand operand(const Program& program, const std::vector<Operand>& names, const std::vector<TensorId>& ids,
                       int index) {
  const auto place = static_cast<std::size_t>(index);
  return {names[place].name, ids[place] == none ? nullptr : &program.tensor(ids[place])};
}

}  // namespace

CheckedOperand Checker::input(int index) const {
  return operand(program_, entryOf(node_.op).inputs, node_.inputs, index);
}

CheckedOperand Checker::output(int index) const {
  return operand(program_, entryOf(node_.op).outputs, node_.outputs, index);
}

std::string Checker::place() const {
  std::string text = "node " + std::to_string(index_) + " (" + name(node_.op);
  for (const TensorId id : node_.outputs) {
    if (id < 0 || static_cast<std::size_t>(id) >= program_.tensors().size()) continue;
    return text + ", writes '" + program_.tensor(id).name + "')";
  }
  return text + ")";
}

void Checker::expect(bool holds, const std::string& rule) const {
  if (!holds) throw base::Error(base::ErrorKind::usage, place() + ": " + rule);
}

void Checker::expect(bool holds, const CheckedOperand& operand, const std::string& rule) const {
  if (holds) return;
  throw base::Error(base::ErrorKind::usage, place() + ": " + operand.name + " '" + operand.tensor->name + "' is " +
                                                base::name(operand.type()) + " " + operand.shape().text() +
                                                ", but must be " + rule);
}

void Checker::expectStorage(const CheckedOperand& operand) const {
  const DType type = operand.type();
  expect(type == DType::f32 || type == DType::bf16 || type == DType::f16, operand, "float32, bfloat16 or float16");
}

void Checker::expectType(const CheckedOperand& operand, DType type) const {
  expect(operand.type() == type, operand, base::name(type));
}

void Checker::expectSame(const CheckedOperand& operand, const CheckedOperand& model) const {
  expect(operand.type() == model.type() && operand.shape() == model.shape(), operand,
         std::string("like ") + model.name + ": " + base::name(model.type()) + " " + model.shape().text());
}

void Checker::expectShape(const CheckedOperand& operand, DType type, const Shape& shape) const {
  if (!operand) return;
  expect(operand.type() == type && operand.shape() == shape, operand,
         std::string(base::name(type)) + " " + shape.text());
}

void Checker::expectCount(const CheckedOperand& operand, DType type, std::int64_t count,
                          const std::string& meaning) const {
  expect(operand.type() == type && operand.shape().count() == count, operand,
         std::string(base::name(type)) + " with " + std::to_string(count) + " elements, " + meaning);
}

void Checker::expectTogether(const CheckedOperand& one, const CheckedOperand& other) const {
  expect(static_cast<bool>(one) == static_cast<bool>(other),
         std::string(one.name) + " and " + other.name + " must be given together or not at all");
}

}  // namespace tandem::graph::detail
