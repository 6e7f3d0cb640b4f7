#include "common/checkpoint/detail/tensor_output.h"

#include <algorithm>
#include <cstring>
#include <optional>

#include "common/base/error.h"
#include "common/base/file_copy.h"
#include "common/base/files.h"
#include "common/checkpoint/detail/foreign_model.h"

namespace tandem::checkpoint::detail {
namespace {

namespace fs = std::filesystem;
using base::DType;

constexpr std::int64_t blockOfElements = 1 << 20;  // a multiple of every encoding's block

fs::path partialOf(const fs::path& path) { return path.string() + ".partial"; }

void createFiles(std::span<const OutputFile> files) {
  for (const OutputFile& output : files) {
    base::File file = base::File::create(partialOf(output.path));
    file.writeAt(0, std::as_bytes(std::span(output.layout.head)));
    file.resize(output.layout.bytes);  // zeros where no tensor lies
    file.close();
  }
}

// Writes a tensor into its place in a file.
class FileSink : public Sink {
 public:
  FileSink(const base::File& file, std::int64_t begin) : file_(file), end_(begin) {}

  void put(std::span<const std::byte> bytes) override {
    file_.writeAt(end_, bytes);
    advance(std::ssize(bytes));
  }
  void copy(const FilePlace& place, std::int64_t bytes) override {
    if (!source_ || sourcePath_ != place.file) {
      source_.emplace(base::File::openForReading(place.file));
      sourcePath_ = place.file;
    }
    base::copyBytes(*source_, place.offset, file_, end_, bytes);
    advance(bytes);
  }
  std::int64_t end() const { return end_; }

 private:
  void advance(std::int64_t bytes) {
    file_.startWriting(end_, bytes);
    end_ += bytes;
  }

  const base::File& file_;
  std::int64_t end_;
  fs::path sourcePath_;  // what is copied from stays open
  std::optional<base::File> source_;
};

// Every rank's files are synced by itself before; so the names mean what they say.
void publish(std::span<const OutputFile> files) {
  for (const OutputFile& output : files) {
    std::error_code failure;
    fs::rename(partialOf(output.path), output.path, failure);
    if (failure) {
      throw base::Error(base::ErrorKind::file,
                        "cannot give the file " + output.path.string() + " its name: " + failure.message());
    }
  }
  if (!files.empty())
    base::syncFolder(files.front().path.parent_path().empty() ? "." : files.front().path.parent_path());
}

void remove(std::span<const OutputFile> files) {
  std::error_code ignored;
  for (const OutputFile& output : files) fs::remove(partialOf(output.path), ignored);
}

void writeShare(comm::Communicator& communicator, std::span<const OutputFile> files,
                const std::function<void(const StoredTensor&, Sink&)>& give) {
  std::int64_t total = 0;
  for (const OutputFile& output : files) total += output.layout.bytes;
  std::int64_t before = 0;  // bytes of all tensors before: a tensor belongs to the rank whose share its middle is in
  for (const OutputFile& output : files) {
    std::optional<base::File> file;
    for (const StoredTensor& tensor : output.layout.tensors) {
      const std::int64_t middle = before + tensor.bytes / 2;
      before += tensor.bytes;
      if (middle * communicator.size() / total != communicator.rank()) continue;
      if (!file) file.emplace(base::File::openForWriting(partialOf(output.path)));
      FileSink sink(*file, tensor.offset);
      give(tensor, sink);
      TANDEM_ASSERT(sink.end() == tensor.offset + tensor.bytes, "a tensor is as long as its place");
    }
    if (!file) continue;
    file->sync();
    file->close();
  }
}

class PartWriter {
 public:
  PartWriter(const ModelSource& model, const Parameter& parameter, const Part& part, Encoding encoding,
             Sink& sink)
      : model_(model),
        stored_(model.parameter(parameter.name)),
        part_(part),
        encoding_(encoding),
        type_(plainType(encoding).value_or(DType::f32)),
        rowElements_(parameter.rowElements()),
        sink_(sink) {}

  void run() {
    switch (part_.arrangement) {
      case Arrangement::same:
        return same();
      case Arrangement::interleaved:
        return interleaved();
      case Arrangement::transposed:
        return transposed();
    }
  }

