#include "common/checkpoint/model_source.h"

#include <algorithm>
#include <fstream>
#include <map>
#include <vector>

#include "common/base/error.h"
#include "common/checkpoint/derived_models.h"
#include "common/checkpoint/detail/foreign_model.h"
#include "common/checkpoint/encoding.h"
#include "common/checkpoint/hugging_face.h"
#include "common/checkpoint/quantised_model.h"

namespace tandem::checkpoint {
namespace {

namespace fs = std::filesystem;
using base::Error;
using base::ErrorKind;

// A checkpoint of ours.
class OwnModel : public ModelSource {
 public:
  OwnModel(comm::Communicator& communicator, std::unique_ptr<Reader> reader) : reader_(std::move(reader)) {
    comm::agreeOn(communicator, [&] {
      place_ = reader_->folder();
      metadata_ = reader_->metadata();
      configuration_ =
          detail::parseForeignConfiguration(metadata_.configuration, "in the checkpoint " + place_.string());
      for (const Parameter& parameter : ourLayout(configuration_)) parameters_.push_back(stored(parameter));
    });
  }

  std::optional<FilePlace> place(const StoredParameter& parameter, std::int64_t begin,
                                 std::int64_t count) const override {
    if (quantised_.contains(parameter.name)) return std::nullopt;
    return reader_->place(tensorName(parameter.name), begin, count);
  }

  std::optional<QuantisedFormat> quantisedFormat(const StoredParameter& parameter) const override {
    const auto found = quantised_.find(parameter.name);
    return found == quantised_.end() ? std::nullopt : std::optional(found->second.format);
  }

  QuantisedRows readQuantisedRows(const StoredParameter& parameter, std::int64_t begin,
                                  std::int64_t count) const override {
    return checkpoint::readQuantisedRows(*reader_, quantised_.at(parameter.name), begin, count);
  }

 private:
  static std::string tensorName(const std::string& parameter) { return "model/" + parameter; }

  const Reader::Entry* find(const std::string& name) const {
    const auto found = std::ranges::find(reader_->tensors(), name, &Reader::Entry::name);
    return found == reader_->tensors().end() ? nullptr : &*found;
  }

  // Quantised matrices are read as float32.
  StoredParameter stored(const Parameter& parameter) {
    const std::string name = tensorName(parameter.name), place = "the checkpoint " + place_.string();
    const Reader::Entry* const codes = find(codesName(name));
    if (codes != nullptr) {
      const bool bytes = codes->type == base::DType::i8;
      quantised_[parameter.name] = {name, bytes ? QuantisedFormat::int8 : QuantisedFormat::int4, parameter.shape};
      return {parameter.name, base::DType::f32, parameter.shape};
    }
    const Reader::Entry* const found = find(name);
    if (found == nullptr) throw Error(ErrorKind::badData, place + " has no tensor " + name);
    if (!encodingOf(found->type) || !(found->shape == parameter.shape)) {
      throw Error(ErrorKind::badData, "the tensor " + name + " of " + place + " is " + base::name(found->type) + " " +
                                          found->shape.text() + "; by the model's configuration it must be floats " +
                                          parameter.shape.text());
    }
    return {parameter.name, found->type, found->shape};
  }

  void readStored(std::size_t parameter, std::int64_t begin, std::int64_t count, void* target) const override {
    const StoredParameter& stored = parameters_[parameter];
    const auto quantised = quantised_.find(stored.name);
    if (quantised != quantised_.end()) {
      return readQuantised(*reader_, quantised->second, begin, count, static_cast<float*>(target));
    }
    reader_->read(tensorName(stored.name), stored.type, stored.shape, begin, count, target);
  }

