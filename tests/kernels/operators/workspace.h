#pragma once
// The memory of a case: its contents on the host, and their copy on a backend.

#include <cstddef>
#include <map>
#include <string>
#include <vector>

#include "tests/kernels/operators/operator_case.h"

namespace tandem::kernels::test {

DType elementType(Storage storage, DType varied);

// What all buffers of a case hold, as bytes of the host.
class Image {
 public:
  // Results and gaps between strides begin as NaN; drawn operands get numbers that depend on the seed and their names
  // only.
  Image(const Case& recipe, DType varied, std::uint64_t seed);

  const Case& recipe() const { return *recipe_; }
  DType varied() const { return varied_; }
  // The elements of an operand in the order of its shape.
  std::vector<double> elements(const std::string& operand) const;
  void setElement(const std::string& operand, std::int64_t index, double value);
  // All elements, in the order of the operand's shape.
  void setElements(const std::string& operand, const std::vector<double>& all);
  // The same numbers in float64.
  Image widened() const;

  std::map<std::string, std::vector<std::byte>> buffers;

 private:
  const Case* recipe_;
  DType varied_;
};

// Calls `visit(place)` for each element of an operand in the order of its shape, with its place in its buffer, counted
// in elements.
template <class Visit>
void visitPlaces(const Operand& operand, const Visit& visit) {
  const int rank = operand.shape.rank();
  const std::int64_t row = rank == 0 ? 1 : operand.shape[rank - 1];
  const std::int64_t step = rank == 0 ? 1 : operand.strides[rank - 1];
  for (std::int64_t first = 0; first < operand.shape.count(); first += row) {
    std::int64_t place = operand.offset;
    std::int64_t index = first / row;
    for (int axis = rank - 2; axis >= 0; --axis) {
      place += index % operand.shape[axis] * operand.strides[axis];
      index /= operand.shape[axis];
    }
    for (std::int64_t i = 0; i < row; ++i) visit(place + i * step);
  }
}

// An image's copy in the memory of a backend, between guards that betray a write outside.
class Placement {
 public:
  // `shift`: elements that every buffer begins behind an aligned address.
  Placement(Backend& backend, const Image& image, int shift = 0);
  ~Placement();
  Placement(const Placement&) = delete;
  Placement& operator=(const Placement&) = delete;

  void run(const Step& step);
  void upload(const Image& image);
  void download(Image& image);
  bool guardsAreIntact();
  Operands operands;

 private:
  struct Block {
    void* memory = nullptr;
    std::int64_t begin = 0, bytes = 0, total = 0;
  };
  Backend& backend_;
  std::unique_ptr<Stream> stream_;
  std::map<std::string, Block> blocks_;
};

}  // namespace tandem::kernels::test
