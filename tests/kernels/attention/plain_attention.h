#pragma once
// Attention as its definition says, in double, one query and one head at a time: what the tests compare with. And
// operands for them: heads with gaps between, in either storage type.

#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "kernels/cpu/operators.h"

namespace tandem::kernels::cpu::test {

// One case: sizes of the heads, what a query may see, and how it is stored and computed.
struct Sizes {
  std::int64_t batch = 1, time = 1, heads = 1, kvHeads = 1, headSize = 8;
  std::int64_t window = 0;
  std::int64_t documentLength = 0;  // a new document begins at each multiple; 0: one document
  DType type = DType::f32;
  int threads = 1;

  std::string text() const {
    return "batch " + std::to_string(batch) + ", time " + std::to_string(time) + ", heads " + std::to_string(heads) +
           "/" + std::to_string(kvHeads) + " x " + std::to_string(headSize) + ", window " + std::to_string(window) +
           ", documents " + std::to_string(documentLength) + ", " + base::name(type) + ", threads " +
           std::to_string(threads);
  }
  float scale() const { return 1.0f / std::sqrt(static_cast<float>(headSize)); }
  std::int32_t documentStart(std::int64_t t) const {
    return static_cast<std::int32_t>(documentLength > 0 ? t / documentLength * documentLength : 0);
  }
  std::int64_t firstKey(std::int64_t t) const {
    const std::int64_t start = documentStart(t);
    return window > 0 && t - window + 1 > start ? t - window + 1 : start;
  }
};

// A tensor [batch, time, heads, headSize] with its own memory, padded: rows are wider than the heads need.
class HeadsTensor {
 public:
  HeadsTensor(std::int64_t batch, std::int64_t time, std::int64_t heads, std::int64_t headSize, DType type)
      : shape_{batch, time, heads, headSize},
        strides_{time * (heads * headSize + padding), heads * headSize + padding, headSize, 1},
        type_(type),
        floats_(static_cast<std::size_t>(batch * strides_[0]), sentinel),
        halves_(floats_.size(), base::BFloat16(sentinel)) {}

  template <class Random>
  void fill(Random& random) {
    std::normal_distribution<float> normal;
    forEach([&](std::size_t i) { set(i, normal(random)); });
  }
  ConstTensorView view() const { return {data(), type_, shape_, strides_}; }
  TensorView view() { return {const_cast<void*>(data()), type_, shape_, strides_}; }

  double at(std::int64_t b, std::int64_t t, std::int64_t h, std::int64_t i) const { return get(index(b, t, h, i)); }
  void set(std::int64_t b, std::int64_t t, std::int64_t h, std::int64_t i, float value) {
    set(index(b, t, h, i), value);
  }

  // All elements of the heads, in order, without the gaps.
  std::vector<double> values() const {
    std::vector<double> result;
    forEach([&](std::size_t i) { result.push_back(get(i)); });
    return result;
  }
  // The gaps between rows hold what they held at first.
  bool gapsUntouched() const {
    for (std::int64_t row = 0; row < shape_[0] * shape_[1]; ++row) {
      for (std::int64_t i = strides_[1] - padding; i < strides_[1]; ++i) {
        if (get(static_cast<std::size_t>(row * strides_[1] + i)) != sentinel) return false;
      }
    }
    return true;
  }

 private:
  static constexpr std::int64_t padding = 5;
  static constexpr float sentinel = 77.0f;

  std::size_t index(std::int64_t b, std::int64_t t, std::int64_t h, std::int64_t i) const {
    return static_cast<std::size_t>(b * strides_[0] + t * strides_[1] + h * strides_[2] + i);
  }
  const void* data() const {
    return type_ == DType::f32 ? static_cast<const void*>(floats_.data()) : static_cast<const void*>(halves_.data());
  }
  double get(std::size_t i) const { return type_ == DType::f32 ? floats_[i] : static_cast<float>(halves_[i]); }
  void set(std::size_t i, float value) {
    floats_[i] = value;
    halves_[i] = base::BFloat16(value);
  }
  template <class Body>
  void forEach(const Body& body) const {
    for (std::int64_t b = 0; b < shape_[0]; ++b) {
      for (std::int64_t t = 0; t < shape_[1]; ++t) {
        for (std::int64_t i = 0; i < shape_[2] * shape_[3]; ++i) body(index(b, t, 0, i));
      }
    }
  }

  Shape shape_, strides_;
  DType type_;
  std::vector<float> floats_;
  std::vector<base::BFloat16> halves_;
};

// Weights of the softmax of one query over keys firstKey(t)..t, and the logarithm of its denominator.
struct PlainSoftmax {
  std::vector<double> weights;
  double logSumExp = 0;
};

inline double dot(const HeadsTensor& a, std::int64_t timeA, std::int64_t headA, const HeadsTensor& b,
                  std::int64_t timeB, std::int64_t headB, std::int64_t batch, std::int64_t size) {
  double sum = 0;
  for (std::int64_t i = 0; i < size; ++i) sum += a.at(batch, timeA, headA, i) * b.at(batch, timeB, headB, i);
  return sum;
}

inline PlainSoftmax plainSoftmax(const Sizes& sizes, const HeadsTensor& query, const HeadsTensor& key, std::int64_t b,
                                 std::int64_t t, std::int64_t h) {
  PlainSoftmax result;
  double largest = -std::numeric_limits<double>::infinity(), sum = 0;
  for (std::int64_t s = sizes.firstKey(t); s <= t; ++s) {
    result.weights.push_back(static_cast<double>(sizes.scale()) *
                             dot(query, t, h, key, s, h * sizes.kvHeads / sizes.heads, b, sizes.headSize));
    largest = std::max(largest, result.weights.back());
  }
  for (double& weight : result.weights) sum += weight = std::exp(weight - largest);
  for (double& weight : result.weights) weight /= sum;
  result.logSumExp = largest + std::log(sum);
  return result;
}

}  // namespace tandem::kernels::cpu::test
