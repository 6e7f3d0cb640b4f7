#include "common/telemetry/event_file.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <limits>
#include <optional>

#include "common/base/error.h"
#include "common/base/files.h"

namespace tandem::telemetry {
namespace {

constexpr std::string_view filePrefix = "events.out.tfevents.";

// CRC-32C (Castagnoli), reflected: RFC 3720, section 12.1.
constexpr std::array<std::uint32_t, 256> makeCrcTable() {
  std::array<std::uint32_t, 256> table{};
  for (std::uint32_t byte = 0; byte < 256; ++byte) {
    std::uint32_t value = byte;
    for (int bit = 0; bit < 8; ++bit) value = (value >> 1) ^ ((value & 1) != 0 ? 0x82F63B78u : 0);
    table[byte] = value;
  }
  return table;
}

// Masked, as checksums of data that itself holds checksums are: rotated by 15 bits, plus a constant.
std::uint32_t maskedCrc(std::string_view bytes) {
  static constexpr std::array<std::uint32_t, 256> table = makeCrcTable();
  std::uint32_t crc = 0xFFFFFFFFu;
  for (const char byte : bytes) crc = (crc >> 8) ^ table[(crc ^ static_cast<std::uint8_t>(byte)) & 0xFFu];
  return std::rotr(crc ^ 0xFFFFFFFFu, 15) + 0xA282EAD8u;
}

template <typename Unsigned>
void addLittleEndian(Unsigned value, std::string& out) {
  for (std::size_t i = 0; i < sizeof value; ++i) out += static_cast<char>((value >> (8 * i)) & 0xFFu);
}

template <typename Unsigned>
Unsigned littleEndian(std::string_view bytes) {
  Unsigned value = 0;
  for (std::size_t i = 0; i < sizeof value; ++i) {
    value |= static_cast<Unsigned>(static_cast<Unsigned>(static_cast<std::uint8_t>(bytes[i])) << (8 * i));
  }
  return value;
}

// The wire format of protocol buffers: a key (number of the field and kind of value), then the value.
enum class Wire : std::uint32_t { varint = 0, eightBytes = 1, text = 2, fourBytes = 5 };

void addVarint(std::uint64_t value, std::string& out) {
  for (; value >= 0x80; value >>= 7) out += static_cast<char>((value & 0x7Fu) | 0x80u);
  out += static_cast<char>(value);
}
void addKey(std::uint32_t field, Wire wire, std::string& out) {
  addVarint((field << 3) | static_cast<std::uint32_t>(wire), out);
}
void addText(std::uint32_t field, std::string_view text, std::string& out) {
  addKey(field, Wire::text, out);
  addVarint(text.size(), out);
  out += text;
}

// Reads a varint off the front; none when the bytes end within it.
std::optional<std::uint64_t> takeVarint(std::string_view& bytes) {
  std::uint64_t value = 0;
  for (std::size_t i = 0; i < std::min<std::size_t>(bytes.size(), 10); ++i) {
    const auto byte = static_cast<std::uint8_t>(bytes[i]);
    value |= static_cast<std::uint64_t>(byte & 0x7Fu) << (7 * i);
    if ((byte & 0x80u) != 0) continue;
    bytes.remove_prefix(i + 1);
    return value;
  }
  return std::nullopt;
}

// message Event { double wall_time = 1; int64 step = 2; string file_version = 3; Summary summary = 5;
//                 SessionLog session_log = 7; }
constexpr std::uint32_t stepOfEvent = 2, fileVersionOfEvent = 3, summaryOfEvent = 5, sessionOfEvent = 7;

std::string beginEvent(double wallTime, std::int64_t step) {
  std::string event;
  addKey(1, Wire::eightBytes, event);
  addLittleEndian(std::bit_cast<std::uint64_t>(wallTime), event);
  addKey(stepOfEvent, Wire::varint, event);
  addVarint(static_cast<std::uint64_t>(step), event);
  return event;
}

std::string framed(std::string_view data) {
  std::string record;
  addLittleEndian(std::uint64_t{data.size()}, record);
  addLittleEndian(maskedCrc(record), record);
  record += data;
  addLittleEndian(maskedCrc(data), record);
  return record;
}

// The step of an event of ours, in which it stands before all fields but the time; 0 in the first event of a file.
std::uint64_t stepOf(std::string_view event) {
  while (!event.empty()) {
    const std::optional<std::uint64_t> key = takeVarint(event);
    if (!key) break;
    if (*key == ((stepOfEvent << 3) | static_cast<std::uint32_t>(Wire::varint))) return takeVarint(event).value_or(0);
    if ((*key & 7u) != static_cast<std::uint32_t>(Wire::eightBytes) || event.size() < 8) break;
    event.remove_prefix(8);
  }
  return 0;
}

// Length of the record that the bytes begin with; none when it is not whole.
std::optional<std::size_t> recordSize(std::string_view bytes) {
  constexpr std::size_t frame = 16, head = 12;
  if (bytes.size() < frame || littleEndian<std::uint32_t>(bytes.substr(8)) != maskedCrc(bytes.substr(0, 8))) {
    return std::nullopt;
  }
  const auto size = littleEndian<std::uint64_t>(bytes);
  if (size > bytes.size() - frame) return std::nullopt;
  const std::string_view data = bytes.substr(head, size);
  if (littleEndian<std::uint32_t>(bytes.substr(head + size)) != maskedCrc(data)) return std::nullopt;
  return frame + size;
}

double now() { return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count(); }

std::vector<std::filesystem::path> eventFiles(const std::filesystem::path& folder) {
  std::vector<std::filesystem::path> files;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    if (entry.path().filename().string().starts_with(filePrefix)) files.push_back(entry.path());
  }
  return files;
}

// Cut by length rather than replaced: a reader that has it open goes on. What begins with no record is not ours.
void cutBack(const std::filesystem::path& file, std::int64_t step) {
  const std::string content = base::readFile(file);
  const std::int64_t kept = bytesUpTo(content, step);
  if (kept == 0 || kept == static_cast<std::int64_t>(content.size())) return;
  if (::truncate(file.c_str(), kept) == 0) return;
  throw base::Error(base::ErrorKind::file, "cannot cut '" + file.string() + "': " + base::systemErrorText(errno));
}

// TensorBoard reads files in the order of their names, which begin with a time: later than all that are there, even
// where two starts fall into a second or a clock was set back.
std::filesystem::path nextFile(const std::filesystem::path& folder) {
  auto seconds = static_cast<std::int64_t>(now());
  for (const std::filesystem::path& file : eventFiles(folder)) {
    const std::string name = file.filename().string();
    std::int64_t other = 0;
    std::from_chars(name.data() + filePrefix.size(), name.data() + name.size(), other);
    if (other < std::numeric_limits<std::int32_t>::max()) seconds = std::max(seconds, other + 1);
  }
  return folder / (std::string(filePrefix) + std::to_string(seconds) + "." + base::identity().host);
}

AppendedFile openNext(const std::filesystem::path& folder, std::int64_t step) {
  base::createFolders(folder);
  for (const std::filesystem::path& file : eventFiles(folder)) cutBack(file, step);
  return AppendedFile(nextFile(folder));
}

}  // namespace

