#pragma once
// The kernel contract: memory, streams, and one function an operator, over typed views.
//
// Three implementations: reference/ (plain loops in double, the oracle of the tests), cpu/ (SIMD and threads) and
// cuda/. `rows` below is the product of all axes but the last. Views are dense unless an operator says otherwise. An
// operator only enqueues on its stream (on a CPU it is done on return), never allocates memory of its own on the hot
// path beyond the scratch it was given, and computes in float32 whatever the storage type of the tensors is.
//
// Optional operands are views whose data is null. `accumulate` means target += value instead of target = value.
// Storage types: activations and weights float32, bfloat16 or float16 (all of one call alike unless said), gradients of
// parameters float32, statistics (mean, reciprocal deviation, log-sum-exp, losses) float32, indices int32.

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "kernels/quantised.h"
#include "kernels/tensor_view.h"

namespace tandem::kernels {

enum class NormKind { layer, rms };
enum class ActivationKind { none, geluTanh, geluErf, relu2, swiglu };

// --- operators of a model -------------------------------------------------------------------------------------------

// Where only some rows of a table are here: they are those of the indices from `first` on, and indices outside of them
// stand for a row of zeros, which has no gradient. Without `isPart` every index must be in the table.
struct TablePart {
  bool isPart = false;
  std::int64_t firstToken = 0;
  std::int64_t firstPosition = 0;
};

struct Embedding {                 // output[r] = weight[tokens[r]] (+ positionWeight[positions[r]])
  ConstTensorView tokens;          // int32 [batch, time]; in [0, vocabulary)
  ConstTensorView positions;       // int32 [batch, time]; optional, with positionWeight
  ConstTensorView weight;          // [vocabulary, width]
  ConstTensorView positionWeight;  // [positions, width]; optional
  TensorView output;               // [batch, time, width]
  TablePart part = {};             // of the vocabulary and of the positions that the two tables hold
};
struct EmbeddingBackward {  // gradients of the two tables, summed over equal tokens in a fixed order
  ConstTensorView tokens, positions;
  ConstTensorView gradOutput;     // [batch, time, width]
  TensorView gradWeight;          // float32 [vocabulary, width]
  TensorView gradPositionWeight;  // float32; optional
  bool accumulateWeight = false;
  bool accumulatePositionWeight = false;
  TablePart part = {};
};

struct Norm {  // sum = input + residual; output = (sum - mean) * reciprocal * weight + bias; mean = 0 for rms
  NormKind kind = NormKind::rms;
  float epsilon = 1e-5f;
  ConstTensorView input;     // [rows, width]
  ConstTensorView residual;  // [rows, width]; optional
  ConstTensorView weight;    // [width]
  ConstTensorView bias;      // [width]; optional
  TensorView sum;            // [rows, width]; given exactly when residual is; may be input's or residual's memory
  TensorView output;         // [rows, width]
  TensorView mean;           // float32 [rows]; layer only
  TensorView reciprocal;     // float32 [rows]: 1 / sqrt(variance + epsilon)
};
struct NormBackward {
  NormKind kind = NormKind::rms;
  ConstTensorView gradOutput;  // [rows, width]
  ConstTensorView gradSum;     // [rows, width]; optional: what reaches the sum by the residual path, added to gradInput
  ConstTensorView input;       // [rows, width]: the input, or the sum when there was a residual
  ConstTensorView weight, mean, reciprocal;
  TensorView gradInput;     // [rows, width]; may be gradSum's memory
  TensorView gradWeight;    // float32 [width]
  TensorView gradBias;      // float32 [width]; optional
  bool accumulate = false;  // both parameter gradients
};

// How a linear layer rounds its operands to 8 bits before they are multiplied (Micikevicius et al., FP8 Formats for
// Deep Learning): inputs and weights to e4m3 (largest value 448), the gradient of its output to e5m2 (57344), each
// times a scale, a power of two, that is taken out of the product again; what is larger is clipped. Sums, biases,
// activations and results are as without it. A tensor float32 [fp8::count], indexed by the constants below: scales are
// read (0: the largest power of two that this operand's own largest value leaves room for), largest absolute values are
// raised to what was seen. fp8_format.h has the rounding. Rows, inputs and outputs are multiples of 16.
namespace fp8 {
enum Place { inputScale, weightScale, gradientScale, inputLargest, weightLargest, gradientLargest, count };
}  // namespace fp8

struct Linear {                                      // output = activation(input weight^T + bias)
  ConstTensorView input;                             // [rows, inputs]
  ConstTensorView weight;                            // [outputs, inputs]
  ConstTensorView bias;                              // [outputs]; optional
  ActivationKind activation = ActivationKind::none;  // any but swiglu
  TensorView preActivation;                          // [rows, outputs]; optional: kept for the backward pass
  TensorView output;                                 // [rows, outputs]
  TensorView fp8 = {};  // optional: multiply 8-bit operands; reads and writes inputs, weights
};
struct LinearBackwardInput {                         // gradInput = (gradOutput weight) * activation'(preActivation)
  ConstTensorView gradOutput;                        // [rows, outputs]
  ConstTensorView weight;                            // [outputs, inputs]
  ActivationKind activation = ActivationKind::none;  // of the operator that made this linear's input; fused backward
  ConstTensorView preActivation;                     // [rows, inputs]; with an activation
  TensorView gradInput;                              // [rows, inputs]
  bool accumulate = false;
  TensorView fp8 = {};  // optional; reads scales of gradient and weight, raises the gradient's largest value
};
struct LinearBackwardWeight {  // gradWeight = gradOutput^T input; gradBias = column sums of gradOutput
  ConstTensorView gradOutput;  // [rows, outputs]
  ConstTensorView input;       // [rows, inputs]
  TensorView gradWeight;       // float32 [outputs, inputs]
  TensorView gradBias;         // float32 [outputs]; optional
  bool accumulate = false;
  TensorView fp8 = {};  // optional; reads scales of gradient and input. gradBias sums what was not rounded
};

// Products with weights that are held quantised (quantised.h), for inference. The inputs may be rounded too, to int8 in
// the same groups of 32 with a scale of their own, where integer products are faster.
struct QuantisedLinear {                             // output = activation(input weight^T + bias)
  ConstTensorView input;                             // [rows, inputs]
  QuantisedMatrix weight;                            // [outputs, inputs]
  ConstTensorView bias;                              // [outputs]; optional
  ActivationKind activation = ActivationKind::none;  // any but swiglu
  TensorView output;                                 // [rows, outputs]
};
struct QuantisedEmbedding {        // as Embedding, from a quantised table
  ConstTensorView tokens;          // int32 [batch, time]
  ConstTensorView positions;       // int32 [batch, time]; optional, with positionWeight
  QuantisedMatrix weight;          // [vocabulary, width]
  ConstTensorView positionWeight;  // [positions, width]; optional
  TensorView output;               // [batch, time, width]
};
struct Dequantise {        // output = the matrix that the codes stand for
  QuantisedMatrix matrix;  // [outputs, inputs]
  TensorView output;       // [outputs, inputs]
};

struct Activation {  // output = f(input); swiglu: silu(input[:, :width]) * input[:, width:]
  ActivationKind kind = ActivationKind::geluTanh;
  ConstTensorView input;  // [rows, width], swiglu [rows, 2 width]
  TensorView output;      // [rows, width]
};
struct ActivationBackward {
  ActivationKind kind = ActivationKind::geluTanh;
  ConstTensorView gradOutput;  // [rows, width]
  ConstTensorView input;       // as above
  TensorView gradInput;        // as input; for kinds but swiglu it may be gradOutput's memory
};

struct Add {  // output = left + right; output may be left's or right's memory
  ConstTensorView left, right;
  TensorView output;
};

// output = factor * input, or 0 for an element that is dropped: each with the probability `rate`, as dropout_mask.h says.
// Without keys nothing is dropped. Its own gradient: the same over gradOutput.
struct Dropout {
  ConstTensorView input;      // [rows, width]
  ConstTensorView keys;       // int32 [rows, 2]; optional
  TensorView output;          // as input; may be its memory
  float rate = 0;             // from 0 to below 1
  float factor = 1;           // 1 / (1 - rate) keeps the expectation
  std::uint32_t purpose = 0;  // tells the masks of several nodes apart
};

// A matrix by the lengths of its rows and their directions, of which adapters may learn both (DoRA; Liu et al. 2024).
struct RowNorms {                  // norms[r] = |matrix[r]|; changedNorms[r] = |matrix[r] + factor * change[r]|
  ConstTensorView matrix, change;  // [rows, width]
  float factor = 1;
  TensorView norms, changedNorms;  // float32 [rows]; the same bits where the change is zero
};
struct Rescale {                        // output[:, j] = stretch(j) * input[:, j] + bias[j]; row_stretch.h has stretch
  ConstTensorView input;                // [rows, width]
  ConstTensorView gain;                 // [width]: what is added to norms
  ConstTensorView norms, changedNorms;  // float32 [width]: of the rows of the matrix that made the input's columns
  ConstTensorView bias;                 // [width]; optional
  TensorView output;                    // [rows, width]; may be input's memory
};
struct RescaleBackward {                // gradInput = stretch * gradOutput; the norms are constants
  ConstTensorView gradOutput, input;    // [rows, width]
  ConstTensorView gain;                 // [width]
  ConstTensorView norms, changedNorms;  // float32 [width]
  TensorView gradInput;                 // [rows, width]; may be gradOutput's memory
  TensorView gradGain;                  // float32 [width]: sums over the rows of gradOutput * input, over changedNorms
  bool accumulate = false;
};

// Heads of one fused projection: a row is [heads * headSize queries | kvHeads * headSize keys | the same of values].
struct HeadLayout {
  std::int64_t heads = 0, kvHeads = 0, headSize = 0;
  std::int64_t width() const { return (heads + 2 * kvHeads) * headSize; }
};

// Rotates queries and keys by their positions: pairs are (i, i + headSize/2), the angle is position * frequencies[i]
// (Su et al., RoFormer, in the half-split layout of Llama). With queryWeight and keyWeight each head is first
// RMS-normalised and scaled (QK-norm, as in Qwen3). Values are copied. In place (output is input) without QK-norm.
struct Rotary {
  HeadLayout layout;
  ConstTensorView input;                   // [rows, layout.width()]
  ConstTensorView positions;               // int32 [rows]
  ConstTensorView frequencies;             // float32 [headSize / 2]
  ConstTensorView queryWeight, keyWeight;  // [headSize]; both or none
  float epsilon = 1e-6f;
  TensorView output;      // [rows, layout.width()]
  TensorView reciprocal;  // float32 [rows, heads + kvHeads]; with QK-norm
};
struct RotaryBackward {
  HeadLayout layout;
  ConstTensorView gradOutput;  // [rows, layout.width()]
  ConstTensorView positions, frequencies;
  ConstTensorView input, queryWeight, keyWeight, reciprocal;  // with QK-norm
  TensorView gradInput;                                       // may be gradOutput's memory
  TensorView gradQueryWeight, gradKeyWeight;                  // float32 [headSize]; with QK-norm
  bool accumulate = false;
};

// Softmax attention of each query over keys of its own row of the batch: query t sees keys s with
// max(documentStart[t], t - window + 1) <= s <= t (window 0: no limit). Head h reads keys of head h * kvHeads / heads.
// Queries and keys may be two pieces of a longer row, of which t, s and documentStart are places: query i stands at
// place firstQuery + i, key i at firstKey + i. A query that sees no key of the piece has the output 0 and the
// log-sum-exp -infinity.
struct Attention {
  ConstTensorView query;          // [batch, time, heads, headSize]; strided
  ConstTensorView key, value;     // [batch, keys, kvHeads, headSize]; strided
  ConstTensorView documentStart;  // int32 [batch, time]: index in the row where the token's document begins
  std::int64_t window = 0;
  float scale = 0;       // multiplies query . key
  TensorView output;     // [batch, time, heads, headSize]; strided
  TensorView logSumExp;  // float32 [batch, heads, time]
  std::int64_t firstQuery = 0, firstKey = 0;
  // For kernels that take documents as sequences: `batch` if each row is one, else no fewer than all rows hold
  // together. 0 where the host does not know.
  std::int64_t documents = 0;
};
struct AttentionBackward {
  ConstTensorView query, key, value, documentStart;
  ConstTensorView output, logSumExp;  // over all keys that the queries see, also those of other pieces
  ConstTensorView gradOutput;         // as output
  std::int64_t window = 0;
  float scale = 0;
  TensorView gradQuery, gradKey, gradValue;  // as query, key, value; strided
  std::int64_t firstQuery = 0, firstKey = 0;
  std::int64_t documents = 0;  // as above
};
// Attention over some keys and over others, put together as attention over them all: logSumExp and output take in
// otherLogSumExp and otherOutput. A log-sum-exp of -infinity is that of no keys.
struct MergeAttention {
  ConstTensorView otherOutput;     // [batch, time, heads, headSize]
  ConstTensorView otherLogSumExp;  // float32 [batch, heads, time]
  TensorView output;               // [batch, time, heads, headSize]
  TensorView logSumExp;            // float32 [batch, heads, time]
};

// Attention of new tokens over a cache of earlier ones, which it first extends: token i of sequence b goes to place
// lengths[b] + i of the cache and sees the places [max(0, own - window + 1), own].
struct CachedAttention {
  ConstTensorView query;            // [batch, fresh, heads, headSize]; strided
  ConstTensorView key, value;       // [batch, fresh, kvHeads, headSize]; strided
  ConstTensorView lengths;          // int32 [batch]: tokens in the cache before this call
  TensorView keyCache, valueCache;  // [batch, kvHeads, capacity, headSize]
  std::int64_t window = 0;
  float scale = 0;
  TensorView output;  // [batch, fresh, heads, headSize]; strided
};

// Cross entropy of a projection onto the vocabulary, chunk of rows by chunk of rows, so that the logits of all rows
// never exist at once: loss[r] = logSumExp_v(input[r] . weight[v]) - input[r] . weight[targets[r]], 0 where the target
// is -1. With gradInput (and gradWeight) it also gives the gradients of gradScale * sum of losses.
struct LinearCrossEntropy {
  ConstTensorView input;      // [rows, width]
  ConstTensorView weight;     // [vocabulary, width]
  ConstTensorView targets;    // int32 [rows]; in [-1, vocabulary)
  ConstTensorView gradScale;  // float32 [1], or [rows] of each loss; with gradients
  TensorView losses;          // float32 [rows]
  TensorView gradInput;       // [rows, width]; optional
  TensorView gradWeight;      // float32 [vocabulary, width]; with gradInput, optional (a frozen head has none)
  bool accumulateWeight = false;
};

// The same where the vocabulary is cut into parts, each with its rows of the weight: three operators. The first gives,
// for each row, the log-sum-exp over the part's logits, and the logit of the target where that is in the part, else 0.
struct PartialCrossEntropy {
  ConstTensorView input;        // [rows, width]
  ConstTensorView weight;       // [part, width]: of the tokens from firstToken on
  ConstTensorView targets;      // int32 [rows]; in [-1, whole vocabulary)
  std::int64_t firstToken = 0;  // of the part
  TensorView partials;          // float32 [2, rows]; unspecified, but finite, where the target is -1
};
// The second puts them together: logSumExp[r] over the whole vocabulary, losses[r] = logSumExp[r] - the target's logit,
// 0 where the target is -1.
struct MergeCrossEntropy {
  ConstTensorView partials;  // float32 [parts, 2, rows]
  ConstTensorView targets;   // int32 [rows]
  TensorView losses;         // float32 [rows]
  TensorView logSumExp;      // float32 [rows]
};
// The third gives what the part has of the gradients of gradScale * sum of losses; it makes the logits again.
struct PartialCrossEntropyBackward {
  ConstTensorView input, weight, targets;
  std::int64_t firstToken = 0;
  ConstTensorView logSumExp;  // float32 [rows]
  ConstTensorView gradScale;  // float32 [1]
  TensorView gradInput;       // [rows, width]: a summand, one of each part
  TensorView gradWeight;      // float32 [part, width]; optional
  bool accumulateWeight = false;
};

// --- operators of the optimizer and of bookkeeping, over flat runs of elements ---------------------------------------

// Rounding of float32 to one of the two bfloat16 around it, up with a probability that makes the mean exact: 16 random
// bits are added to the bits of the float, whose lower half is then cut off. Element i takes them from the 32-bit word
// (firstElement + i) % 4 of philox(key, (firstElement + i) / 4, stream), the first moment its lower half, the second
// its upper one: so they depend on what is rounded and not on who holds it. NaN stays NaN.
struct StochasticRounding {
  std::uint64_t key = 0, stream = 0;
  std::int64_t firstElement = 0;
};

// Decoupled weight decay (Loshchilov & Hutter, AdamW): m = beta1 m + (1-beta1) g; v = beta2 v + (1-beta2) g^2;
// w -= learningRate * ((m / (1-beta1^step)) / (sqrt(v / (1-beta2^step)) + epsilon) + weightDecay * w).
// With bfloat16 moments every backend gives the same bits: float32 arithmetic in the order of kernels/adamw_factors.h,
// moments rounded stochastically once the weight has been updated from the unrounded ones.
struct AdamW {
  ConstTensorView gradient;              // float32 [count]
  TensorView weight;                     // float32 [count]: the master weights
  TensorView firstMoment, secondMoment;  // [count], both float32 or both bfloat16
  TensorView lowWeight;  // bfloat16 or float16 [count]; optional: the rounded weights that the model computes with
  float learningRate = 0, beta1 = 0.9f, beta2 = 0.95f, epsilon = 1e-8f, weightDecay = 0;
  float gradientScale = 1;      // multiplies the gradient first (clipping, loss scale)
  std::int64_t step = 1;        // counted from 1
  StochasticRounding rounding;  // of bfloat16 moments
};
// Orthogonalises a matrix by Newton-Schulz iterations, the core of Muon (Jordan et al. 2024):
// X = M / |M|; five times X = a X + (b A + c A A) X with A = X X^T and (a, b, c) = (3.4445, -4.7750, 2.0315).
struct NewtonSchulz {
  ConstTensorView matrix;  // float32 [rows, columns]
  TensorView output;       // float32 [rows, columns]
  std::int64_t iterations = 5;
};
struct SquaredNorm {      // result[0] = sum of squares, summed in double in a fixed order
  ConstTensorView input;  // float32 [count]
  TensorView result;      // float64 [1]
};
struct Scale {      // data *= factor
  TensorView data;  // float32 [count]
  float factor = 1;
};
struct Axpy {              // target += factor * source
  ConstTensorView source;  // float32 [count]
  TensorView target;       // float32 [count]
  float factor = 1;
};
struct Cast {  // output = input in another storage type, rounded to nearest even
  ConstTensorView input;
  TensorView output;
};
struct Fill {
  TensorView target;  // any storage type, [count]
  float value = 0;
};

// --- the contract ----------------------------------------------------------------------------------------------------

// A point in the work of a stream.
class Event {
 public:
  virtual ~Event() = default;
  virtual bool reached() = 0;
  // Waits on the host until that work is done.
  virtual void synchronize() = 0;
};

// An ordered queue of work. The CPU's does everything at once.
class Stream {
 public:
  virtual ~Stream() = default;
  virtual void synchronize() = 0;
  // The point that all work enqueued so far has then reached.
  virtual std::unique_ptr<Event> record() = 0;
  // What is enqueued here from now on begins after that point, which is another stream's; the host does not wait.
  virtual void waitFor(const Event& event) = 0;
  // The device library's own handle (cudaStream_t), for libraries that enqueue by themselves; null on the host.
  virtual void* handle() const { return nullptr; }
};

// Work recorded from a stream, to be enqueued there again as one piece: a decode step is many short kernels, whose
// starting one by one takes longer than they do.
class Recording {
 public:
  virtual ~Recording() = default;
  // False once memory that the work borrowed has moved: it has to be recorded anew.
  virtual bool isValid() const = 0;
  virtual void enqueue() = 0;
};

class Backend {
 public:
  virtual ~Backend() = default;

