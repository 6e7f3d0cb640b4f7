#include "tests/kernels/operators/workspace.h"

#include <algorithm>
#include <cstring>
#include <limits>

namespace tandem::kernels::test {

namespace {

constexpr std::int64_t guardBytes = 256;
constexpr auto guardByte = std::byte{0xA5};

// Place in its buffer, counted in elements, of an operand's element `index`.
std::int64_t placeOf(const Operand& operand, std::int64_t index) {
  std::int64_t place = operand.offset;
  for (int axis = operand.shape.rank() - 1; axis >= 0; --axis) {
    place += index % operand.shape[axis] * operand.strides[axis];
    index /= operand.shape[axis];
  }
  return place;
}

std::int64_t bufferElements(const Operand& operand) {
  return operand.shape.count() == 0 ? 0 : placeOf(operand, operand.shape.count() - 1) + 1;
}

double loadElement(const std::byte* address, DType type) {
  const auto as = [address]<class T>(T value) {
    std::memcpy(&value, address, sizeof value);
    return value;
  };
  switch (type) {
    case DType::f64:
      return as(double{});
    case DType::f32:
      return static_cast<double>(as(float{}));
    case DType::bf16:
      return static_cast<double>(static_cast<float>(as(base::BFloat16{})));
    case DType::f16:
      return static_cast<double>(static_cast<float>(as(base::Float16{})));
    case DType::u8:
      return static_cast<double>(as(std::uint8_t{}));
    default:
      return static_cast<double>(as(std::int32_t{}));
  }
}

void storeElement(std::byte* address, DType type, double value) {
  const auto put = [address](auto converted) { std::memcpy(address, &converted, sizeof converted); };
  switch (type) {
    case DType::f64:
      put(value);
      return;
    case DType::f32:
      put(static_cast<float>(value));
      return;
    case DType::bf16:
      put(base::BFloat16(static_cast<float>(value)));
      return;
    case DType::f16:
      put(base::Float16(static_cast<float>(value)));
      return;
    case DType::u8:
      put(static_cast<std::uint8_t>(value));
      return;
    default:
      put(static_cast<std::int32_t>(value));
      return;
  }
}

// FNV-1a: a number for a name, the same everywhere.
std::uint64_t hashOf(const std::string& text) {
  std::uint64_t hash = 14695981039346656037u;
  for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 1099511628211u;
  return hash;
}

}  // namespace

DType elementType(Storage storage, DType varied) {
  switch (storage) {
    case Storage::varied:
      return varied;
    case Storage::single:
      return varied == DType::f64 ? DType::f64 : DType::f32;
    case Storage::index:
      return DType::i32;
    case Storage::wide:
      return DType::f64;
    case Storage::half:
      return DType::bf16;
    case Storage::float16:
      return DType::f16;
    case Storage::codes:
      return DType::u8;
  }
  return varied;
}

Image::Image(const Case& recipe, DType varied, std::uint64_t seed) : recipe_(&recipe), varied_(varied) {
  for (const Operand& operand : recipe.operands) {
    const std::int64_t bytes = bufferElements(operand) * base::byteSize(elementType(operand.storage, varied));
    auto& buffer = buffers[operand.buffer];
    if (static_cast<std::int64_t>(buffer.size()) < bytes)
      buffer.resize(static_cast<std::size_t>(bytes), std::byte{0xff});
  }
  for (const Operand& operand : recipe.operands) {
    if (!operand.draw) continue;
    base::RandomStream random(seed, hashOf(recipe.name() + "/" + operand.name));
    std::vector<double> drawn(static_cast<std::size_t>(operand.shape.count()));
    operand.draw(random, drawn);
    setElements(operand.name, drawn);
  }
}

void Image::setElement(const std::string& name, std::int64_t index, double value) {
  const Operand& operand = recipe_->operand(name);
  const DType type = elementType(operand.storage, varied_);
  storeElement(buffers.at(operand.buffer).data() + placeOf(operand, index) * base::byteSize(type), type, value);
}

void Image::setElements(const std::string& name, const std::vector<double>& all) {
  const Operand& operand = recipe_->operand(name);
  const DType type = elementType(operand.storage, varied_);
  std::byte* data = buffers.at(operand.buffer).data();
  auto value = all.begin();
  visitPlaces(operand, [&](std::int64_t place) { storeElement(data + place * base::byteSize(type), type, *value++); });
}

std::vector<double> Image::elements(const std::string& name) const {
  const Operand& operand = recipe_->operand(name);
  const DType type = elementType(operand.storage, varied_);
  const std::byte* data = buffers.at(operand.buffer).data();
  std::vector<double> all;
  all.reserve(static_cast<std::size_t>(operand.shape.count()));
  visitPlaces(operand,
              [&](std::int64_t place) { all.push_back(loadElement(data + place * base::byteSize(type), type)); });
  return all;
}

Image Image::widened() const {
  Image wide(*recipe_, DType::f64, 0);
  for (const Operand& operand : recipe_->operands) {
    wide.setElements(operand.name, elements(operand.name));
  }
  return wide;
}

Placement::Placement(Backend& backend, const Image& image, int shift)
    : backend_(backend), stream_(backend.makeStream()) {
  for (const Operand& operand : image.recipe().operands) {
    const DType type = elementType(operand.storage, image.varied());
    Block& block = blocks_[operand.buffer];
    if (block.memory == nullptr) {
      block.begin = guardBytes + shift * (operand.storage == Storage::codes ? 16 : base::byteSize(type));
      block.bytes = static_cast<std::int64_t>(image.buffers.at(operand.buffer).size());
      block.total = block.begin + block.bytes + guardBytes;
      block.memory = backend.allocate(block.total);
    }
    void* first = static_cast<std::byte*>(block.memory) + block.begin + operand.offset * base::byteSize(type);
    operands.add(operand.name, TensorView(first, type, operand.shape, operand.strides));
  }
  upload(image);
}

Placement::~Placement() {
  for (const auto& [name, block] : blocks_) backend_.release(block.memory);
}

void Placement::run(const Step& step) {
  operands.forget();
  step.run(operands, backend_, *stream_);
  stream_->synchronize();
}

void Placement::upload(const Image& image) {
  for (const auto& [name, block] : blocks_) {
    std::vector<std::byte> all(static_cast<std::size_t>(block.total), guardByte);
    const auto& contents = image.buffers.at(name);
    std::copy(contents.begin(), contents.end(), all.begin() + block.begin);
    backend_.copyToDevice(block.memory, all.data(), block.total, *stream_);
    stream_->synchronize();
  }
}

void Placement::download(Image& image) {
  for (const auto& [name, block] : blocks_) {
    backend_.copyToHost(image.buffers.at(name).data(), static_cast<std::byte*>(block.memory) + block.begin, block.bytes,
                        *stream_);
  }
  stream_->synchronize();
}

bool Placement::guardsAreIntact() {
  for (const auto& [name, block] : blocks_) {
    std::vector<std::byte> all(static_cast<std::size_t>(block.total));
    backend_.copyToHost(all.data(), block.memory, block.total, *stream_);
    stream_->synchronize();
    const auto isGuard = [](std::byte value) { return value == guardByte; };
    if (!std::all_of(all.begin(), all.begin() + block.begin, isGuard)) return false;
    if (!std::all_of(all.begin() + block.begin + block.bytes, all.end(), isGuard)) return false;
  }
  return true;
}

}  // namespace tandem::kernels::test