 private:
  std::int64_t size() const { return base::byteSize(type_); }

  std::vector<std::byte> read(std::int64_t firstRow, std::int64_t rows) const {
    return readElementsOf((part_.firstRow + firstRow) * rowElements_, rows * rowElements_);
  }
  std::vector<std::byte> readElementsOf(std::int64_t begin, std::int64_t count) const {
    std::vector<std::byte> elements(static_cast<std::size_t>(count * size()));
    model_.read(stored_, begin, count, type_, elements.data());
    return elements;
  }

  void give(std::span<const std::byte> elements) {
    if (plainType(encoding_)) return sink_.put(elements);
    const auto* floats = reinterpret_cast<const float*>(elements.data());
    const std::int64_t count = std::ssize(elements) / size();
    std::vector<std::byte> encoded(static_cast<std::size_t>(encodedBytes(encoding_, count)));
    encode(encoding_, {floats, static_cast<std::size_t>(count)}, encoded, part_.name);
    sink_.put(encoded);
  }

  // What is stored as it is wanted is copied from file to file.
  void same() {
    const std::int64_t begin = part_.firstRow * rowElements_, count = part_.rows * rowElements_;
    const bool isStoredSo = plainType(encoding_) == stored_.type;
    for (std::int64_t done = 0; done < count; done += blockOfElements) {
      const std::int64_t length = std::min(blockOfElements, count - done);
      std::optional<FilePlace> place;
      if (isStoredSo) place = model_.place(stored_, begin + done, length);
      if (place) {
        sink_.copy(*place, length * size());
      } else {
        give(readElementsOf(begin + done, length));
      }
    }
  }

  void interleaved() {
    const std::int64_t heads = part_.rows / part_.headSize, rowBytes = rowElements_ * size();
    const std::int64_t most = std::max<std::int64_t>(1, blockOfElements / (part_.headSize * rowElements_));
    for (std::int64_t head = 0; head < heads; head += most) {
      const std::int64_t rows = std::min(most, heads - head) * part_.headSize;
      const std::vector<std::byte> ours = read(head * part_.headSize, rows);
      std::vector<std::byte> theirs(ours.size());
      for (std::int64_t row = 0; row < rows; ++row) {
        std::memcpy(theirs.data() + row * rowBytes, ours.data() + ourRow(part_, row) * rowBytes,
                    static_cast<std::size_t>(rowBytes));
      }
      give(theirs);
    }
  }

  // Theirs is [inputs, outputs]: a few of its rows at a time.
  void transposed() {
    const std::vector<std::byte> ours = read(0, part_.rows);
    const std::int64_t most = std::max<std::int64_t>(1, blockOfElements / part_.rows);
    for (std::int64_t column = 0; column < rowElements_; column += most) {
      const std::int64_t columns = std::min(most, rowElements_ - column);
      std::vector<std::byte> theirs(static_cast<std::size_t>(columns * part_.rows * size()));
      transpose(ours.data() + column * size(), part_.rows, columns, rowElements_, size(), theirs.data());
      give(theirs);
    }
  }

  const ModelSource& model_;
  const StoredParameter& stored_;
  const Part& part_;
  Encoding encoding_;
  DType type_;
  std::int64_t rowElements_;
  Sink& sink_;
};

}  // namespace

void writeTensorFiles(comm::Communicator& communicator, std::span<const OutputFile> files,
                      const std::function<void(const StoredTensor&, Sink&)>& give) {
  const bool isRoot = communicator.rank() == 0;
  try {
    comm::agreeOn(communicator, [&] {
      if (isRoot) createFiles(files);
    });
    comm::agreeOn(communicator, [&] { writeShare(communicator, files, give); });
    comm::agreeOn(communicator, [&] {
      if (isRoot) publish(files);
    });
  } catch (...) {
    if (isRoot) remove(files);
    throw;
  }
}

void writePart(const ModelSource& model, const Parameter& parameter, const Part& part, Encoding encoding,
               Sink& sink) {
  PartWriter(model, parameter, part, encoding, sink).run();
}

}  // namespace tandem::checkpoint::detail