void addPreference(const std::string& group, const PreferenceMetrics& m, std::vector<Scalar>& scalars) {
  scalars.push_back({group + "reward_chosen", m.rewardChosen});
  scalars.push_back({group + "reward_rejected", m.rewardRejected});
  scalars.push_back({group + "reward_margin", m.rewardMargin});
  scalars.push_back({group + "reward_accuracy", m.rewardAccuracy});
}

std::vector<Scalar> scalarsOf(const StepMetrics& m) {
  std::vector<Scalar> scalars{{"training/loss", m.loss},
                              {"training/learning_rate", m.learningRate},
                              {"training/gradient_norm", m.gradientNorm},
                              {"training/tokens", static_cast<double>(m.tokens)},
                              {"training/skipped", m.skipped ? 1.0 : 0.0},
                              {"speed/tokens_per_second", m.tokensPerSecond},
                              {"speed/model_flops_per_second", m.modelFlopsPerSecond},
                              {"seconds/step", m.stepSeconds},
                              {"seconds/compute", m.computeSeconds},
                              {"seconds/wait", m.waitSeconds},
                              {"seconds/communication", m.communicationSeconds},
                              {"seconds/data", m.dataSeconds},
                              {"seconds/checkpoint", m.checkpointSeconds},
                              {"health/peak_memory_bytes", static_cast<double>(m.peakMemoryBytes)}};
  if (m.preference) addPreference("training/", *m.preference, scalars);
  const auto addKnown = [&](const char* tag, const std::optional<double>& value) {
    if (value) scalars.push_back({tag, *value});
  };
  addKnown("training/loss_scale", m.lossScale);
  addKnown("speed/mfu", m.mfu);
  addKnown("speed/matrix_rate_share", m.matrixRateShare);
  addKnown("health/power_watts", m.powerWatts);
  for (const auto& [group, norm] : m.gradientNormGroups) scalars.push_back({"gradient_norm/" + group, norm});
  return scalars;
}

std::vector<Scalar> scalarsOf(const EvaluationMetrics& m) {
  const std::string group = "evaluation/" + m.evaluation + "/";
  if (m.preference) {
    std::vector<Scalar> scalars{{group + "loss", m.loss}};
    addPreference(group, *m.preference, scalars);
    return scalars;
  }
  return {{group + "loss", m.loss}, {group + "perplexity", m.perplexity()}, {group + "bits_per_byte", m.bitsPerByte}};
}

std::string eventRecord(double wallTime, std::int64_t step, const std::vector<Scalar>& scalars) {
  // message Summary { repeated Value value = 1; }   message Value { string tag = 1; float simple_value = 2; }
  std::string summary;
  for (const Scalar& scalar : scalars) {
    std::string value;
    addText(1, scalar.tag, value);
    addKey(2, Wire::fourBytes, value);
    addLittleEndian(std::bit_cast<std::uint32_t>(static_cast<float>(scalar.value)), value);
    addText(1, value, summary);
  }
  std::string event = beginEvent(wallTime, step);
  addText(summaryOfEvent, summary, event);
  return framed(event);
}

std::int64_t bytesUpTo(std::string_view file, std::int64_t step) {
  std::size_t kept = 0;
  while (const std::optional<std::size_t> size = recordSize(file.substr(kept))) {
    if (stepOf(file.substr(kept + 12, *size - 16)) > static_cast<std::uint64_t>(step)) break;
    kept += *size;
  }
  return static_cast<std::int64_t>(kept);
}

EventFile::EventFile(const std::filesystem::path& folder, std::int64_t step) : file_(openNext(folder, step)) {
  std::string first = beginEvent(now(), 0);
  addText(fileVersionOfEvent, "brain.Event:2", first);
  // message SessionLog { SessionStatus status = 1; }   START = 1: points of this step and later ones hold no longer
  std::string start = beginEvent(now(), step + 1);
  std::string session;
  addKey(1, Wire::varint, session);
  addVarint(1, session);
  addText(sessionOfEvent, session, start);
  file_.append(framed(first) + framed(start));
}

void EventFile::append(std::int64_t step, const std::vector<Scalar>& scalars) {
  file_.append(eventRecord(now(), step, scalars));
}

void EventFile::sync() { file_.sync(); }

}  // namespace tandem::telemetry
