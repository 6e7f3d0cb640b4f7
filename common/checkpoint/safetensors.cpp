#include "common/checkpoint/safetensors.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <nlohmann/json.hpp>

#include "common/base/error.h"
#include "common/base/json.h"

namespace tandem::checkpoint {
namespace {

using nlohmann::json;

static_assert(std::endian::native == std::endian::little, "numbers in the files are little-endian");

constexpr std::int64_t lengthBytes = 8;
constexpr std::int64_t longestHead = 100'000'000;  // as the format's own library has it

struct ElementType {
  const char* name;
  std::int64_t bytes;
};
// All that the format has in whole bytes.
constexpr std::array<ElementType, 16> elementTypes = {{{"F64", 8},
                                                       {"F32", 4},
                                                       {"F16", 2},
                                                       {"BF16", 2},
                                                       {"I64", 8},
                                                       {"U64", 8},
                                                       {"I32", 4},
                                                       {"U32", 4},
                                                       {"I16", 2},
                                                       {"U16", 2},
                                                       {"I8", 1},
                                                       {"U8", 1},
                                                       {"BOOL", 1},
                                                       {"F8_E4M3", 1},
                                                       {"F8_E5M2", 1},
                                                       {"C64", 8}}};

const ElementType* findType(const std::string& name) {
  const auto* found = std::ranges::find_if(elementTypes, [&](const ElementType& type) { return name == type.name; });
  return found == elementTypes.end() ? nullptr : found;
}

std::optional<Encoding> encodingOf(const std::string& type) {
  for (const Encoding encoding : {Encoding::f32, Encoding::f16, Encoding::bf16}) {
    if (type == name(encoding)) return encoding;
  }
  return std::nullopt;
}

std::optional<std::int64_t> wholeNumber(const json& value) {
  if (!value.is_number_unsigned() || value.get<std::uint64_t>() > INT64_MAX) return std::nullopt;
  return value.get<std::int64_t>();
}

// A list of numbers at a key of a tensor's entry; nothing when it is anything else.
std::optional<std::vector<std::int64_t>> numbersAt(const json& entry, const char* key) {
  if (!entry.is_object() || !entry.contains(key) || !entry[key].is_array()) return std::nullopt;
  std::vector<std::int64_t> numbers;
  for (const json& each : entry[key]) {
    const auto number = wholeNumber(each);
    if (!number) return std::nullopt;
    numbers.push_back(*number);
  }
  return numbers;
}

// A tensor as its entry in the head describes it, or the reason why it cannot be.
struct ParsedTensor {
  StoredTensor tensor;
  std::string problem;
};

ParsedTensor parseTensor(const std::string& name, const json& entry, std::int64_t elementsBegin, std::int64_t limit) {
  ParsedTensor parsed;
  parsed.tensor.name = name;
  const auto extents = numbersAt(entry, "shape"), offsets = numbersAt(entry, "data_offsets");
  if (!extents || !offsets || offsets->size() != 2 || !entry.contains("dtype") || !entry["dtype"].is_string()) {
    parsed.problem = "needs a dtype (text), a shape (numbers) and data_offsets (two numbers)";
    return parsed;
  }
  parsed.tensor.type = entry["dtype"].get<std::string>();
  const ElementType* const type = findType(parsed.tensor.type);
  const auto shape = checkedShape(*extents);
  const std::int64_t begin = (*offsets)[0], end = (*offsets)[1];
  if (type == nullptr) {
    parsed.problem = "has the unknown dtype '" + parsed.tensor.type + "'";
  } else if (!shape) {
    parsed.problem = "has an impossible shape " + base::jsonText(entry["shape"]);
  } else if (begin > end || end > limit) {
    parsed.problem = "has the data_offsets " + std::to_string(begin) + " and " + std::to_string(end) +
                     "; the file has " + std::to_string(limit) + " bytes of elements: it is truncated or damaged";
  } else if (end - begin != shape->count() * type->bytes) {
    parsed.problem = "of " + parsed.tensor.type + " " + shape->text() + " needs " +
                     std::to_string(shape->count() * type->bytes) + " bytes, but has " + std::to_string(end - begin);
  } else {
    parsed.tensor.encoding = encodingOf(parsed.tensor.type);
    parsed.tensor.shape = *shape;
    parsed.tensor.offset = elementsBegin + begin;
    parsed.tensor.bytes = end - begin;
  }
  return parsed;
}

json toJson(const base::Shape& shape) {
  json extents = json::array();
  for (int axis = 0; axis < shape.rank(); ++axis) extents.push_back(shape[axis]);
  return extents;
}

}  // namespace

SafetensorsFile::SafetensorsFile(const std::filesystem::path& path) : TensorFile(path) {
  if (size() < lengthBytes) fail("has " + std::to_string(size()) + " bytes: too few for a safetensors file");
  std::uint64_t length = 0;
  read(0, std::as_writable_bytes(std::span(&length, 1)));
  if (length > static_cast<std::uint64_t>(std::min(longestHead, size() - lengthBytes))) {
    fail("its head shall have " + std::to_string(length) + " bytes; the file has " + std::to_string(size()) + ", and " +
         std::to_string(longestHead) + " is the most: it is truncated, or no safetensors file");
  }
  std::string head(length, '\0');
  read(lengthBytes, std::as_writable_bytes(std::span(head)));
  base::refuseDeepNesting(head, base::ErrorKind::badData, path.string() + ": its head");
  const json entries = base::parseJsonOrDiscard(head);
  if (!entries.is_object()) fail("its head is no JSON object");

  const std::int64_t elementsBegin = lengthBytes + static_cast<std::int64_t>(length);
  std::vector<StoredTensor> tensors;
  for (const auto& [name, entry] : entries.items()) {
    if (name == "__metadata__") {
      if (!entry.is_object()) fail("its __metadata__ is no object");
      for (const auto& [key, value] : entry.items()) {
        if (!value.is_string()) fail("its __metadata__ '" + key + "' is no text");
        metadata_[key] = value.get<std::string>();
      }
      continue;
    }
    ParsedTensor parsed = parseTensor(name, entry, elementsBegin, size() - elementsBegin);
    if (!parsed.problem.empty()) fail("the tensor '" + name + "' " + parsed.problem);
    tensors.push_back(std::move(parsed.tensor));
  }
  place(std::move(tensors));
  std::int64_t end = elementsBegin;
  for (const StoredTensor& tensor : this->tensors()) {
    if (tensor.offset != end) fail("has a gap of bytes that no tensor holds before '" + tensor.name + "'");
    end += tensor.bytes;
  }
  if (end != size()) fail("has " + std::to_string(size() - end) + " bytes behind its last tensor");
}

FileLayout layOutSafetensors(std::span<const NewTensor> tensors, const std::map<std::string, std::string>& metadata) {
  FileLayout layout;
  std::vector<const NewTensor*> order;
  for (const NewTensor& tensor : tensors) order.push_back(&tensor);
  // The library's order of types: among those of two bytes BF16 comes before F16.
  const auto rank = [](Encoding encoding) {
    return encoding == Encoding::f32 ? 0 : encoding == Encoding::bf16 ? 1 : 2;
  };
  std::ranges::sort(order, [&](const NewTensor* a, const NewTensor* b) {
    const int left = rank(a->encoding), right = rank(b->encoding);
    return left != right ? left < right : a->name < b->name;
  });
  nlohmann::ordered_json head = nlohmann::ordered_json::object();
  if (!metadata.empty()) head["__metadata__"] = metadata;
  std::int64_t offset = 0;
  for (const NewTensor* tensor : order) {
    TANDEM_ASSERT(plainType(tensor->encoding).has_value(), "safetensors holds plain floats");
    const std::int64_t bytes = encodedBytes(tensor->encoding, tensor->shape.count());
    head[tensor->name] = {{"dtype", name(tensor->encoding)},
                          {"shape", toJson(tensor->shape)},
                          {"data_offsets", {offset, offset + bytes}}};
    layout.tensors.push_back({tensor->name, name(tensor->encoding), tensor->encoding, tensor->shape, offset, bytes});
    offset += bytes;
  }
  std::string text = base::jsonText(head);
  text.resize((text.size() + 7) / 8 * 8, ' ');
  const std::uint64_t length = text.size();
  layout.head.resize(lengthBytes);
  std::memcpy(layout.head.data(), &length, sizeof length);
  layout.head += text;
  for (StoredTensor& tensor : layout.tensors) tensor.offset += std::ssize(layout.head);
  layout.bytes = std::ssize(layout.head) + offset;
  return layout;
}

}  // namespace tandem::checkpoint