  std::map<std::string, QuantisedEntry> quantised_;  // by parameter
  std::unique_ptr<Reader> reader_;
};

bool beginsWithGguf(const fs::path& file) {
  char magic[4] = {};
  std::ifstream(file, std::ios::binary).read(magic, sizeof magic);
  return std::string(magic, sizeof magic) == "GGUF";
}

}  // namespace

const StoredParameter& ModelSource::parameter(const std::string& name) const {
  const auto found = std::ranges::find(parameters_, name, &StoredParameter::name);
  if (found == parameters_.end()) {
    throw Error(ErrorKind::badData, "the model " + place_.string() + " has no parameter " + name);
  }
  return *found;
}

std::optional<FilePlace> ModelSource::place(const StoredParameter&, std::int64_t, std::int64_t) const {
  return std::nullopt;
}

std::optional<QuantisedFormat> ModelSource::quantisedFormat(const StoredParameter&) const { return std::nullopt; }

QuantisedRows ModelSource::readQuantisedRows(const StoredParameter& parameter, std::int64_t, std::int64_t) const {
  TANDEM_ASSERT(false, "the matrix " + parameter.name + " is quantised");
  return {};
}

void ModelSource::read(const StoredParameter& parameter, std::int64_t begin, std::int64_t count, base::DType type,
                       void* target) const {
  const auto number = static_cast<std::size_t>(&parameter - parameters_.data());
  TANDEM_ASSERT(number < parameters_.size(), "a parameter of this model");
  if (parameter.type == type) return readStored(number, begin, count, target);
  constexpr std::int64_t most = 1 << 20;
  std::vector<std::byte> block(static_cast<std::size_t>(std::min(count, most) * base::byteSize(parameter.type)));
  auto* bytes = static_cast<std::byte*>(target);
  for (std::int64_t done = 0; done < count; done += most) {
    const std::int64_t length = std::min(most, count - done);
    readStored(number, begin + done, length, block.data());
    convert(parameter.type, block.data(), type, bytes + done * base::byteSize(type), length);
  }
}

ModelFormat formatOf(const fs::path& path) {
  if (!fs::exists(path)) throw Error(ErrorKind::usage, "the checkpoint '" + path.string() + "' does not exist");
  if (fs::exists(path / configurationName)) return ModelFormat::huggingFace;
  if (fs::is_regular_file(path)) {
    if (beginsWithGguf(path)) return ModelFormat::gguf;
    throw Error(ErrorKind::badData, path.string() + " is no GGUF file; a model is a folder or a GGUF file");
  }
  return ModelFormat::tandem;
}

namespace {

// Adapters are read together with their base.
std::unique_ptr<ModelSource> openOwn(comm::Communicator& communicator, const fs::path& path,
                                     Verification verification) {
  auto reader = std::make_unique<Reader>(communicator, path, verification);
  if (!holdsAdapters(*reader)) return std::make_unique<OwnModel>(communicator, std::move(reader));
  fs::path base;
  comm::agreeOn(communicator, [&] { base = baseOfAdapters(*reader); });
  auto model = std::make_unique<OwnModel>(communicator, std::make_unique<Reader>(communicator, base, verification));
  std::unique_ptr<ModelSource> adapted;
  comm::agreeOn(communicator, [&] { adapted = withAdapters(std::move(model), *reader); });
  return adapted;
}

}  // namespace

std::unique_ptr<ModelSource> openModel(comm::Communicator& communicator, const fs::path& path,
                                       Verification verification) {
  ModelFormat format = ModelFormat::tandem;
  std::unique_ptr<ModelSource> model;
  comm::agreeOn(communicator, [&] {
    format = formatOf(path);
    if (format == ModelFormat::huggingFace) {
      model = std::make_unique<detail::ForeignModel>(detail::openHuggingFace(path));
    } else if (format == ModelFormat::gguf) {
      model = std::make_unique<detail::ForeignModel>(detail::openGguf(path));
    }
  });
  if (format == ModelFormat::tandem) model = openOwn(communicator, path, verification);
  return model;
}

}  // namespace tandem::checkpoint
