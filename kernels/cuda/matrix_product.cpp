// cuBLASLt thinks in columns. A row-major matrix [rows, columns] is, in the same memory, a column-major one of
// `columns` rows, so target = op(left) op(right) becomes target^T = op(right)^T op(left)^T: cuBLASLt's A is our right
// operand, its B our left one, its m our columns, and no matrix is copied or transposed. Its bias runs along the rows
// of its D, which are our columns, and its sums over B (BGRADB) are ours over the left operand.
#include "kernels/cuda/matrix_product.h"

#include <cublasLt.h>

#include <algorithm>
#include <array>
#include <limits>
#include <map>
#include <mutex>
#include <vector>

#include "common/base/error.h"

namespace tandem::kernels::cuda {

namespace {

constexpr std::int64_t workspaceBytes = std::int64_t{32} << 20;  // what cuBLASLt may use a stream, as NVIDIA advises
constexpr int workspaceSlot = 4;                                 // of the scratch; operators use others
constexpr int triedCandidates = 6;                               // algorithms that are tried for a shape
constexpr int trialRounds = 4;                                   // the first warms up
constexpr float worthwhile = 0.95f;  // of the first candidate's time: below, noise alone would decide

void check(cublasStatus_t status, const char* what) {
  if (status == CUBLAS_STATUS_SUCCESS) return;
  throw base::Error(base::ErrorKind::device, std::string("cuBLASLt, ") + what + ": " + cublasLtGetStatusName(status) +
                                                 ": " + cublasLtGetStatusString(status));
}

// --- what cuBLASLt keeps a problem in --------------------------------------------------------------------------------

struct Destroy {
  void operator()(cublasLtMatmulDescOpaque_t* it) const { cublasLtMatmulDescDestroy(it); }
  void operator()(cublasLtMatrixLayoutOpaque_t* it) const { cublasLtMatrixLayoutDestroy(it); }
  void operator()(cublasLtMatmulPreferenceOpaque_t* it) const { cublasLtMatmulPreferenceDestroy(it); }
};
using Operation = std::unique_ptr<cublasLtMatmulDescOpaque_t, Destroy>;
using Layout = std::unique_ptr<cublasLtMatrixLayoutOpaque_t, Destroy>;
using Preference = std::unique_ptr<cublasLtMatmulPreferenceOpaque_t, Destroy>;

template <class T>
void set(const Operation& operation, cublasLtMatmulDescAttributes_t attribute, const T& value) {
  check(cublasLtMatmulDescSetAttribute(operation.get(), attribute, &value, sizeof value), "describing a product");
}
template <class T>
void set(const Preference& preference, cublasLtMatmulPreferenceAttributes_t attribute, const T& value) {
  check(cublasLtMatmulPreferenceSetAttribute(preference.get(), attribute, &value, sizeof value),
        "saying what algorithms are wanted");
}

cudaDataType_t dataType(DType type) {
  switch (type) {
    case DType::f32:
      return CUDA_R_32F;
    case DType::bf16:
      return CUDA_R_16BF;
    case DType::f16:
      return CUDA_R_16F;
    default:
      throw base::Error(base::ErrorKind::usage, std::string("no CUDA matrix product of type ") + base::name(type) +
                                                    "; float32, bfloat16 and float16 are possible");
  }
}

cudaDataType_t dataType(const Matrix& matrix) {
  if (!matrix.fp8) return dataType(matrix.type);
  return *matrix.fp8 == fp8::Format::e4m3 ? CUDA_R_8F_E4M3 : CUDA_R_8F_E5M2;
}

Layout layoutOf(const Matrix& matrix) {
  cublasLtMatrixLayout_t layout = nullptr;
  check(cublasLtMatrixLayoutCreate(&layout, dataType(matrix), static_cast<std::uint64_t>(matrix.columns),
                                   static_cast<std::uint64_t>(matrix.rows), matrix.stride),
        "describing a matrix");
  return Layout(layout);
}

cublasOperation_t transposition(bool transposed) { return transposed ? CUBLAS_OP_T : CUBLAS_OP_N; }

bool isGelu(Epilogue epilogue) { return epilogue == Epilogue::gelu || epilogue == Epilogue::geluBias; }

cublasLtEpilogue_t epilogueOf(const Product& product) {
  const bool keeps = product.auxiliary.data != nullptr;
  switch (product.epilogue) {
    case Epilogue::bias:
      return CUBLASLT_EPILOGUE_BIAS;
    case Epilogue::gelu:
      return keeps ? CUBLASLT_EPILOGUE_GELU_AUX : CUBLASLT_EPILOGUE_GELU;
    case Epilogue::geluBias:
      return keeps ? CUBLASLT_EPILOGUE_GELU_AUX_BIAS : CUBLASLT_EPILOGUE_GELU_BIAS;
    case Epilogue::geluBackward:
      return CUBLASLT_EPILOGUE_DGELU;
    case Epilogue::leftSums:
      return CUBLASLT_EPILOGUE_BGRADB;
    default:
      return CUBLASLT_EPILOGUE_DEFAULT;
  }
}

// --- products --------------------------------------------------------------------------------------------------------

std::int64_t terms(const Product& product) { return product.transposeLeft ? product.left.rows : product.left.columns; }

std::int64_t extentBytes(const Matrix& matrix) {
  return ((matrix.rows - 1) * matrix.stride + matrix.columns) * base::byteSize(matrix.type);
}

bool isFp8(const Product& p) { return p.left.fp8 && p.right.fp8; }

void assertSound(const Product& p) {
  const std::int64_t rows = p.transposeLeft ? p.left.columns : p.left.rows;
  const std::int64_t columns = p.transposeRight ? p.right.rows : p.right.columns;
  const std::int64_t rightTerms = p.transposeRight ? p.right.columns : p.right.rows;
  TANDEM_ASSERT(rightTerms == terms(p) && p.target.rows == rows && p.target.columns == columns,
                "the shapes of a product do not fit together");
  TANDEM_ASSERT(isFp8(p) ? p.left.factor != nullptr && p.right.factor != nullptr && !p.transposeLeft && p.transposeRight
                         : p.left.type == p.right.type && (p.target.type == p.left.type || p.target.type == DType::f32),
                "the types of a product do not fit together");
  for (const Matrix* like : {&p.addend, &p.auxiliary}) {
    TANDEM_ASSERT(
        like->data == nullptr || (like->rows == rows && like->columns == columns && like->type == p.target.type),
        "an addend or auxiliary matrix of a product is not like its target");
  }
  TANDEM_ASSERT(p.addend.data != p.target.data || p.addend.stride == p.target.stride || p.addend.data == nullptr,
                "a product adds to its target, but strides differ");
  TANDEM_ASSERT(p.addend.data == nullptr || !(isGelu(p.epilogue) || p.epilogue == Epilogue::geluBackward),
                "a sum cannot go through a GELU before it is added to");
}

// Whether what cuBLASLt asks of the matrix beside the target is met: rows of whole groups of eight elements, which its
// documentation says, at multiples of 16 bytes, which its kernels move at once.
bool auxiliaryFits(const Product& product) {
  const Matrix& matrix = product.auxiliary;
  if (matrix.data == nullptr) return product.epilogue != Epilogue::geluBackward;
  return matrix.stride % 8 == 0 && reinterpret_cast<std::uintptr_t>(matrix.data) % 16 == 0;
}

// The bytes that an address is promised to be a multiple of; beyond a line of 256 none matter. Exact below that: for an
// epilogue's vector the heuristic sees the address itself, so another one must not be aligned less.
std::uint32_t alignmentOf(const void* data) {
  const auto address = reinterpret_cast<std::uintptr_t>(data) | 256;
  return static_cast<std::uint32_t>(address & (~address + 1));
}

// Everything that an algorithm depends on.
using Key = std::array<std::int64_t, 25>;
Key keyOf(const Product& p) {
  return {p.left.rows,
          p.left.columns,
          p.left.stride,
          p.right.rows,
          p.right.columns,
          p.right.stride,
          p.target.stride,
          p.transposeLeft,
          p.transposeRight,
          static_cast<std::int64_t>(p.left.type),
          static_cast<std::int64_t>(p.target.type),
          static_cast<std::int64_t>(p.epilogue),
          alignmentOf(p.left.data),
          alignmentOf(p.right.data),
          alignmentOf(p.target.data),
          p.addend.data == nullptr,
          p.addend.stride,
          alignmentOf(p.addend.data),
          alignmentOf(p.vector),
          p.auxiliary.data == nullptr,
          p.auxiliary.stride,
          alignmentOf(p.auxiliary.data),
          p.left.fp8 ? static_cast<std::int64_t>(*p.left.fp8) : -1,
          p.right.fp8 ? static_cast<std::int64_t>(*p.right.fp8) : -1,
          p.fastSums};
}

std::string describe(const Matrix& matrix, bool transposed) {
  const char* const type = !matrix.fp8                        ? base::name(matrix.type)
                           : *matrix.fp8 == fp8::Format::e4m3 ? "float8 e4m3"
                                                              : "float8 e5m2";
  return std::string(type) + " [" + std::to_string(matrix.rows) + ", " + std::to_string(matrix.columns) + "]" +
         (transposed ? "^T" : "") +
         (matrix.stride == matrix.columns ? "" : " of stride " + std::to_string(matrix.stride));
}

std::string describe(const Product& product) {
  static const char* const epilogues[] = {"", ", bias", ", GELU", ", bias and GELU", ", GELU backward", ", left sums"};
  return describe(product.left, product.transposeLeft) + " times " + describe(product.right, product.transposeRight) +
         " into " + describe(product.target, false) + epilogues[static_cast<int>(product.epilogue)] +
         (product.addend.data == nullptr ? "" : ", with an addend");
}

// A problem as cuBLASLt describes it, and the algorithms it names for it, best first.
struct Plan {
  Operation operation;
  Layout left, right, addend, target;
  std::vector<cublasLtMatmulHeuristicResult_t> candidates;  // none: refused
  cublasStatus_t refusal = CUBLAS_STATUS_NOT_SUPPORTED;
};

void setPointers(const Plan& plan, const Product& product) {
  if (isFp8(product)) {
    set(plan.operation, CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, product.right.factor);
    set(plan.operation, CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, product.left.factor);
  }
  if (product.vector != nullptr) set(plan.operation, CUBLASLT_MATMUL_DESC_BIAS_POINTER, product.vector);
  if (product.auxiliary.data != nullptr) {
    set(plan.operation, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, product.auxiliary.data);
  }
}

Operation operationOf(const Product& product, bool tf32) {
  cublasLtMatmulDesc_t made = nullptr;
  const bool rounds = tf32 && product.left.type == DType::f32 && !isFp8(product);
  check(cublasLtMatmulDescCreate(&made, rounds ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F, CUDA_R_32F),
        "describing a product");
  Operation operation(made);
  set(operation, CUBLASLT_MATMUL_DESC_TRANSA, transposition(product.transposeRight));
  set(operation, CUBLASLT_MATMUL_DESC_TRANSB, transposition(product.transposeLeft));
  set(operation, CUBLASLT_MATMUL_DESC_EPILOGUE, epilogueOf(product));
  if (product.fastSums) set(operation, CUBLASLT_MATMUL_DESC_FAST_ACCUM, std::int8_t{1});
  if (product.vector != nullptr) {
    set(operation, CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, dataType(product.target.type));
  }
  if (product.auxiliary.data != nullptr) {
    set(operation, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, product.auxiliary.stride);
    set(operation, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_DATA_TYPE, dataType(product.auxiliary.type));
  }
  return operation;
}

Preference preferenceFor(const Product& product) {
  cublasLtMatmulPreference_t made = nullptr;
  check(cublasLtMatmulPreferenceCreate(&made), "saying what algorithms are wanted");
  Preference preference(made);
  set(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, static_cast<std::uint64_t>(workspaceBytes));
  const void* addend = product.addend.data != nullptr ? product.addend.data : product.target.data;
  set(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, alignmentOf(product.right.data));
  set(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, alignmentOf(product.left.data));
  set(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, alignmentOf(addend));
  set(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, alignmentOf(product.target.data));
  return preference;
}

class CublasLt : public MatrixProduct {
 public:
  explicit CublasLt(const ProductOptions& options) : options_(options) { check(cublasLtCreate(&handle_), "starting"); }
  ~CublasLt() override { cublasLtDestroy(handle_); }
  CublasLt(const CublasLt&) = delete;
  CublasLt& operator=(const CublasLt&) = delete;

