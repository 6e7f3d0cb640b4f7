#include "common/checkpoint/gguf.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>

#include "common/base/error.h"

namespace tandem::checkpoint {
namespace {

using base::Error;
using base::ErrorKind;

static_assert(std::endian::native == std::endian::little, "numbers in the files are little-endian");

constexpr std::uint32_t version = 3;
constexpr std::int64_t defaultAlignment = 32;
constexpr std::uint32_t mostExtents = 4;

// Types of values, by their numbers.
enum class Type : std::uint32_t { u8, i8, u16, i16, u32, i32, f32, flag, text, list, u64, i64, f64 };

struct TypeOfTensor {
  Encoding encoding;
  std::uint32_t number;
};
constexpr std::array<TypeOfTensor, 11> tensorTypes = {{{Encoding::f32, 0},
                                                       {Encoding::f16, 1},
                                                       {Encoding::q4_0, 2},
                                                       {Encoding::q4_1, 3},
                                                       {Encoding::q5_0, 6},
                                                       {Encoding::q5_1, 7},
                                                       {Encoding::q8_0, 8},
                                                       {Encoding::q4_k, 12},
                                                       {Encoding::q5_k, 13},
                                                       {Encoding::q6_k, 14},
                                                       {Encoding::bf16, 30}}};

std::int64_t aligned(std::int64_t offset, std::int64_t alignment) {
  return (offset + alignment - 1) / alignment * alignment;
}

// Reads the head from front to back.
class Cursor {
 public:
  Cursor(const TensorFile& file, std::int64_t size) : file_(file), size_(size) {}

  std::int64_t position() const { return position_; }
  std::int64_t left() const { return size_ - position_; }

  [[noreturn]] void fail(const std::string& what) const {
    throw Error(ErrorKind::badData, file_.path().string() + ", byte " + std::to_string(position_) + ": " + what);
  }

  template <class Number>
  Number number() {
    Number value;
    take(std::as_writable_bytes(std::span(&value, 1)));
    return value;
  }

  // A count of things that take so many bytes at least.
  std::int64_t count(const char* things, std::int64_t bytesEach) {
    const auto value = number<std::uint64_t>();
    if (value > static_cast<std::uint64_t>(left() / bytesEach)) {
      fail("there shall be " + std::to_string(value) + " " + things + ", for which the file has no room");
    }
    return static_cast<std::int64_t>(value);
  }

  std::string text() {
    std::string value(static_cast<std::size_t>(count("characters", 1)), '\0');
    take(std::as_writable_bytes(std::span(value)));
    return value;
  }

  GgufValue value(Type type) {
    switch (type) {
      case Type::u8:
        return std::uint64_t{number<std::uint8_t>()};
      case Type::u16:
        return std::uint64_t{number<std::uint16_t>()};
      case Type::u32:
        return std::uint64_t{number<std::uint32_t>()};
      case Type::u64:
        return number<std::uint64_t>();
      case Type::i8:
        return std::int64_t{number<std::int8_t>()};
      case Type::i16:
        return std::int64_t{number<std::int16_t>()};
      case Type::i32:
        return std::int64_t{number<std::int32_t>()};
      case Type::i64:
        return number<std::int64_t>();
      case Type::f32:
        return static_cast<double>(number<float>());
      case Type::f64:
        return number<double>();
      case Type::flag:
        return number<std::uint8_t>() != 0;
      case Type::text:
        return text();
      case Type::list:
        return list();
    }
    fail("a value is of the unknown type " + std::to_string(static_cast<std::uint32_t>(type)));
  }

  Type type() { return static_cast<Type>(number<std::uint32_t>()); }

 private:
  GgufValue list() {
    const Type type = this->type();
    if (type == Type::list) fail("a list of lists is not read");
    if (type == Type::text) {
      std::vector<std::string> texts(static_cast<std::size_t>(count("texts", sizeof(std::uint64_t))));
      for (std::string& each : texts) each = text();
      return texts;
    }
    const std::int64_t length = count("values", bytesOf(type));
    if (type == Type::f32 || type == Type::f64) {
      std::vector<double> numbers;
      for (std::int64_t i = 0; i < length; ++i) numbers.push_back(std::get<double>(value(type)));
      return numbers;
    }
    std::vector<std::int64_t> numbers;
    for (std::int64_t i = 0; i < length; ++i) {
      const GgufValue element = value(type);
      if (const auto* flag = std::get_if<bool>(&element)) {
        numbers.push_back(*flag ? 1 : 0);
      } else if (const auto* natural = std::get_if<std::uint64_t>(&element)) {
        if (*natural > INT64_MAX) fail("a number in a list is too large");
        numbers.push_back(static_cast<std::int64_t>(*natural));
      } else {
        numbers.push_back(std::get<std::int64_t>(element));
      }
    }
    return numbers;
  }

  std::int64_t bytesOf(Type type) const {
    switch (type) {
      case Type::u8:
      case Type::i8:
      case Type::flag:
        return 1;
      case Type::u16:
      case Type::i16:
        return 2;
      case Type::u32:
      case Type::i32:
      case Type::f32:
        return 4;
      case Type::u64:
      case Type::i64:
      case Type::f64:
        return 8;
      default:
        fail("a list is of the unknown type " + std::to_string(static_cast<std::uint32_t>(type)));
    }
  }

