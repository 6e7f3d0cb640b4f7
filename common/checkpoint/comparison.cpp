#include "common/checkpoint/comparison.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "common/base/error.h"
#include "common/base/json.h"

namespace tandem::checkpoint {
namespace {

using base::DType;

constexpr std::int64_t blockElements = 1 << 20;

// Walks through a parameter of this many elements: work(begin, count).
template <class Work>
void overBlocks(std::int64_t count, const Work& work) {
  for (std::int64_t begin = 0; begin < count; begin += blockElements) {
    work(begin, std::min(blockElements, count - begin));
  }
}

const StoredParameter* find(const ModelSource& model, const std::string& name) {
  const auto found = std::ranges::find(model.parameters(), name, &StoredParameter::name);
  return found == model.parameters().end() ? nullptr : &*found;
}

ParameterDifference compareOne(const ModelSource& first, const ModelSource& second, const std::string& name) {
  const StoredParameter* const one = find(first, name);
  const StoredParameter* const other = find(second, name);
  ParameterDifference difference{.name = name};
  if (one == nullptr || other == nullptr) {
    difference.problem = "only in the " + std::string(one == nullptr ? "second" : "first");
  } else if (!(one->shape == other->shape)) {
    difference.problem = "is " + one->shape.text() + " in the first, " + other->shape.text() + " in the second";
  }
  if (!difference.problem.empty()) return difference;
  double squares = 0, differenceSquares = 0;
  std::vector<float> left(static_cast<std::size_t>(blockElements)), right(left);
  overBlocks(one->shape.count(), [&](std::int64_t begin, std::int64_t count) {
    first.read(*one, begin, count, DType::f32, left.data());
    second.read(*other, begin, count, DType::f32, right.data());
    for (std::size_t i = 0; i < static_cast<std::size_t>(count); ++i) {
      const double value = static_cast<double>(left[i]), gap = std::abs(value - static_cast<double>(right[i]));
      squares += value * value;
      if (gap == 0) continue;
      ++difference.different;
      differenceSquares += gap * gap;
      if (!(gap <= difference.largest)) difference.largest = gap;  // so that what is no number is not lost
    }
  });
  difference.relative = squares > 0 ? std::sqrt(differenceSquares / squares) : std::sqrt(differenceSquares);
  return difference;
}

}  // namespace

Soundness examine(comm::Communicator& communicator, const ModelSource& model) {
  Soundness soundness;
  const std::vector<StoredParameter>& parameters = model.parameters();
  for (const StoredParameter& parameter : parameters) {
    ++soundness.parameters;
    soundness.bytes += parameter.shape.count() * base::byteSize(parameter.type);
  }
  comm::agreeOn(communicator, [&] {
    std::vector<float> values(static_cast<std::size_t>(blockElements));
    const auto ranks = static_cast<std::size_t>(communicator.size());
    for (auto i = static_cast<std::size_t>(communicator.rank()); i < parameters.size(); i += ranks) {
      overBlocks(parameters[i].shape.count(), [&](std::int64_t begin, std::int64_t count) {
        model.read(parameters[i], begin, count, DType::f32, values.data());
        const auto end = values.begin() + count;
        const auto wrong = std::find_if_not(values.begin(), end, [](float value) { return std::isfinite(value); });
        if (wrong == end) return;
        throw base::Error(base::ErrorKind::badData,
                          "the parameter " + parameters[i].name + " of " + model.place().string() + " holds " +
                              std::to_string(*wrong) + " at element " +
                              std::to_string(begin + (wrong - values.begin())) + ", which is no finite number");
      });
    }
  });
  return soundness;
}

std::vector<ParameterDifference> compare(comm::Communicator& communicator, const ModelSource& first,
                                         const ModelSource& second) {
  std::vector<std::string> names;
  for (const StoredParameter& parameter : first.parameters()) names.push_back(parameter.name);
  for (const StoredParameter& parameter : second.parameters()) {
    if (find(first, parameter.name) == nullptr) names.push_back(parameter.name);
  }
  std::vector<ParameterDifference> differences(names.size());
  const auto ranks = static_cast<std::size_t>(communicator.size());
  nlohmann::json own = nlohmann::json::array();
  comm::agreeOn(communicator, [&] {
    for (auto i = static_cast<std::size_t>(communicator.rank()); i < names.size(); i += ranks) {
      const ParameterDifference each = compareOne(first, second, names[i]);
      own.push_back({each.name, each.problem, each.different, each.largest, each.relative});
    }
  });
  const std::vector<std::string> all = comm::allGatherTexts(communicator, base::jsonText(own));
  for (std::size_t rank = 0; rank < ranks; ++rank) {
    std::size_t i = rank;
    for (const nlohmann::json& each : base::parseJson(all[rank])) {
      // A number that is none has become null on the way.
      const auto number = [](const nlohmann::json& value) { return value.is_null() ? NAN : value.get<double>(); };
      differences[i] = {each[0], each[1], each[2], number(each[3]), number(each[4])};
      i += ranks;
    }
  }
  return differences;
}

}  // namespace tandem::checkpoint
