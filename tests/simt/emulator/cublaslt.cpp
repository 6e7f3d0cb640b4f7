// cuBLASLt's matmul as plain loops behind the vendor's own symbols, so that the caller's descriptors, leading
// dimensions, transposes and epilogues are what a test exercises. What the vendor's documentation forbids is refused,
// and so is every attribute that is not listed here: nothing is ignored. Where the documentation is vague, the stand-in
// is the stricter of the two. What it does not have: the vendor's own choice of algorithms, and their rounding.
//
// SIMT_CUBLASLT_CANDIDATES=n makes the heuristic name n algorithms (one without it), the first of them slow.
#include <cublasLt.h>
#include <cuda_fp8.h>

#include <chrono>
#include <cmath>
#include <cstdlib>
#include <thread>
#include <vector>

#include "tests/simt/emulator/runtime.h"

#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC optimize("O3")  // the products are most of what an emulated training step takes
#endif

namespace simt {

// The place of the algorithm of the last product among those that the heuristic named.
int last_product_algorithm = 0;

namespace {

struct Operation {
  cublasComputeType_t compute;
  cudaDataType_t scale;
  cublasOperation_t transpose_a, transpose_b;
  cublasLtEpilogue_t epilogue;
  const void* bias;
  void* auxiliary;
  std::int64_t auxiliary_ld;
  std::int32_t bias_type, auxiliary_type;  // -1: as D
  const float *factor_a, *factor_b;        // of 8-bit operands
  std::int8_t fast;
};
struct Layout {
  cudaDataType_t type;
  cublasLtOrder_t order;
  std::uint64_t rows, columns;
  std::int64_t ld;
  std::int32_t batch;
  std::int64_t batch_stride;
};
struct Preference {
  std::uint64_t workspace;
  std::uint32_t alignment[4];  // of A, B, C, D
};
static_assert(sizeof(Operation) <= sizeof(cublasLtMatmulDescOpaque_t) &&
              sizeof(Layout) <= sizeof(cublasLtMatrixLayoutOpaque_t) &&
              sizeof(Preference) <= sizeof(cublasLtMatmulPreferenceOpaque_t));

// What an algorithm was chosen for; cublasLtMatmul with anything else is refused.
struct Algorithm {
  std::uint64_t problem;
  std::uint32_t alignment[4], bias_alignment, auxiliary_alignment;
  std::uint64_t workspace;
  std::int32_t place, magic;
};
static_assert(sizeof(Algorithm) <= sizeof(cublasLtMatmulAlgo_t));
constexpr std::int32_t magic = 0x51A7;

struct Problem {
  Operation operation;
  Layout a, b, c, d;
  std::uint64_t m = 0, n = 0, k = 0;
};

template <class To, class Opaque>
To& as(Opaque* opaque) {
  return *reinterpret_cast<To*>(opaque->data);
}

template <class T>
cublasStatus_t set(T& to, const void* from, std::size_t bytes) {
  if (from == nullptr || bytes != sizeof(T)) return CUBLAS_STATUS_INVALID_VALUE;
  std::memcpy(&to, from, bytes);
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t refuse(cublasStatus_t status, const char* why) {
  if (getenv("SIMT_CUBLASLT_WHY") != nullptr) fprintf(stderr, "simt: cuBLASLt refuses: %s\n", why);
  return status;
}

// --- elements --------------------------------------------------------------------------------------------------------

bool is_fp8(cudaDataType_t type) { return type == CUDA_R_8F_E4M3 || type == CUDA_R_8F_E5M2; }
std::size_t width(cudaDataType_t type) {
  if (is_fp8(type)) return 1;
  return type == CUDA_R_32F ? 4 : type == CUDA_R_16BF || type == CUDA_R_16F ? 2 : 0;
}
float get(const void* data, std::size_t i, cudaDataType_t type) {
  if (type == CUDA_R_32F) return static_cast<const float*>(data)[i];
  if (type == CUDA_R_16BF) return __bfloat162float(static_cast<const __nv_bfloat16*>(data)[i]);
  if (is_fp8(type)) {
    return __half2float(__nv_cvt_fp8_to_halfraw(static_cast<const __nv_fp8_storage_t*>(data)[i],
                                                type == CUDA_R_8F_E4M3 ? __NV_E4M3 : __NV_E5M2));
  }
  return __half2float(static_cast<const __half*>(data)[i]);
}
void put(void* data, std::size_t i, cudaDataType_t type, float value) {
  if (type == CUDA_R_32F) {
    static_cast<float*>(data)[i] = value;
  } else if (type == CUDA_R_16BF) {
    static_cast<__nv_bfloat16*>(data)[i] = __float2bfloat16(value);
  } else {
    static_cast<__half*>(data)[i] = __float2half(value);
  }
}
// To 10 bits of mantissa, as a tensor core takes a float32.
float tf32(float value) {
  if (!std::isfinite(value)) return value;
  return __uint_as_float((__float_as_uint(value) + 0x1000u) & 0xffffe000u);
}
// c = sqrt(2 / pi), inner = c (x + 0.044715 x^3)
float gelu(float x) { return 0.5f * x * (1 + std::tanh(0.7978845608f * (x + 0.044715f * x * x * x))); }
float gelu_slope(float x) {
  const float t = std::tanh(0.7978845608f * (x + 0.044715f * x * x * x));
  return 0.5f * (1 + t) + 0.5f * x * (1 - t * t) * 0.7978845608f * (1 + 3 * 0.044715f * x * x);
}

std::size_t index(const Layout& layout, std::uint64_t row, std::uint64_t column) {
  const auto ld = static_cast<std::size_t>(layout.ld);
  return layout.order == CUBLASLT_ORDER_COL ? row + column * ld : column + row * ld;
}
std::size_t extent(const Layout& layout) {
  return (index(layout, layout.rows - 1, layout.columns - 1) + 1 +
          static_cast<std::size_t>(layout.batch - 1) * static_cast<std::size_t>(layout.batch_stride)) *
         width(layout.type);
}

// --- what goes together ----------------------------------------------------------------------------------------------

bool has_bias(cublasLtEpilogue_t epilogue) { return (epilogue & CUBLASLT_EPILOGUE_BIAS) != 0; }
bool has_gelu(cublasLtEpilogue_t epilogue) { return (epilogue & CUBLASLT_EPILOGUE_GELU) != 0; }
bool sums_operand(cublasLtEpilogue_t epilogue) {
  return epilogue == CUBLASLT_EPILOGUE_BGRADA || epilogue == CUBLASLT_EPILOGUE_BGRADB;
}
bool uses_vector(cublasLtEpilogue_t epilogue) { return has_bias(epilogue) || sums_operand(epilogue); }
bool uses_auxiliary(cublasLtEpilogue_t epilogue) { return (epilogue & 128) != 0; }
bool is_known(cublasLtEpilogue_t epilogue) {
  switch (epilogue) {
    case CUBLASLT_EPILOGUE_DEFAULT:
    case CUBLASLT_EPILOGUE_BIAS:
    case CUBLASLT_EPILOGUE_GELU:
    case CUBLASLT_EPILOGUE_GELU_BIAS:
    case CUBLASLT_EPILOGUE_GELU_AUX:
    case CUBLASLT_EPILOGUE_GELU_AUX_BIAS:
    case CUBLASLT_EPILOGUE_DGELU:
    case CUBLASLT_EPILOGUE_BGRADA:
    case CUBLASLT_EPILOGUE_BGRADB:
      return true;
    default:
      return false;
  }
}

cublasStatus_t check_shapes(Problem& p) {
  const Operation& o = p.operation;
  p.m = o.transpose_a == CUBLAS_OP_N ? p.a.rows : p.a.columns;
  p.k = o.transpose_a == CUBLAS_OP_N ? p.a.columns : p.a.rows;
  p.n = o.transpose_b == CUBLAS_OP_N ? p.b.columns : p.b.rows;
  const std::uint64_t terms_of_b = o.transpose_b == CUBLAS_OP_N ? p.b.rows : p.b.columns;
  if (terms_of_b != p.k || p.d.rows != p.m || p.d.columns != p.n || p.c.rows != p.m || p.c.columns != p.n) {
    return refuse(CUBLAS_STATUS_INVALID_VALUE, "the shapes do not fit together");
  }
  for (const Layout* layout : {&p.a, &p.b, &p.c, &p.d}) {
    const std::uint64_t fast = layout->order == CUBLASLT_ORDER_COL ? layout->rows : layout->columns;
    if (layout->rows == 0 || layout->columns == 0) return refuse(CUBLAS_STATUS_INVALID_VALUE, "a size is zero");
    if (layout->ld < 0 || static_cast<std::uint64_t>(layout->ld) < fast) {
      return refuse(CUBLAS_STATUS_INVALID_VALUE, "a leading dimension is less than its rows");
    }
    if (layout->batch != p.d.batch || layout->batch < 1) return refuse(CUBLAS_STATUS_INVALID_VALUE, "batches differ");
  }
  return CUBLAS_STATUS_SUCCESS;
}

// Products of 8-bit floats: where the device has them, of rows by transposed rows of multiples of 16.
cublasStatus_t check_fp8(const Problem& p) {
  const Operation& o = p.operation;
  int major = 0, minor = 0;
  cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, 0);
  cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, 0);
  if (10 * major + minor < 89) return refuse(CUBLAS_STATUS_NOT_SUPPORTED, "no 8-bit products before sm_89");
  if (!is_fp8(p.a.type) || !is_fp8(p.b.type) || (p.a.type == CUDA_R_8F_E5M2 && p.b.type == CUDA_R_8F_E5M2)) {
    return refuse(CUBLAS_STATUS_NOT_SUPPORTED, "no such pair of 8-bit types");
  }
  if (o.transpose_a != CUBLAS_OP_T || o.transpose_b != CUBLAS_OP_N) {
    return refuse(CUBLAS_STATUS_NOT_SUPPORTED, "8-bit operands that are not A transposed by B");
  }
  for (const Layout* layout : {&p.a, &p.b, &p.c, &p.d}) {
    if (layout->rows % 16 != 0 || layout->columns % 16 != 0 || layout->ld % 16 != 0) {
      return refuse(CUBLAS_STATUS_NOT_SUPPORTED, "extents of an 8-bit product that are not multiples of 16");
    }
  }
  const bool results = p.c.type == p.d.type && !is_fp8(p.d.type) && width(p.d.type) != 0;
  const bool epilogue =
      o.epilogue == CUBLASLT_EPILOGUE_DEFAULT || (o.epilogue == CUBLASLT_EPILOGUE_BIAS && p.d.type != CUDA_R_32F);
  if (!results || !epilogue || o.scale != CUDA_R_32F || o.compute != CUBLAS_COMPUTE_32F) {
    return refuse(CUBLAS_STATUS_NOT_SUPPORTED, "no such combination with 8-bit operands");
  }
  return CUBLAS_STATUS_SUCCESS;
}

// The rows of the documentation's table for float32 arithmetic.
cublasStatus_t check_types(const Problem& p) {
  if (is_fp8(p.a.type) || is_fp8(p.b.type)) return check_fp8(p);
  if (p.operation.factor_a != nullptr || p.operation.factor_b != nullptr || p.operation.fast != 0) {
    return refuse(CUBLAS_STATUS_INVALID_VALUE, "factors or fast sums without 8-bit operands");
  }
  const bool operands = p.a.type == p.b.type && width(p.a.type) != 0;
  const bool results = p.c.type == p.d.type && (p.d.type == p.a.type || p.d.type == CUDA_R_32F);
  const bool arithmetic =
      p.operation.scale == CUDA_R_32F &&
      (p.operation.compute == CUBLAS_COMPUTE_32F ||
       (p.operation.compute == CUBLAS_COMPUTE_32F_FAST_TF32 && p.a.type == CUDA_R_32F && p.d.type == CUDA_R_32F));
  return operands && results && arithmetic ? CUBLAS_STATUS_SUCCESS
                                           : refuse(CUBLAS_STATUS_NOT_SUPPORTED, "no such combination of types");
}

cublasStatus_t check_epilogue(const Problem& p) {
  const Operation& o = p.operation;
  if (!is_known(o.epilogue)) return refuse(CUBLAS_STATUS_NOT_SUPPORTED, "an epilogue that the stand-in lacks");
  if (o.epilogue == CUBLASLT_EPILOGUE_DEFAULT) return CUBLAS_STATUS_SUCCESS;
  if (p.d.order == CUBLASLT_ORDER_ROW) return refuse(CUBLAS_STATUS_NOT_SUPPORTED, "an epilogue with D in rows");
  if (p.d.batch != 1) return refuse(CUBLAS_STATUS_NOT_SUPPORTED, "an epilogue with a batch");
  if (uses_vector(o.epilogue)) {
    if (o.bias == nullptr) return refuse(CUBLAS_STATUS_INVALID_VALUE, "no pointer to the bias");
    if (o.bias_type != -1 && o.bias_type != p.d.type) {
      return refuse(CUBLAS_STATUS_NOT_SUPPORTED, "the bias is not of D's type");
    }
  }
  if (uses_auxiliary(o.epilogue)) {
    if (o.auxiliary == nullptr) return refuse(CUBLAS_STATUS_INVALID_VALUE, "no pointer to the auxiliary matrix");
    if (o.auxiliary_ld % 8 != 0 || o.auxiliary_ld < 0 || static_cast<std::uint64_t>(o.auxiliary_ld) < p.m) {
      return refuse(CUBLAS_STATUS_INVALID_VALUE, "the auxiliary leading dimension must be a multiple of 8, >= rows");
    }
    if (reinterpret_cast<std::uintptr_t>(o.auxiliary) % 16 != 0) {
      return refuse(CUBLAS_STATUS_NOT_SUPPORTED, "the auxiliary matrix is not aligned to 16 bytes");
    }
    if (o.auxiliary_type != -1 && o.auxiliary_type != p.d.type) {
      return refuse(CUBLAS_STATUS_NOT_SUPPORTED, "the auxiliary matrix is not of D's type");
    }
  }
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t check(Problem& p) {
  cublasStatus_t status = check_shapes(p);
  if (status == CUBLAS_STATUS_SUCCESS) status = check_types(p);
  if (status == CUBLAS_STATUS_SUCCESS) status = check_epilogue(p);
  return status;
}

// FNV-1a over what an algorithm depends on; pointers only by their alignment.
std::uint64_t fingerprint(const Problem& p) {
  std::uint64_t hash = 14695981039346656037ull;
  const auto add = [&hash](std::uint64_t value) { hash = (hash ^ value) * 1099511628211ull; };
  const Operation& o = p.operation;
  for (const std::int64_t value : {std::int64_t{o.compute}, std::int64_t{o.scale}, std::int64_t{o.transpose_a},
                                   std::int64_t{o.transpose_b}, std::int64_t{o.epilogue}, o.auxiliary_ld,
                                   std::int64_t{o.bias_type}, std::int64_t{o.auxiliary_type}, std::int64_t{o.fast}}) {
    add(static_cast<std::uint64_t>(value));
  }
  for (const Layout* layout : {&p.a, &p.b, &p.c, &p.d}) {
    add(static_cast<std::uint64_t>(layout->type));
    add(static_cast<std::uint64_t>(layout->order));
    add(layout->rows);
    add(layout->columns);
    add(static_cast<std::uint64_t>(layout->ld));
    add(static_cast<std::uint64_t>(layout->batch));
    add(static_cast<std::uint64_t>(layout->batch_stride));
  }
  return hash;
}

std::uint32_t alignment_of(const void* data) {
  const auto address = reinterpret_cast<std::uintptr_t>(data) | 256;
  return static_cast<std::uint32_t>(address & (~address + 1));
}

Problem problem_of(cublasLtMatmulDesc_t operation, cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                   cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d) {
  return {as<Operation>(operation), as<Layout>(a), as<Layout>(b), as<Layout>(c), as<Layout>(d)};
}

// The stand-in's kernels for sums over an operand move 16 bytes at once: the caller has to have another way.
bool sums_are_possible(const Problem& p, const Preference& preference) {
  for (const std::uint32_t alignment : preference.alignment) {
    if (alignment < 16) return false;
  }
  for (const Layout* layout : {&p.a, &p.b, &p.d}) {
    if (static_cast<std::size_t>(layout->ld) * width(layout->type) % 16 != 0) return false;
  }
  return true;
}

// Split over many terms, as the vendor does it: partial sums in the workspace.
std::uint64_t wanted_workspace(const Problem& p) { return p.k >= 64 ? 1024 : 0; }

// --- memory ----------------------------------------------------------------------------------------------------------

struct Range {
  const char* begin;
  const char* end;
};
Range range_of(const void* data, std::size_t bytes) {
  return {static_cast<const char*>(data), static_cast<const char*>(data) + bytes};
}
bool overlap(const Range& a, const Range& b) { return a.begin < b.end && b.begin < a.end; }
bool is_live(const Range& range) { return is_device(range.begin, static_cast<std::size_t>(range.end - range.begin)); }

cublasStatus_t check_memory(const Problem& p, const void* a, const void* b, const void* c, float beta, const void* d) {
  const Operation& o = p.operation;
  const Range target = range_of(d, extent(p.d));
  std::vector<Range> read = {range_of(a, extent(p.a)), range_of(b, extent(p.b))};
  for (const float* factor : {o.factor_a, o.factor_b}) {
    if (factor != nullptr) read.push_back(range_of(factor, sizeof(float)));
  }
  if (is_fp8(p.a.type)) {
    for (const void* matrix : {a, b, c, d}) {
      if (reinterpret_cast<std::uintptr_t>(matrix) % 16 != 0) {
        return refuse(CUBLAS_STATUS_NOT_SUPPORTED, "a matrix of an 8-bit product is not aligned to 16 bytes");
      }
    }
  }
  if (has_bias(o.epilogue)) read.push_back(range_of(o.bias, p.m * width(p.d.type)));
  if (o.epilogue == CUBLASLT_EPILOGUE_DGELU || uses_auxiliary(o.epilogue)) {
    read.push_back(
        range_of(o.auxiliary, (static_cast<std::size_t>(o.auxiliary_ld) * (p.n - 1) + p.m) * width(p.d.type)));
  }
  if (sums_operand(o.epilogue)) {
    read.push_back(range_of(o.bias, (o.epilogue == CUBLASLT_EPILOGUE_BGRADA ? p.m : p.n) * width(p.d.type)));
  }
  for (const Range& range : read) {
    if (!is_live(range)) return refuse(CUBLAS_STATUS_INVALID_VALUE, "an operand leaves its allocation");
    if (overlap(range, target)) return refuse(CUBLAS_STATUS_INVALID_VALUE, "D lies over an operand");
  }
  if (!is_live(target)) return refuse(CUBLAS_STATUS_INVALID_VALUE, "D leaves its allocation");
  if (beta == 0) return CUBLAS_STATUS_SUCCESS;
  const Range addend = range_of(c, extent(p.c));
  if (!is_live(addend)) return refuse(CUBLAS_STATUS_INVALID_VALUE, "C leaves its allocation");
  if (c == d && p.c.ld != p.d.ld) return refuse(CUBLAS_STATUS_INVALID_VALUE, "C is D with another leading dimension");
  if (c != d && overlap(addend, target)) return refuse(CUBLAS_STATUS_INVALID_VALUE, "C lies over D");
  if (has_gelu(o.epilogue) || o.epilogue == CUBLASLT_EPILOGUE_DGELU) {
    return refuse(CUBLAS_STATUS_NOT_SUPPORTED, "a GELU of a sum with C");
  }
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t check_algorithm(const Problem& p, const Algorithm& algorithm, const void* a, const void* b,
                               const void* c, const void* d, const void* workspace, std::size_t workspace_bytes) {
  if (algorithm.magic != magic || algorithm.problem != fingerprint(p)) {
    return refuse(CUBLAS_STATUS_INVALID_VALUE, "the algorithm was chosen for another problem");
  }
  const void* const data[] = {a, b, c, d};
  for (int i = 0; i < 4; ++i) {
    if (alignment_of(data[i]) < algorithm.alignment[i]) {
      return refuse(CUBLAS_STATUS_INVALID_VALUE, "a matrix is less aligned than the heuristic was told");
    }
  }
  if (alignment_of(p.operation.bias) < algorithm.bias_alignment ||
      alignment_of(p.operation.auxiliary) < algorithm.auxiliary_alignment) {
    return refuse(CUBLAS_STATUS_INVALID_VALUE, "an epilogue's pointer is less aligned than the heuristic was shown");
  }
  if (workspace_bytes < algorithm.workspace ||
      (algorithm.workspace > 0 && (!is_device(workspace, workspace_bytes) || alignment_of(workspace) < 16))) {
    return refuse(CUBLAS_STATUS_INVALID_VALUE, "the workspace is too small, not aligned, or no device memory");
  }
  return CUBLAS_STATUS_SUCCESS;
}

// --- the product -----------------------------------------------------------------------------------------------------

struct Call {
  Problem p;
  float alpha, beta;
  const void *a, *b, *c;
  void* d;
};

// op(matrix) as floats, `terms` apart: element (i, x) at x * count + i.
std::vector<float> packed(const void* data, const Layout& layout, bool terms_are_columns, std::uint64_t count,
                          std::uint64_t terms, bool rounds) {
  std::vector<float> result(count * terms);
  for (std::uint64_t x = 0; x < terms; ++x) {
    for (std::uint64_t i = 0; i < count; ++i) {
      const float value = get(data, terms_are_columns ? index(layout, i, x) : index(layout, x, i), layout.type);
      result[x * count + i] = rounds ? tf32(value) : value;
    }
  }
  return result;
}

// sums[j * m + i] of a strip of four columns.
void multiply_strip(const Problem& p, const float* a, const float* b, std::uint64_t first, std::uint64_t columns,
                    float* sums) {
  std::fill(sums, sums + columns * p.m, 0.0f);
  for (std::uint64_t x = 0; x < p.k; ++x) {
    const float* row = a + x * p.m;
    for (std::uint64_t j = 0; j < columns; ++j) {
      const float factor = b[x * p.n + first + j];
      float* to = sums + j * p.m;
      for (std::uint64_t i = 0; i < p.m; ++i) to[i] += row[i] * factor;
    }
  }
}

float finished(const Call& call, float value, std::uint64_t i, std::uint64_t j) {
  const Operation& o = call.p.operation;
  const cudaDataType_t type = call.p.d.type;
  const std::size_t beside = i + j * static_cast<std::size_t>(o.auxiliary_ld);
  if (has_bias(o.epilogue)) value += get(o.bias, i, type);
  if (has_gelu(o.epilogue)) {
    if (uses_auxiliary(o.epilogue)) put(o.auxiliary, beside, type, value);
    return gelu(value);
  }
  if (o.epilogue == CUBLASLT_EPILOGUE_DGELU) value *= gelu_slope(get(o.auxiliary, beside, type));
  return value;
}

void sum_operand(const Operation& o, const float* operand, std::uint64_t count, std::uint64_t terms,
                 cudaDataType_t type) {
  for (std::uint64_t i = 0; i < count; ++i) {
    float sum = 0;
    for (std::uint64_t x = 0; x < terms; ++x) sum += operand[x * count + i];
    put(const_cast<void*>(o.bias), i, type, sum);
  }
}

void multiply(const Call& call) {
  const Problem& p = call.p;
  const Operation& o = p.operation;
  const bool rounds = o.compute == CUBLAS_COMPUTE_32F_FAST_TF32;
  const float alpha =
      call.alpha * (o.factor_a != nullptr ? *o.factor_a : 1) * (o.factor_b != nullptr ? *o.factor_b : 1);
  constexpr std::uint64_t strip = 4;
  std::vector<float> sums(p.m * strip);
  for (int batch = 0; batch < p.d.batch; ++batch) {
    const auto at = [batch](const void* data, const Layout& layout) {
      return static_cast<const char*>(data) +
             static_cast<std::size_t>(batch) * static_cast<std::size_t>(layout.batch_stride) * width(layout.type);
    };
    const std::vector<float> a = packed(at(call.a, p.a), p.a, o.transpose_a == CUBLAS_OP_N, p.m, p.k, rounds);
    const std::vector<float> b = packed(at(call.b, p.b), p.b, o.transpose_b != CUBLAS_OP_N, p.n, p.k, rounds);
    for (std::uint64_t first = 0; first < p.n; first += strip) {
      const std::uint64_t columns = std::min(strip, p.n - first);
      multiply_strip(p, a.data(), b.data(), first, columns, sums.data());
      for (std::uint64_t j = first; j < first + columns; ++j) {
        for (std::uint64_t i = 0; i < p.m; ++i) {
          float value = alpha * sums[(j - first) * p.m + i];
          // Without beta C is not read.
          if (call.beta != 0) value += call.beta * get(at(call.c, p.c), index(p.c, i, j), p.c.type);
          put(const_cast<char*>(at(call.d, p.d)), index(p.d, i, j), p.d.type, finished(call, value, i, j));
        }
      }
    }
    if (o.epilogue == CUBLASLT_EPILOGUE_BGRADA) sum_operand(o, a.data(), p.m, p.k, p.d.type);
    if (o.epilogue == CUBLASLT_EPILOGUE_BGRADB) sum_operand(o, b.data(), p.n, p.k, p.d.type);
  }
}

}  // namespace
}  // namespace simt

using namespace simt;

extern "C" {

std::size_t cublasLtGetVersion() { return CUBLAS_VERSION; }
const char* cublasLtGetStatusName(cublasStatus_t status) {
  switch (status) {
    case CUBLAS_STATUS_SUCCESS:
      return "CUBLAS_STATUS_SUCCESS";
    case CUBLAS_STATUS_INVALID_VALUE:
      return "CUBLAS_STATUS_INVALID_VALUE";
    case CUBLAS_STATUS_NOT_SUPPORTED:
      return "CUBLAS_STATUS_NOT_SUPPORTED";
    default:
      return "CUBLAS_STATUS (emulated)";
  }
}
const char* cublasLtGetStatusString(cublasStatus_t) { return "emulated; SIMT_CUBLASLT_WHY=1 prints why"; }

cublasStatus_t cublasLtCreate(cublasLtHandle_t* handle) {
  *handle = reinterpret_cast<cublasLtHandle_t>(malloc(1));
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtDestroy(cublasLtHandle_t handle) {
  free(handle);
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t* made, cublasComputeType_t compute, cudaDataType_t scale) {
  *made = new cublasLtMatmulDescOpaque_t{};
  as<Operation>(*made) = {
      compute, scale, CUBLAS_OP_N, CUBLAS_OP_N, CUBLASLT_EPILOGUE_DEFAULT, nullptr, nullptr, 0, -1, -1, nullptr,
      nullptr, 0};
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t operation) {
  delete operation;
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t operation, cublasLtMatmulDescAttributes_t attribute,
                                              const void* from, std::size_t bytes) {
  auto& o = as<Operation>(operation);
  switch (attribute) {
    case CUBLASLT_MATMUL_DESC_TRANSA:
      return set(o.transpose_a, from, bytes);
    case CUBLASLT_MATMUL_DESC_TRANSB:
      return set(o.transpose_b, from, bytes);
    case CUBLASLT_MATMUL_DESC_EPILOGUE:
      return set(o.epilogue, from, bytes);
    case CUBLASLT_MATMUL_DESC_BIAS_POINTER:
      return set(o.bias, from, bytes);
    case CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE:
      return set(o.bias_type, from, bytes);
    case CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER:
      return set(o.auxiliary, from, bytes);
    case CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD:
      return set(o.auxiliary_ld, from, bytes);
    case CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_DATA_TYPE:
      return set(o.auxiliary_type, from, bytes);
    case CUBLASLT_MATMUL_DESC_A_SCALE_POINTER:
      return set(o.factor_a, from, bytes);
    case CUBLASLT_MATMUL_DESC_B_SCALE_POINTER:
      return set(o.factor_b, from, bytes);
    case CUBLASLT_MATMUL_DESC_FAST_ACCUM:
      return set(o.fast, from, bytes);
    default:
      return CUBLAS_STATUS_NOT_SUPPORTED;
  }
}

cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t* made, cudaDataType_t type, std::uint64_t rows,
                                          std::uint64_t columns, std::int64_t ld) {
  *made = new cublasLtMatrixLayoutOpaque_t{};
  as<Layout>(*made) = {type, CUBLASLT_ORDER_COL, rows, columns, ld, 1, 0};
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t layout) {
  delete layout;
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatrixLayoutSetAttribute(cublasLtMatrixLayout_t layout,
                                                cublasLtMatrixLayoutAttribute_t attribute, const void* from,
                                                std::size_t bytes) {
  switch (attribute) {
    case CUBLASLT_MATRIX_LAYOUT_ORDER: {
      std::int32_t order = 0;
      const cublasStatus_t status = set(order, from, bytes);
      if (status != CUBLAS_STATUS_SUCCESS) return status;
      if (order != CUBLASLT_ORDER_COL && order != CUBLASLT_ORDER_ROW) return CUBLAS_STATUS_NOT_SUPPORTED;
      as<Layout>(layout).order = static_cast<cublasLtOrder_t>(order);
      return CUBLAS_STATUS_SUCCESS;
    }
    case CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT:
      return set(as<Layout>(layout).batch, from, bytes);
    case CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET:
      return set(as<Layout>(layout).batch_stride, from, bytes);
    default:
      return CUBLAS_STATUS_NOT_SUPPORTED;
  }
}

cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t* made) {
  *made = new cublasLtMatmulPreferenceOpaque_t{};
  as<Preference>(*made) = {0, {256, 256, 256, 256}};
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t preference) {
  delete preference;
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t preference,
                                                    cublasLtMatmulPreferenceAttributes_t attribute, const void* from,
                                                    std::size_t bytes) {
  auto& p = as<Preference>(preference);
  switch (attribute) {
    case CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES:
      return set(p.workspace, from, bytes);
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES:
      return set(p.alignment[0], from, bytes);
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES:
      return set(p.alignment[1], from, bytes);
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES:
      return set(p.alignment[2], from, bytes);
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES:
      return set(p.alignment[3], from, bytes);
    default:
      return CUBLAS_STATUS_NOT_SUPPORTED;
  }
}

cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t, cublasLtMatmulDesc_t operation,
                                              cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                              cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                                              cublasLtMatmulPreference_t preference, int wanted,
                                              cublasLtMatmulHeuristicResult_t* results, int* count) {
  *count = 0;
  if (wanted < 1) return CUBLAS_STATUS_INVALID_VALUE;
  Problem p = problem_of(operation, a, b, c, d);
  const auto& wishes = as<Preference>(preference);
  const cublasStatus_t status = check(p);
  if (status != CUBLAS_STATUS_SUCCESS) return status;
  if (sums_operand(p.operation.epilogue) && !sums_are_possible(p, wishes)) {
    return refuse(CUBLAS_STATUS_NOT_SUPPORTED, "sums over an operand whose rows are not aligned to 16 bytes");
  }
  const char* const candidates = getenv("SIMT_CUBLASLT_CANDIDATES");
  const std::uint64_t workspace = wanted_workspace(p);
  if (workspace > wishes.workspace) return refuse(CUBLAS_STATUS_NOT_SUPPORTED, "not enough workspace");
  for (int i = 0; i < std::min(wanted, candidates != nullptr ? atoi(candidates) : 1); ++i) {
    results[i] = {};
    results[i].state = CUBLAS_STATUS_SUCCESS;
    results[i].workspaceSize = workspace;
    Algorithm algorithm{
        fingerprint(p), {}, alignment_of(p.operation.bias), alignment_of(p.operation.auxiliary), workspace, i, magic};
    std::copy(wishes.alignment, wishes.alignment + 4, algorithm.alignment);
    as<Algorithm>(&results[i].algo) = algorithm;
    ++*count;
  }
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmul(cublasLtHandle_t, cublasLtMatmulDesc_t operation, const void* alpha, const void* a,
                              cublasLtMatrixLayout_t layout_a, const void* b, cublasLtMatrixLayout_t layout_b,
                              const void* beta, const void* c, cublasLtMatrixLayout_t layout_c, void* d,
                              cublasLtMatrixLayout_t layout_d, const cublasLtMatmulAlgo_t* algo, void* workspace,
                              std::size_t workspace_bytes, cudaStream_t stream) {
  Problem p = problem_of(operation, layout_a, layout_b, layout_c, layout_d);
  Algorithm algorithm{};
  if (algo != nullptr) std::memcpy(&algorithm, algo->data, sizeof algorithm);
  const float factor = *static_cast<const float*>(alpha), kept = *static_cast<const float*>(beta);
  cublasStatus_t status = check(p);
  if (status == CUBLAS_STATUS_SUCCESS) status = check_memory(p, a, b, c, kept, d);
  if (status == CUBLAS_STATUS_SUCCESS && algo != nullptr) {
    status = check_algorithm(p, algorithm, a, b, c, d, workspace, workspace_bytes);
  }
  if (status != CUBLAS_STATUS_SUCCESS) return status;
  const Kind kind = p.m == 1 || p.n == 1 ? Kind::vector_product : Kind::product;
  const cudaError_t error = enqueue(stream, [=, call = Call{p, factor, kept, a, b, c, d}] {
    const Pace pace(kind);
    const char* const candidates = getenv("SIMT_CUBLASLT_CANDIDATES");
    if (candidates != nullptr && algorithm.place == 0) std::this_thread::sleep_for(std::chrono::milliseconds(2));
    if (algorithm.workspace > 0) memset(workspace, 0xFF, workspace_bytes);  // nobody else's data may lie there
    multiply(call);
    last_product_algorithm = algorithm.place;
    return cudaSuccess;
  });
  return error == cudaSuccess ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_EXECUTION_FAILED;
}
}
