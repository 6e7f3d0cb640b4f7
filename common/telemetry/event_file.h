#pragma once
// The curves of a run as TensorBoard reads them: RUN/tensorboard/events.out.tfevents.*, written by rank 0.
//
// The format is TensorFlow's: records (length, its checksum, data, its checksum), each of which is a protocol buffer of
// the message Event. Four small messages and three kinds of field are all that scalars need, so they are encoded here
// rather than by protobuf, which would bring a code generator into the build and its library onto every node.
//
// Each start of a run begins a file of its own, as TensorBoard expects: it tells the reader from which step on older
// points no longer hold, and those that the older files have of such steps are cut off.

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "common/telemetry/metrics.h"

namespace tandem::telemetry {

struct Scalar {
  std::string tag;  // "group/name"
  double value = 0;
};

// What is shown of a step and of an evaluation; quantities that are not known are left out.
std::vector<Scalar> scalarsOf(const StepMetrics& metrics);
std::vector<Scalar> scalarsOf(const EvaluationMetrics& metrics);

// A record that holds an Event with these values. `wallTime`: seconds since 1970.
std::string eventRecord(double wallTime, std::int64_t step, const std::vector<Scalar>& scalars);

// How many bytes of an event file are whole records with steps up to this one. What follows is of later steps, or was
// left unfinished by a crash.
std::int64_t bytesUpTo(std::string_view file, std::int64_t step);

// All failures throw Error of kind file.
class EventFile {
 public:
  // Cuts the folder's files back to that step, and begins a file for those that follow.
  EventFile(const std::filesystem::path& folder, std::int64_t step);

  template <typename Metrics>
  void append(const Metrics& metrics) {
    append(metrics.step, scalarsOf(metrics));
  }
  void append(std::int64_t step, const std::vector<Scalar>& scalars);
  void sync();

 private:
  AppendedFile file_;
};

}  // namespace tandem::telemetry