  std::string name() const override {
    const std::size_t version = cublasLtGetVersion();
    return "cuBLASLt " + std::to_string(version / 10000) + "." + std::to_string(version / 100 % 100) + "." +
           std::to_string(version % 100) + (options_.tf32 ? " (float32 as tf32)" : "");
  }

  bool offers(const Product& product) override {
    assertSound(product);
    const std::lock_guard lock(mutex_);
    return isEmpty(product) || !planOf(product).candidates.empty();
  }

  void run(const Product& product, cudaStream_t stream, Scratch& scratch) override {
    assertSound(product);
    const std::lock_guard lock(mutex_);
    if (isEmpty(product)) return runEmpty(product, stream);
    Plan& plan = planOf(product);
    if (plan.candidates.empty()) {
      throw base::Error(base::ErrorKind::device, "cuBLASLt has no algorithm for the product " + describe(product) +
                                                     ": " + cublasLtGetStatusName(plan.refusal) +
                                                     "; another size or --precision may be possible");
    }
    setPointers(plan, product);
    if (plan.candidates.size() > 1) keepFastest(plan, product, stream, scratch);
    const cublasStatus_t status = multiply(plan, plan.candidates[0], product, stream, scratch);
    if (status != CUBLAS_STATUS_SUCCESS) {
      throw base::Error(base::ErrorKind::device, "cuBLASLt, computing the product " + describe(product) + ": " +
                                                     cublasLtGetStatusName(status) + ": " +
                                                     cublasLtGetStatusString(status));
    }
  }

