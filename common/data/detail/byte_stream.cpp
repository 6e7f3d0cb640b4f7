#include "common/data/detail/byte_stream.h"

#include <zlib.h>
#include <zstd.h>

#include <array>
#include <vector>

#include "common/base/error.h"
#include "common/base/files.h"

namespace tandem::data::detail {
namespace {

using base::Error;
using base::ErrorKind;

class PlainStream : public ByteStream {
 public:
  PlainStream(const std::filesystem::path& path, std::int64_t begin)
      : file_(base::File::openForReading(path)), offset_(begin) {}

  std::int64_t read(std::span<char> bytes) override {
    const std::int64_t got = file_.readAt(offset_, std::as_writable_bytes(bytes));
    offset_ += got;
    return got;
  }

 private:
  base::File file_;
  std::int64_t offset_;
};

// What both decompressors have in common: a buffer of compressed bytes.
class Compressed {
 public:
  explicit Compressed(const std::filesystem::path& path) : stream_(path, 0), buffer_(std::size_t{1} << 18) {}

  std::span<char> left() const { return left_; }
  void consume(std::size_t count) { left_ = left_.subspan(count); }
  // False at the end of the file.
  bool refill() {
    if (!left_.empty()) return true;
    left_ = std::span(buffer_).first(static_cast<std::size_t>(stream_.read(buffer_)));
    return !left_.empty();
  }

 private:
  PlainStream stream_;
  std::vector<char> buffer_;
  std::span<char> left_;
};

class GzipStream : public ByteStream {
 public:
  explicit GzipStream(const std::filesystem::path& path) : input_(path) {
    constexpr int gzipOnly = 15 + 16;
    if (inflateInit2(&state_, gzipOnly) != Z_OK) throw Error(ErrorKind::device, "zlib could not start: no memory");
  }
  ~GzipStream() override { inflateEnd(&state_); }
  GzipStream(const GzipStream&) = delete;
  GzipStream& operator=(const GzipStream&) = delete;

  std::int64_t read(std::span<char> bytes) override {
    state_.next_out = reinterpret_cast<Bytef*>(bytes.data());
    state_.avail_out = static_cast<uInt>(bytes.size());
    while (state_.avail_out > 0 && failure_.empty()) {
      if (!input_.refill()) {
        if (insideMember_) failure_ = "the gzip data break off";
        break;
      }
      if (!insideMember_) inflateReset(&state_);
      insideMember_ = true;
      state_.next_in = reinterpret_cast<Bytef*>(input_.left().data());
      state_.avail_in = static_cast<uInt>(input_.left().size());
      const int result = inflate(&state_, Z_NO_FLUSH);
      input_.consume(input_.left().size() - state_.avail_in);
      if (result == Z_STREAM_END) {
        insideMember_ = false;
      } else if (result != Z_OK && result != Z_BUF_ERROR) {
        failure_ = std::string("the gzip data are damaged (") + (state_.msg != nullptr ? state_.msg : "zlib") + ")";
      }
    }
    // What was decompressed before the failure is handed out first.
    const auto count = static_cast<std::int64_t>(bytes.size() - state_.avail_out);
    if (count == 0 && !failure_.empty()) throw BrokenStream(failure_);
    return count;
  }

 private:
  Compressed input_;
  z_stream state_{};
  bool insideMember_ = false;
  std::string failure_;
};

class ZstdStream : public ByteStream {
 public:
  explicit ZstdStream(const std::filesystem::path& path) : input_(path), state_(ZSTD_createDStream()) {
    if (state_ == nullptr) throw Error(ErrorKind::device, "zstd could not start: no memory");
  }
  ~ZstdStream() override { ZSTD_freeDStream(state_); }
  ZstdStream(const ZstdStream&) = delete;
  ZstdStream& operator=(const ZstdStream&) = delete;

  std::int64_t read(std::span<char> bytes) override {
    ZSTD_outBuffer target{bytes.data(), bytes.size(), 0};
    while (target.pos < target.size && failure_.empty()) {
      const bool more = input_.refill();
      if (!more && !insideFrame_) break;
      ZSTD_inBuffer source{input_.left().data(), input_.left().size(), 0};
      const std::size_t before = target.pos;
      const std::size_t result = ZSTD_decompressStream(state_, &target, &source);
      input_.consume(source.pos);
      if (ZSTD_isError(result) != 0) {
        failure_ = std::string("the zstd data are damaged (") + ZSTD_getErrorName(result) + ")";
      } else {
        insideFrame_ = result != 0;
        if (!more && insideFrame_ && target.pos == before) failure_ = "the zstd data break off";
      }
    }
    if (target.pos == 0 && !failure_.empty()) throw BrokenStream(failure_);
    return static_cast<std::int64_t>(target.pos);
  }

 private:
  Compressed input_;
  ZSTD_DStream* state_;
  bool insideFrame_ = false;
  std::string failure_;
};

}  // namespace

std::unique_ptr<ByteStream> openStream(const TextFile& file, std::int64_t begin) {
  TANDEM_ASSERT(begin == 0 || file.compression == Compression::none, "a compressed file is read from its start");
  switch (file.compression) {
    case Compression::gzip:
      return std::make_unique<GzipStream>(file.path);
    case Compression::zstd:
      return std::make_unique<ZstdStream>(file.path);
    case Compression::none:
      break;
  }
  return std::make_unique<PlainStream>(file.path, begin);
}

}  // namespace tandem::data::detail
