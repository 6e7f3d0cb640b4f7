#include "common/checkpoint/detail/layout.h"

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>

#include "common/base/error.h"
#include "common/base/json.h"

namespace tandem::checkpoint::detail {
namespace {

using base::Error;
using base::ErrorKind;
using base::Shape;
using nlohmann::json;

json toJson(const Shape& shape) {
  json extents = json::array();
  for (int axis = 0; axis < shape.rank(); ++axis) extents.push_back(shape[axis]);
  return extents;
}

std::int64_t wholeNumber(const json& value) {
  const bool fits =
      value.is_number_integer() && (!value.is_number_unsigned() || value.get<std::uint64_t>() <= INT64_MAX);
  if (!fits) throw Error(ErrorKind::badData, "in the layout of the checkpoint, a whole number is something else");
  return value.get<std::int64_t>();
}

Shape parseShape(const json& extents, const std::string& name) {
  constexpr std::int64_t limit = std::int64_t{1} << 56;  // elements; keeps every product below in 64 bits
  Shape shape;
  std::int64_t count = 1;
  if (extents.empty() || extents.size() > Shape::maxRank) {
    throw Error(ErrorKind::badData, "the tensor " + name + " has " + std::to_string(extents.size()) +
                                        " axes, not 1 to " + std::to_string(Shape::maxRank));
  }
  for (const json& each : extents) {
    const std::int64_t extent = wholeNumber(each);
    if (extent < 0 || extent > limit || (extent > 0 && count > limit / extent)) {
      throw Error(ErrorKind::badData, "the tensor " + name + " has the impossible extent " + std::to_string(extent));
    }
    count *= extent;
    shape.append(extent);
  }
  return shape;
}

void sortPieces(std::vector<PlacedPiece>& pieces) {
  std::sort(pieces.begin(), pieces.end(),
            [](const PlacedPiece& a, const PlacedPiece& b) { return a.targetBegin < b.targetBegin; });
}

// All runs of the pieces, each as a piece.
std::vector<PlacedPiece> runsOf(const PlacedTensor& tensor) {
  constexpr std::int64_t mostRuns = 1 << 22;  // a run a row of the largest matrix and rank
  std::vector<PlacedPiece> runs;
  std::int64_t count = 0;
  for (const PlacedPiece& piece : tensor.pieces) {
    count += std::min(piece.repeats, mostRuns + 1);
    if (count > mostRuns) {
      throw Error(ErrorKind::badData, "the tensor " + tensor.name + " is in impossibly many pieces");
    }
    for (std::int64_t index = 0; index < piece.repeats; ++index) runs.push_back(piece.run(index));
  }
  return runs;
}

// Sorts the pieces and checks that each element is covered once.
void checkCoverage(PlacedTensor& tensor) {
  for (const PlacedPiece& piece : tensor.pieces) {
    if (piece.repeats == 1) continue;
    // Bounds enough that no product below leaves 64 bits.
    const std::int64_t all = tensor.shape.count();
    const bool holds = tensor.shape.rank() == 2 && piece.stride == tensor.shape[1] && piece.repeats > 1 &&
                       piece.repeats <= tensor.shape[0] && piece.count > 0 && piece.count <= piece.stride &&
                       piece.targetBegin >= 0 && piece.targetBegin <= all && piece.sourceBegin >= 0 &&
                       piece.sourceBegin <= INT64_MAX - all;
    if (!holds) {
      throw Error(ErrorKind::badData, "the tensor " + tensor.name + " " + tensor.shape.text() +
                                          " has a piece of several runs that are not columns of it");
    }
  }
  sortPieces(tensor.pieces);
  std::vector<PlacedPiece> runs = runsOf(tensor);
  sortPieces(runs);
  const auto fail = [&](std::int64_t element, const char* what) {
    throw Error(ErrorKind::badData, "element " + std::to_string(element) + " of the tensor " + tensor.name + " " +
                                        tensor.shape.text() + " " + what);
  };
  const std::int64_t count = tensor.shape.count();
  std::int64_t end = 0;
  for (const PlacedPiece& piece : runs) {
    const bool hasSource = piece.sourceBegin >= 0 && piece.sourceBegin <= INT64_MAX - count;
    if (piece.count <= 0 || piece.count > count || !hasSource) fail(piece.targetBegin, "begins a wrong piece");
    if (piece.targetBegin < end) fail(piece.targetBegin, "is in more than one piece");
    if (piece.targetBegin > end) fail(end, "is in no piece");
    if (piece.count > count - end) fail(count, "is behind its end, but in a piece");
    end += piece.count;
  }
  if (end < count) fail(end, "is in no piece");
}

void checkName(const std::string& name) {
  static const std::vector<std::string> taken = {"tokenizer", "configuration", "options",
                                                 "progress",  "companions",    "layout"};
  if (name.empty() || name.front() == '/' || name.back() == '/' ||
      std::find(taken.begin(), taken.end(), name.substr(0, name.find('/'))) != taken.end()) {
    throw Error(ErrorKind::badData, "'" + name + "' cannot be the name of a tensor");
  }
}

void mergeRank(int rank, const std::string& description, std::map<std::string, PlacedTensor>& merged) {
  for (const json& each : base::parseJson(description)) {
    PlacedTensor tensor{each[0].get<std::string>(), base::parseDType(each[1].get<std::string>()), {}, {}};
    checkName(tensor.name);
    tensor.shape = parseShape(each[2], tensor.name);
    PlacedTensor& known = merged.try_emplace(tensor.name, tensor).first->second;
    if (known.type != tensor.type || !(known.shape == tensor.shape)) {
      throw Error(ErrorKind::badData, "rank " + std::to_string(rank) + " has the tensor " + tensor.name + " as " +
                                          base::name(tensor.type) + " " + tensor.shape.text() +
                                          ", a rank before it as " + base::name(known.type) + " " + known.shape.text());
    }
    std::int64_t source = 0;
    for (const json& piece : each[3]) {
      const auto count = piece[1].get<std::int64_t>();
      const std::int64_t repeats = piece.size() > 2 ? piece[2].get<std::int64_t>() : 1;
      const std::int64_t stride = piece.size() > 2 ? piece[3].get<std::int64_t>() : 0;
      if (count != 0) known.pieces.push_back({rank, source, piece[0].get<std::int64_t>(), count, repeats, stride});
      source += count * repeats;
    }
  }
}

Shard parseShard(const json& entry) {
  Shard shard{entry.at("file").get<std::string>(), wholeNumber(entry.at("bytes")),
              entry.at("xxh128").get<std::string>()};
  if (!shard.file.starts_with("shard-") || shard.file.find('/') != std::string::npos || shard.bytes < 0) {
    throw Error(ErrorKind::badData, "'" + shard.file + "' cannot be the name of a shard");
  }
  return shard;
}

PlacedTensor parseTensor(const json& entry, std::size_t shards) {
  PlacedTensor tensor;
  tensor.name = entry.at("name").get<std::string>();
  checkName(tensor.name);
  tensor.type = base::parseDType(entry.at("type").get<std::string>());
  tensor.shape = parseShape(entry.at("shape"), tensor.name);
  for (const json& piece : entry.at("pieces")) {
    const std::int64_t shard = wholeNumber(piece.at(0));
    if (shard < 0 || shard >= static_cast<std::int64_t>(shards)) {
      throw Error(ErrorKind::badData, "a piece of the tensor " + tensor.name + " is in no shard");
    }
    const bool repeats = piece.size() > 4;
    tensor.pieces.push_back({static_cast<int>(shard), wholeNumber(piece.at(1)), wholeNumber(piece.at(2)),
                             wholeNumber(piece.at(3)), repeats ? wholeNumber(piece.at(4)) : 1,
                             repeats ? wholeNumber(piece.at(5)) : 0});
  }
  checkCoverage(tensor);
  return tensor;
}

}  // namespace

std::string describe(std::span<const LocalTensor> tensors) {
  json all = json::array();
  for (const LocalTensor& tensor : tensors) {
    json pieces = json::array();
    for (const Piece& piece : tensor.pieces) {
      pieces.push_back({piece.begin, piece.count});
      if (piece.repeats == 1) continue;
      pieces.back().push_back(piece.repeats);
      pieces.back().push_back(piece.stride);
    }
    all.push_back({tensor.name, base::name(tensor.type), toJson(tensor.shape), pieces});
  }
  return base::jsonText(all);
}

std::vector<PlacedTensor> merge(const std::vector<std::string>& descriptions) {
  std::map<std::string, PlacedTensor> merged;
  int rank = 0;
  for (const std::string& description : descriptions) mergeRank(rank++, description, merged);
  std::vector<PlacedTensor> tensors;
  for (auto& [name, tensor] : merged) {
    checkCoverage(tensor);
    tensors.push_back(std::move(tensor));
  }
  return tensors;
}

std::string toText(const Layout& layout) {
  json shards = json::array();
  for (const Shard& shard : layout.shards) {
    shards.push_back({{"file", shard.file}, {"bytes", shard.bytes}, {"xxh128", shard.hash}});
  }
  json tensors = json::array();
  for (const PlacedTensor& tensor : layout.tensors) {
    json pieces = json::array();
    for (const PlacedPiece& piece : tensor.pieces) {
      pieces.push_back({piece.shard, piece.sourceBegin, piece.targetBegin, piece.count});
      if (piece.repeats == 1) continue;
      pieces.back().push_back(piece.repeats);
      pieces.back().push_back(piece.stride);
    }
    tensors.push_back({{"name", tensor.name},
                       {"type", base::name(tensor.type)},
                       {"shape", toJson(tensor.shape)},
                       {"pieces", pieces}});
  }
  return base::jsonText(json{{"shards", shards}, {"tensors", tensors}});
}

Layout parseLayout(const std::string& text) {
  base::refuseDeepNesting(text, ErrorKind::badData, "the layout of the checkpoint");
  try {
    const json all = base::parseJson(text);
    Layout layout;
    for (const json& entry : all.at("shards")) layout.shards.push_back(parseShard(entry));
    for (const json& entry : all.at("tensors")) layout.tensors.push_back(parseTensor(entry, layout.shards.size()));
    const auto wrong =
        std::adjacent_find(layout.tensors.begin(), layout.tensors.end(),
                           [](const PlacedTensor& a, const PlacedTensor& b) { return a.name >= b.name; });
    if (wrong != layout.tensors.end()) {
      throw Error(ErrorKind::badData, "in the layout of the checkpoint, the tensor after " + wrong->name +
                                          " does not follow it in the alphabet");
    }
    return layout;
  } catch (const json::exception& failure) {
    throw Error(ErrorKind::badData,
                std::string("the layout of the checkpoint cannot be understood: ") + failure.what());
  }
}

}  // namespace tandem::checkpoint::detail
