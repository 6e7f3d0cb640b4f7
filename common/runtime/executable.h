#pragma once
// Runs a program on a backend: every tensor has its place before the first run, and nothing is allocated afterwards.

#include <array>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "common/graph/passes.h"
#include "common/graph/program.h"
#include "common/runtime/activation_exchange.h"
#include "kernels/backend.h"

namespace tandem::runtime {

// Device memory owned by one holder.
class DeviceMemory {
 public:
  enum class Place {
    device,
    host,  // pinned: the device's kernels reach it over the bus
  };
  DeviceMemory(kernels::Backend& backend, std::int64_t bytes, Place place = Place::device);
  ~DeviceMemory();
  DeviceMemory(const DeviceMemory&) = delete;
  DeviceMemory& operator=(const DeviceMemory&) = delete;
  std::byte* data() const { return data_; }
  std::int64_t bytes() const { return bytes_; }

 private:
  kernels::Backend& backend_;
  Place place_;
  std::byte* data_;
  std::int64_t bytes_;
};

// One block for the activations of all programs that never run at the same time; as large as the largest needs.
class Arena {
 public:
  explicit Arena(kernels::Backend& backend) : backend_(backend) {}
  void reserve(std::int64_t bytes);
  std::byte* data() const { return memory_ ? memory_->data() : nullptr; }
  std::int64_t bytes() const { return memory_ ? memory_->bytes() : 0; }

 private:
  kernels::Backend& backend_;
  std::unique_ptr<DeviceMemory> memory_;
};

// What a run calls for the nodes that exchange data between ranks.
class Collectives {
 public:
  virtual ~Collectives() = default;
  // Starts the exchange of a bucket; `gradients` are those that the program has made in its own memory, null where they
  // lie outside.
  virtual void reduceScatter(std::int32_t bucket, void* gradients) = 0;
  // Waits for that of a bucket in the program's memory, which has other uses then.
  virtual void waitForSums(std::int32_t bucket) = 0;
  // Between any two nodes: gives exchanges under way a chance to proceed.
  virtual void progress() = 0;
};

// Where a program gets buckets of weights from that its ranks share out.
class WeightSource {
 public:
  virtual ~WeightSource() = default;
  // Starts to bring a whole bucket to `target`; wait() must follow before the same bucket is asked for again.
  virtual void gather(std::int32_t bucket, void* target) = 0;
  virtual void wait(std::int32_t bucket) = 0;
  // As of Collectives.
  virtual void progress() = 0;
};

// Seconds and calls by operator, added up over runs.
struct Profile {
  struct Entry {
    double seconds = 0;
    std::int64_t calls = 0;
  };
  std::array<Entry, graph::operatorCount> entries{};
  // A table, the most expensive operator first.
  std::string text() const;
};

class Executable {
 public:
  Executable(graph::Program program, kernels::Backend& backend, kernels::Stream& stream, std::shared_ptr<Arena> arena);

  // Gives a tensor of role parameter, gradient or state its memory.
  void bind(const std::string& tensor, void* memory);
  bool has(const std::string& tensor) const { return program_.find(tensor) != graph::none; }

  // Copies a whole input in, or a whole output out; host memory, elements as the tensor stores them.
  void setInput(const std::string& tensor, const void* source);
  void readOutput(const std::string& tensor, void* target);
  // The same of an output in any storage type, as float32.
  std::vector<float> readFloats(const std::string& tensor);
  const base::Shape& inputShape(const std::string& tensor) const { return program_.tensor(need(tensor)).shape; }
  // What kernels::Attention is told of the next runs' documents; 0, as at first: unknown. Each number has recordings of
  // its own.
  void setDocuments(std::int64_t documents) { documents_ = documents; }
  void* outputMemory(const std::string& tensor) const;

  // Runs all nodes. In the first micro batch of a step gradients are overwritten, in the later ones added to.
  // Every bound tensor must have been bound. Without `collectives` buckets of gradients are not exchanged.
  void run(bool firstMicroBatch = true, Collectives* collectives = nullptr);
  // The same in two parts: up to the loss (or to what is sent to the next stage), and the rest.
  void runForward(bool firstMicroBatch, Collectives* collectives);
  void runBackward(bool firstMicroBatch, Collectives* collectives);

  // As run(), from the third time on by recordings where the backend has them: one for the nodes up to each exchange,
  // which the host starts itself. For programs that run many times with the same memory, as in decoding and training.
  void replay(bool firstMicroBatch = true, Collectives* collectives = nullptr);
  // How many recordings replay() enqueues; 0 while there are none.
  std::size_t recordings(bool firstMicroBatch = true) const {
    const auto& recorded = firstMicroBatch ? first_ : later_;
    const auto found = recorded.find(documents_);
    return found == recorded.end() ? 0 : found->second.pieces.size();
  }

  // For programs of one rank of several: what carries out their exchanges of activations.
  void exchangeThrough(ActivationExchange* exchange) { exchange_ = exchange; }

  // For programs whose weights are shared out: where they come from.
  void gatherFrom(WeightSource* weights) { weights_ = weights; }

  void profileInto(Profile* profile) { profile_ = profile; }
  const graph::Program& program() const { return program_; }
  const graph::MemoryPlan& plan() const { return plan_; }

 private:
  // Nodes [begin, end) without an exchange, recorded.
  struct Piece {
    std::size_t begin, end;
    std::unique_ptr<kernels::Recording> recording;
  };
  // A program's pieces in their order. First micro batches and later ones differ: these add to gradients.
  struct Recorded {
    bool hasRun = false;  // with this memory: what the operators borrow is there
    std::vector<Piece> pieces;
  };

  graph::TensorId need(const std::string& tensor) const;
  void placeActivations();
  void forgetRecordings();
  std::vector<Piece> record(bool firstMicroBatch);
  void exchangeBetween(std::size_t begin, std::size_t end, Collectives* collectives);
  void runNodes(std::size_t begin, std::size_t end, bool firstMicroBatch, Collectives* collectives);
  void runOne(const graph::Node& node, bool firstMicroBatch, Collectives* collectives);
  void exchangeParameters(const graph::Node& node, Collectives* collectives);
  void progress(Collectives* collectives);

  graph::Program program_;
  graph::MemoryPlan plan_;
  std::size_t forwardNodes_ = 0;
  kernels::Backend& backend_;
  kernels::Stream& stream_;
  std::shared_ptr<Arena> arena_;
  const std::byte* placedAt_ = nullptr;  // where the arena lay when the views were made
  std::unique_ptr<DeviceMemory> inputsAndOutputs_;
  std::vector<kernels::TensorView> views_;  // by TensorId
  ActivationExchange* exchange_ = nullptr;
  WeightSource* weights_ = nullptr;
  bool keepsGradients_ = true;  // over micro batches; else they are parts of its own memory
  Profile* profile_ = nullptr;
  std::int64_t documents_ = 0;
  std::map<std::int64_t, Recorded> first_, later_;  // by number of documents
};

}  // namespace tandem::runtime