 private:
  // cuBLASLt refuses sizes of zero.
  static bool isEmpty(const Product& product) {
    return product.target.rows == 0 || product.target.columns == 0 || terms(product) == 0;
  }

  // A product of no terms is zero.
  static void runEmpty(const Product& product, cudaStream_t stream) {
    const Matrix& target = product.target;
    const bool inPlace = product.addend.data == target.data && product.addendFactor == 1;
    if (target.rows == 0 || target.columns == 0) return;
    TANDEM_ASSERT((product.epilogue == Epilogue::none || product.epilogue == Epilogue::leftSums) &&
                      (inPlace || product.addend.data == nullptr),
                  "a product of no terms has nothing for an epilogue");
    const auto rowBytes = static_cast<std::size_t>(target.columns * base::byteSize(target.type));
    auto* data = static_cast<std::byte*>(const_cast<void*>(target.data));
    for (std::int64_t row = 0; !inPlace && row < target.rows; ++row) {
      cuda::check(cudaMemsetAsync(data + row * target.stride * base::byteSize(target.type), 0, rowBytes, stream),
                  "a product");
    }
    if (product.epilogue == Epilogue::leftSums) {
      cuda::check(cudaMemsetAsync(const_cast<void*>(product.vector), 0,
                                  static_cast<std::size_t>(target.rows * base::byteSize(target.type)), stream),
                  "the sums of a product");
    }
  }

