// The rows that a training takes, in its order, for programs that are to be trained on the same: of each row its
// tokens, then their targets, as int32.
//
//   training_rows DATASET SEQUENCE_LENGTH ROWS OUTPUT      the first ROWS of a run with --seed 0 and --cross-documents

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <numeric>
#include <string>
#include <vector>

#include "common/comm/session.h"
#include "common/data/batch_stream.h"

namespace {

using namespace tandem;

void put(std::ofstream& file, const std::int32_t* values, std::int64_t count) {
  file.write(reinterpret_cast<const char*>(values), static_cast<std::streamsize>(count * 4));
}

int writeRows(const std::string& dataset, std::int64_t sequenceLength, std::int64_t rows, const std::string& output) {
  const data::WeightedPath paths[] = {{dataset}};
  const data::TrainingData training(paths, {.sequenceLength = sequenceLength, .crossDocuments = true});
  std::vector<std::int64_t> samples(static_cast<std::size_t>(rows));
  std::iota(samples.begin(), samples.end(), 0);
  const data::Batch batch = training.batch(samples);
  std::ofstream file(output, std::ios::binary);
  for (std::int64_t row = 0; row < rows; ++row) {
    put(file, batch.tokens.data() + row * sequenceLength, sequenceLength);
    put(file, batch.targets.data() + row * sequenceLength, sequenceLength);
  }
  file.flush();
  if (file) return 0;
  std::fprintf(stderr, "training_rows: cannot write '%s'\n", output.c_str());
  return 1;
}

}  // namespace

int main(int argc, char** argv) {
  return comm::Session::run(argc, argv, [&](comm::Communicator&) {
    if (argc != 5) {
      std::fprintf(stderr, "usage: training_rows DATASET SEQUENCE_LENGTH ROWS OUTPUT\n");
      return 2;
    }
    return writeRows(argv[1], std::atoll(argv[2]), std::atoll(argv[3]), argv[4]);
  });
}