  virtual std::string name() const = 0;  // "cpu", "reference", "cuda"
  // One line on what will compute: SIMD target, threads, matrix library, and why it was chosen.
  virtual std::string description() const = 0;

  // Which device it is, the same in all processes that use it: for finding ranks that share one. Empty for the host.
  virtual std::string deviceIdentifier() const { return ""; }

  // Which kernels have served attention so far, why not others, and at what rate: for a log, once calls have run. Empty
  // where there is no choice.
  virtual std::string attentionReport() { return ""; }
  // Why this device has no products of 8-bit floats; empty if it has them, or emulates them.
  virtual std::string whyNoFp8() const { return ""; }

  // Memory of the device, aligned to 64 bytes at least. Kind device, naming the size, when there is not enough.
  virtual void* allocate(std::int64_t bytes) = 0;
  virtual void release(void* memory) = 0;
  virtual void copyToDevice(void* target, const void* source, std::int64_t bytes, Stream& stream) = 0;
  virtual void copyToHost(void* target, const void* source, std::int64_t bytes, Stream& stream) = 0;
  virtual std::unique_ptr<Stream> makeStream() = 0;
  // Records what the work enqueues on the stream, without running it. The same work must have run there before, so that
  // all it borrows is there. Null where nothing is gained by it, as on the host; the work is not called then.
  virtual std::unique_ptr<Recording> record(Stream&, const std::function<void()>& /*work*/) { return nullptr; }
  // Whether the host may read and write memory of allocate() directly.
  virtual bool isHostMemory() const { return true; }
  // Pinned memory of the host: copied from and to at full speed, and kernels may use it as they do the device's.
  virtual void* allocateStaging(std::int64_t bytes) { return allocate(bytes); }
  virtual void releaseStaging(void* memory) { release(memory); }