  Plan& planOf(const Product& product) {
    const auto [place, isNew] = plans_.try_emplace(keyOf(product));
    Plan& plan = place->second;
    if (!isNew) return plan;
    try {
      fill(plan, product);
    } catch (...) {
      plans_.erase(place);
      throw;
    }
    return plan;
  }

  void fill(Plan& plan, const Product& product) {
    plan.operation = operationOf(product, options_.tf32);
    plan.left = layoutOf(product.left);
    plan.right = layoutOf(product.right);
    plan.target = layoutOf(product.target);
    plan.addend = layoutOf(product.addend.data != nullptr ? product.addend : product.target);
    if (!auxiliaryFits(product)) return;
    setPointers(plan, product);  // the heuristic reads how they are aligned
    const int wanted = options_.tune ? triedCandidates : 1;
    plan.candidates.resize(static_cast<std::size_t>(wanted));
    int count = 0;
    plan.refusal = cublasLtMatmulAlgoGetHeuristic(handle_, plan.operation.get(), plan.right.get(), plan.left.get(),
                                                  plan.addend.get(), plan.target.get(), preferenceFor(product).get(),
                                                  wanted, plan.candidates.data(), &count);
    if (plan.refusal == CUBLAS_STATUS_SUCCESS && count == 0) plan.refusal = CUBLAS_STATUS_NOT_SUPPORTED;
    plan.candidates.resize(plan.refusal == CUBLAS_STATUS_SUCCESS ? static_cast<std::size_t>(count) : 0);
    std::erase_if(plan.candidates, [](const auto& candidate) { return candidate.state != CUBLAS_STATUS_SUCCESS; });
  }

