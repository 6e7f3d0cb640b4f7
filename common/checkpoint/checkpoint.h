#pragma once
// Checkpoints: whole or not there at all, readable by anything that reads HDF5, and loadable on any number of ranks.
//
// A step is the folder RUN/checkpoints/step-00000100/. Every rank writes its pieces of the logical tensors into a file
// of its own, shard-00003-of-00008.h5; checkpoint.h5, written last, shows each tensor whole, as a virtual dataset over
// the shards, and holds the tokenizer, the configuration, the progress, and a layout (JSON) with the size and checksum
// of every shard and the place of every piece. checksums.xxh128 has the checksums of checkpoint.h5 and of all shards,
// as `xxhsum --check` reads them.
//
// Commit: all is written and synced in step-00000100.partial/, which is then renamed, and the parent synced. A crash at
// any moment leaves the step before it loadable. Steps beyond `keep` are deleted afterwards, each renamed to
// step-00000050.deleting before.

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "common/base/dtype.h"
#include "common/base/shape.h"
#include "common/checkpoint/run_lock.h"
#include "common/comm/communicator.h"

namespace tandem::checkpoint {

// Runs of consecutive elements of the flattened (row-major) tensor, and where this rank holds them, one after the
// other: `repeats` runs of `count` elements, the first from `begin` on, each beginning `stride` elements behind the one
// before. With repeats > 1 they are columns of a matrix: the stride is its width.
struct Piece {
  std::int64_t begin = 0;
  std::int64_t count = 0;
  const void* data = nullptr;
  std::int64_t repeats = 1;
  std::int64_t stride = 0;

  std::int64_t elements() const { return count * repeats; }
};

// Copies bytes from where a piece lies into memory of the host; they must be there when it returns. For pieces in the
// memory of a device; pieces of the host need none.
using CopyToHost = std::function<void(void* target, const void* source, std::int64_t bytes)>;

// What a rank contributes to a logical tensor: all ranks together cover each element exactly once.
struct LocalTensor {
  std::string name;  // HDF5 path below the root: "model/layers.0.attention.qkv.weight", "optimizer/first_moment/..."
  base::DType type = base::DType::f32;
  base::Shape shape;  // of the whole tensor; a scalar is [1]
  std::vector<Piece> pieces;
};

// All texts are JSON or what their name says; they are stored as they are.
struct Metadata {
  std::int64_t step = 0;
  std::string tokenizer;      // tokenizer.json text, may be empty
  std::string configuration;  // the model's, Hugging Face field names
  std::string options;        // every option of the run
  std::string progress;       // sample index, tokens seen, random state, loss scale, best loss...
  // Of an imported model: a JSON object of the texts that lay beside its configuration, by the names of their files:
  // generation_config.json, chat_template.jinja... Goes with the model from checkpoint to checkpoint; may be empty.
  std::string companions = {};
};

// Saves in the background. The step loop waits for one copy of what it saves, kept for the next save; then it calls
// poll() once a step, which never blocks. A thread of low priority writes, resting most of the time until somebody
// waits for it; it never communicates.
//
// Holds the run's lock: an output folder in use by another live process is an Error of kind usage. Removes what an
// interrupted save or deletion left behind. All members but idle and failed are collective over the communicator.
class Writer {
 public:
  // keep: how many steps to leave in the folder, the new one included; 0 keeps all. Later steps than the one saved are
  // left alone. `lock`: the folder's, where rank 0 has taken it before; the others have none.
  Writer(comm::Communicator& communicator, std::filesystem::path run, int keep,
         std::unique_ptr<RunLock> lock = nullptr);
  // Finishes the save under way (a failure is logged), but gives it up while an exception passes.
  ~Writer();
  Writer(const Writer&) = delete;
  Writer& operator=(const Writer&) = delete;

  // Copies the pieces and returns; writing goes on in the background. Finishes the save before it first. Replaces a
  // step of the same number.
  void save(const Metadata& metadata, std::span<const LocalTensor> tensors, const CopyToHost& copy = {});
  // From the next save on this step is left in the folder, however many follow it. One step at a time.
  void protect(std::int64_t step);
  // Drives the save under way and never blocks, so that it is committed as soon as every rank has written its shard.
  void poll();
  // Waits for the save under way. When it failed on any rank, throws the reason on every rank: the step before stays
  // whole and loadable, and nothing of this one is left.
  void finish();
  // True when no save is going on. Ranks learn of it at different times.
  bool idle() const;
  // True when the save under way is known to have failed: finish() or the next save() will throw. Ranks learn of it at
  // different times, so they have to agree (with the loss, say) before one calls finish().
  bool failed() const;

 private:
  class Implementation;
  std::unique_ptr<Implementation> implementation_;
};

// Where elements lie in a file, one behind the other and as they are stored.
struct FilePlace {
  std::filesystem::path file;
  std::int64_t offset = 0;
};

// When a Reader checks the shards of a step against their checksums.
enum class Verification {
  atOnce,  // all, dealt out over the ranks, before it is made
  // Each before the first read from it, and the one behind it meanwhile: reading goes on beside. Damage is an Error of
  // kind badData of that read, and no step before is tried. Several ranks verify at once all the same, since each would
  // have to verify what others need too.
  whenRead,
};

// Opens the newest complete step of a run folder, or one step's folder. A step that is damaged (a shard missing,
// truncated, or not matching its checksum) is said so and passed over for the step before it, unless the path names
// that very step; none left is an Error of kind badData. Collective: all ranks open the same step.
class Reader {
 public:
  struct Entry {
    std::string name;
    base::DType type = base::DType::f32;
    base::Shape shape;
  };

  Reader(comm::Communicator& communicator, const std::filesystem::path& path,
         Verification verification = Verification::atOnce);
  ~Reader();
  Reader(const Reader&) = delete;
  Reader& operator=(const Reader&) = delete;

  const Metadata& metadata() const;
  const std::filesystem::path& folder() const;
  const std::vector<Entry>& tensors() const;
  bool has(const std::string& name) const;
  // Reads `count` elements of the flattened tensor from element `begin`, as stored. Not collective: a rank reads what
  // it needs. Kind badData when the tensor is missing or another type or shape.
  void read(const std::string& name, base::DType type, const base::Shape& shape, std::int64_t begin, std::int64_t count,
            void* target) const;
  // Where read() would find these elements, for who copies files; the shard is verified by then. Nothing when they are
  // not in one run of one shard.
  std::optional<FilePlace> place(const std::string& name, std::int64_t begin, std::int64_t count) const;

 private:
  class Implementation;
  std::unique_ptr<Implementation> implementation_;
};

// What a checkpoint says of itself, chosen as Reader chooses, but by checkpoint.h5 alone: its shards are not looked at.
// Not collective.
Metadata readMetadata(const std::filesystem::path& path);

// Where a step lies in its run folder.
std::filesystem::path relativePathOf(std::int64_t step);

// The complete steps of a run folder, ascending. Empty when there are none.
std::vector<std::int64_t> completeSteps(const std::filesystem::path& run);

}  // namespace tandem::checkpoint