  // Through a block of the file, as most of what is read is a few bytes long.
  void take(std::span<std::byte> target) {
    if (std::ssize(target) > left()) fail("the file ends in the middle of its head: it is truncated");
    std::size_t done = 0;
    while (done < target.size()) {
      if (position_ < blockBegin_ || position_ >= blockBegin_ + std::ssize(block_)) {
        constexpr std::int64_t blockBytes = 1 << 16;
        block_.resize(static_cast<std::size_t>(std::min(blockBytes, left())));
        blockBegin_ = position_;
        file_.read(blockBegin_, block_);
      }
      const auto from = static_cast<std::size_t>(position_ - blockBegin_);
      const std::size_t length = std::min(target.size() - done, block_.size() - from);
      std::memcpy(target.data() + done, block_.data() + from, length);
      done += length;
      position_ += static_cast<std::int64_t>(length);
    }
  }

  const TensorFile& file_;
  std::int64_t size_;
  std::int64_t position_ = 0;
  std::int64_t blockBegin_ = 0;
  std::vector<std::byte> block_;
};

// A tensor as its head describes it; its offset counts from where the elements begin.
StoredTensor readTensor(Cursor& cursor) {
  StoredTensor tensor;
  tensor.name = cursor.text();
  const std::string place = "the tensor '" + tensor.name + "' ";
  const auto rank = cursor.number<std::uint32_t>();
  if (rank > mostExtents) cursor.fail(place + "has " + std::to_string(rank) + " extents; 4 are the most");
  std::vector<std::int64_t> extents;
  for (std::uint32_t i = 0; i < rank; ++i) {
    const auto extent = cursor.number<std::uint64_t>();
    extents.insert(extents.begin(), extent > INT64_MAX ? -1 : static_cast<std::int64_t>(extent));
  }
  const auto shape = checkedShape(extents);
  if (!shape) cursor.fail(place + "has an impossible shape");
  tensor.shape = *shape;
  const auto number = cursor.number<std::uint32_t>();
  const auto* type = std::ranges::find(tensorTypes, number, &TypeOfTensor::number);
  if (type == tensorTypes.end()) {
    cursor.fail(place + "is of type number " + std::to_string(number) + ", which is not read");
  }
  tensor.encoding = type->encoding;
  tensor.type = name(type->encoding);
  if (tensor.shape.last() % blockElements(type->encoding) != 0) {
    cursor.fail(place + tensor.shape.text() + " has rows that are no whole blocks of " + tensor.type);
  }
  tensor.bytes = encodedBytes(type->encoding, tensor.shape.count());
  const auto offset = cursor.number<std::uint64_t>();
  if (offset > static_cast<std::uint64_t>(INT64_MAX / 2)) cursor.fail(place + "lies outside of the file");
  tensor.offset = static_cast<std::int64_t>(offset);
  return tensor;
}

// Writes the head.
class HeadWriter {
 public:
  template <class Number>
  void number(Number value) {
    const std::size_t size = head_.size();
    head_.resize(size + sizeof value);
    std::memcpy(head_.data() + size, &value, sizeof value);
  }
  void text(const std::string& value) {
    number<std::uint64_t>(value.size());
    head_ += value;
  }
  void type(Type type) { number(static_cast<std::uint32_t>(type)); }

  void value(const GgufValue& value) {
    std::visit([this](const auto& each) { put(each); }, value);
  }

  std::string& head() { return head_; }

 private:
  void put(std::uint64_t value) {
    type(Type::u32);
    number(static_cast<std::uint32_t>(value));
  }
  void put(std::int64_t value) {
    type(Type::i32);
    number(static_cast<std::int32_t>(value));
  }
  void put(double value) {
    type(Type::f32);
    number(static_cast<float>(value));
  }
  void put(bool value) {
    type(Type::flag);
    number<std::uint8_t>(value ? 1 : 0);
  }
  void put(const std::string& value) {
    type(Type::text);
    text(value);
  }
  void put(const std::vector<std::int64_t>& values) {
    list(Type::i32, values.size());
    for (const std::int64_t value : values) number(static_cast<std::int32_t>(value));
  }
  void put(const std::vector<double>& values) {
    list(Type::f32, values.size());
    for (const double value : values) number(static_cast<float>(value));
  }
  void put(const std::vector<std::string>& values) {
    list(Type::text, values.size());
    for (const std::string& value : values) text(value);
  }
  void list(Type elements, std::size_t count) {
    type(Type::list);
    type(elements);
    number<std::uint64_t>(count);
  }