  cublasStatus_t multiply(const Plan& plan, const cublasLtMatmulHeuristicResult_t& candidate, const Product& product,
                          cudaStream_t stream, Scratch& scratch) {
    void* const target = const_cast<void*>(product.target.data);
    const bool adds = product.addend.data != nullptr;
    const float beta = adds ? product.addendFactor : 0.0f;
    void* const workspace = candidate.workspaceSize == 0
                                ? nullptr
                                : scratch.get(workspaceSlot, static_cast<std::int64_t>(candidate.workspaceSize));
    return cublasLtMatmul(handle_, plan.operation.get(), &product.factor, product.right.data, plan.right.get(),
                          product.left.data, plan.left.get(), &beta, adds ? product.addend.data : target,
                          plan.addend.get(), target, plan.target.get(), &candidate.algo, workspace,
                          candidate.workspaceSize, stream);
  }

  void keepFastest(Plan& plan, const Product& product, cudaStream_t stream, Scratch& scratch) {
    Product trial = product;
    void* spare = nullptr;
    if (product.addend.data == product.target.data) {  // what is added to must not be added to twice
      if (cudaMalloc(&spare, static_cast<std::size_t>(extentBytes(product.target) + 256)) != cudaSuccess) {
        cudaGetLastError();  // forgets it
        plan.candidates.resize(1);
        return;
      }
      // Aligned no better than the target, which the algorithms were chosen for.
      const auto offset = reinterpret_cast<std::uintptr_t>(product.target.data) % 256;
      trial.target.data = trial.addend.data = static_cast<std::byte*>(spare) + offset;
    }
    const std::vector<float> times = trialTimes(plan, trial, stream, scratch);
    std::size_t best = 0;
    for (std::size_t i = 1; i < times.size(); ++i) {
      if (times[i] < times[best] && times[i] < worthwhile * times[0]) best = i;
    }
    plan.candidates = {plan.candidates[best]};
    if (spare != nullptr) cuda::check(cudaFree(spare), "releasing the target of a trial");
  }

  // Milliseconds of each candidate, the least of several rounds by turns; infinite for one that fails.
  std::vector<float> trialTimes(const Plan& plan, const Product& product, cudaStream_t stream, Scratch& scratch) {
    std::vector<float> times(plan.candidates.size(), std::numeric_limits<float>::infinity());
    cudaEvent_t begin = nullptr, end = nullptr;
    cuda::check(cudaEventCreate(&begin), "making an event");
    cuda::check(cudaEventCreate(&end), "making an event");
    for (int round = 0; round < trialRounds; ++round) {
      for (std::size_t i = 0; i < times.size(); ++i) {
        float milliseconds = 0;
        cuda::check(cudaEventRecord(begin, stream), "timing a product");
        if (multiply(plan, plan.candidates[i], product, stream, scratch) != CUBLAS_STATUS_SUCCESS) continue;
        cuda::check(cudaEventRecord(end, stream), "timing a product");
        cuda::check(cudaEventSynchronize(end), "timing a product");
        cuda::check(cudaEventElapsedTime(&milliseconds, begin, end), "timing a product");
        if (round > 0) times[i] = std::min(times[i], milliseconds);
      }
    }
    cudaEventDestroy(begin);
    cudaEventDestroy(end);
    return times;
  }

  ProductOptions options_;
  cublasLtHandle_t handle_ = nullptr;
  std::mutex mutex_;  // streams of several threads share the plans
  std::map<Key, Plan> plans_;
};

}  // namespace

std::unique_ptr<MatrixProduct> makeMatrixProduct(const ProductOptions& options) {
  return std::make_unique<CublasLt>(options);
}

}  // namespace tandem::kernels::cuda