  virtual void run(const Embedding&, Stream&) = 0;
  virtual void run(const EmbeddingBackward&, Stream&) = 0;
  virtual void run(const Norm&, Stream&) = 0;
  virtual void run(const NormBackward&, Stream&) = 0;
  virtual void run(const Linear&, Stream&) = 0;
  virtual void run(const LinearBackwardInput&, Stream&) = 0;
  virtual void run(const LinearBackwardWeight&, Stream&) = 0;
  virtual void run(const QuantisedLinear&, Stream&) = 0;
  virtual void run(const QuantisedEmbedding&, Stream&) = 0;
  virtual void run(const Dequantise&, Stream&) = 0;
  virtual void run(const Activation&, Stream&) = 0;
  virtual void run(const ActivationBackward&, Stream&) = 0;
  virtual void run(const Add&, Stream&) = 0;
  virtual void run(const Dropout&, Stream&) = 0;
  virtual void run(const RowNorms&, Stream&) = 0;
  virtual void run(const Rescale&, Stream&) = 0;
  virtual void run(const RescaleBackward&, Stream&) = 0;
  virtual void run(const Rotary&, Stream&) = 0;
  virtual void run(const RotaryBackward&, Stream&) = 0;
  virtual void run(const Attention&, Stream&) = 0;
  virtual void run(const AttentionBackward&, Stream&) = 0;
  virtual void run(const MergeAttention&, Stream&) = 0;
  virtual void run(const CachedAttention&, Stream&) = 0;
  virtual void run(const LinearCrossEntropy&, Stream&) = 0;
  virtual void run(const PartialCrossEntropy&, Stream&) = 0;
  virtual void run(const MergeCrossEntropy&, Stream&) = 0;
  virtual void run(const PartialCrossEntropyBackward&, Stream&) = 0;
  virtual void run(const AdamW&, Stream&) = 0;
  virtual void run(const NewtonSchulz&, Stream&) = 0;
  virtual void run(const SquaredNorm&, Stream&) = 0;
  virtual void run(const Scale&, Stream&) = 0;
  virtual void run(const Axpy&, Stream&) = 0;
  virtual void run(const Cast&, Stream&) = 0;
  virtual void run(const Fill&, Stream&) = 0;
};

// The oracle: one thread, plain loops, sums in double.
std::unique_ptr<Backend> makeReferenceBackend();

struct CpuOptions {
  int threads = 0;                     // 0: what OpenMP would take
  std::string matrixLibrary = "auto";  // "auto", "onednn", "openblas"
};
// Throws Error of kind usage for a matrix library that this build or processor does not have.
std::unique_ptr<Backend> makeCpuBackend(const CpuOptions& options);

struct CudaOptions {
  int device = 0;                  // ordinal among the devices that CUDA shows
  std::string attention = "auto";  // "auto", "cudnn", "mma", "reference"
  bool tf32 = false;               // float32 products with 10 bits of mantissa
  bool tuneProducts = false;       // time the algorithms of products: faster, but not the same bits in every run
};
// Throws Error of kind device when whyNoCuda() has a reason, kind usage for an attention path that does not exist.
std::unique_ptr<Backend> makeCudaBackend(const CudaOptions& options);
// Why this program cannot compute on a GPU here: built without CUDA, no driver, no device. Empty if it can.
std::string whyNoCuda();
// Devices that CUDA shows; 0 when there are none.
int cudaDeviceCount();
// "13.0", or "not in this build".
std::string cudaVersion();

}  // namespace tandem::kernels