  std::string head_;
};

}  // namespace

GgufFile::GgufFile(const std::filesystem::path& path) : TensorFile(path) {
  Cursor cursor(*this, size());
  if (size() < 4 || cursor.number<std::uint32_t>() != 0x46554747u) fail("is no GGUF file: it does not begin with GGUF");
  const auto found = cursor.number<std::uint32_t>();
  if (found != version && found != 2) {
    fail("is of version " + std::to_string(found) + " of GGUF; versions 2 and 3 are read, little-endian");
  }
  // A tensor's head has a name, extents, type and offset; a pair has a key, a type and a value.
  const std::int64_t tensorCount = cursor.count("tensors", 24), pairCount = cursor.count("key-value pairs", 13);
  for (std::int64_t i = 0; i < pairCount; ++i) {
    const std::string key = cursor.text();
    const Type type = cursor.type();
    if (!values_.emplace(key, cursor.value(type)).second) cursor.fail("the key '" + key + "' is there twice");
  }
  const std::int64_t alignment = integer("general.alignment").value_or(defaultAlignment);
  if (alignment <= 0 || alignment > (1 << 20)) fail("its general.alignment is " + std::to_string(alignment));
  std::vector<StoredTensor> tensors;
  for (std::int64_t i = 0; i < tensorCount; ++i) tensors.push_back(readTensor(cursor));
  const std::int64_t elementsBegin = aligned(cursor.position(), alignment);
  for (StoredTensor& tensor : tensors) {
    if (tensor.offset % alignment != 0) {
      fail("the tensor '" + tensor.name + "' at byte " + std::to_string(tensor.offset) +
           " of the elements does not begin at a multiple of " + std::to_string(alignment));
    }
    tensor.offset += elementsBegin;
  }
  place(std::move(tensors));
}

const GgufValue* GgufFile::valueAt(const std::string& key) const {
  const auto found = values_.find(key);
  return found == values_.end() ? nullptr : &found->second;
}

std::optional<std::int64_t> GgufFile::integer(const std::string& key) const {
  const GgufValue* const value = valueAt(key);
  if (value == nullptr) return std::nullopt;
  if (const auto* whole = std::get_if<std::int64_t>(value)) return *whole;
  const auto* natural = std::get_if<std::uint64_t>(value);
  if (natural == nullptr || *natural > INT64_MAX) fail("the value of '" + key + "' is no whole number");
  return static_cast<std::int64_t>(*natural);
}

std::optional<double> GgufFile::number(const std::string& key) const {
  const GgufValue* const value = valueAt(key);
  if (value == nullptr) return std::nullopt;
  if (const auto* number = std::get_if<double>(value)) return *number;
  fail("the value of '" + key + "' is no float");
}

std::optional<std::string> GgufFile::text(const std::string& key) const {
  const GgufValue* const value = valueAt(key);
  if (value == nullptr) return std::nullopt;
  if (const auto* text = std::get_if<std::string>(value)) return *text;
  fail("the value of '" + key + "' is no text");
}

std::optional<bool> GgufFile::flag(const std::string& key) const {
  const GgufValue* const value = valueAt(key);
  if (value == nullptr) return std::nullopt;
  if (const auto* flag = std::get_if<bool>(value)) return *flag;
  fail("the value of '" + key + "' is neither true nor false");
}

const std::vector<std::string>* GgufFile::texts(const std::string& key) const {
  const GgufValue* const value = valueAt(key);
  return value == nullptr ? nullptr : std::get_if<std::vector<std::string>>(value);
}

const std::vector<std::int64_t>* GgufFile::integers(const std::string& key) const {
  const GgufValue* const value = valueAt(key);
  return value == nullptr ? nullptr : std::get_if<std::vector<std::int64_t>>(value);
}

FileLayout layOutGguf(const GgufPairs& pairs, std::span<const NewTensor> tensors) {
  HeadWriter writer;
  writer.head() = "GGUF";
  writer.number(version);
  writer.number<std::uint64_t>(tensors.size());
  writer.number<std::uint64_t>(pairs.size());
  for (const auto& [key, value] : pairs) {
    writer.text(key);
    writer.value(value);
  }
  FileLayout layout;
  std::int64_t offset = 0;
  for (const NewTensor& tensor : tensors) {
    writer.text(tensor.name);
    writer.number(static_cast<std::uint32_t>(tensor.shape.rank()));
    for (int axis = tensor.shape.rank() - 1; axis >= 0; --axis) {
      writer.number(static_cast<std::uint64_t>(tensor.shape[axis]));
    }
    writer.number(std::ranges::find(tensorTypes, tensor.encoding, &TypeOfTensor::encoding)->number);
    writer.number(static_cast<std::uint64_t>(offset));
    const std::int64_t bytes = encodedBytes(tensor.encoding, tensor.shape.count());
    layout.tensors.push_back({tensor.name, name(tensor.encoding), tensor.encoding, tensor.shape, offset, bytes});
    offset += aligned(bytes, defaultAlignment);
  }
  layout.head = std::move(writer.head());
  layout.head.resize(static_cast<std::size_t>(aligned(std::ssize(layout.head), defaultAlignment)), '\0');
  for (StoredTensor& tensor : layout.tensors) tensor.offset += std::ssize(layout.head);
  layout.bytes = std::ssize(layout.head) + offset;
  return layout;
}

}  // namespace tandem::checkpoint
