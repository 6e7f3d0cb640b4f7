// The stand-in for cuBLASLt refuses what the vendor's documentation forbids: else a wrong call would pass here and fail
// on a GPU.
#include <cublasLt.h>
#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <tuple>

namespace {

// A product D[m, n] = A[m, k] B[k, n] of bfloat16, right in all respects until a test changes one.
class Call {
 public:
  Call() {
    cudaMalloc(reinterpret_cast<void**>(&memory), bytes);
    dataA = memory;
    dataB = memory + part;
    dataC = dataD = memory + 2 * part;
    workspace = memory + 5 * part;
    cublasLtCreate(&handle);
    cublasLtMatmulDescCreate(&operation, CUBLAS_COMPUTE_32F, CUDA_R_32F);
    cublasLtMatmulPreferenceCreate(&preference);
    const std::uint64_t limit = 1 << 20;
    EXPECT_EQ(prefer(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, limit), CUBLAS_STATUS_SUCCESS);
    layout(a, CUDA_R_16BF, m, k, m);
    layout(b, CUDA_R_16BF, k, n, k);
    layout(c, CUDA_R_16BF, m, n, m);
    layout(d, CUDA_R_16BF, m, n, m);
  }
  ~Call() {
    for (cublasLtMatrixLayout_t made : {a, b, c, d}) cublasLtMatrixLayoutDestroy(made);
    cublasLtMatmulPreferenceDestroy(preference);
    cublasLtMatmulDescDestroy(operation);
    cublasLtDestroy(handle);
    cudaFree(memory);
  }
  Call(const Call&) = delete;
  Call& operator=(const Call&) = delete;

  static void layout(cublasLtMatrixLayout_t& to, cudaDataType_t type, std::uint64_t rows, std::uint64_t columns,
                     std::int64_t ld) {
    if (to != nullptr) cublasLtMatrixLayoutDestroy(to);
    cublasLtMatrixLayoutCreate(&to, type, rows, columns, ld);
  }
  template <class T>
  cublasStatus_t set(cublasLtMatmulDescAttributes_t attribute, const T& value) {
    return cublasLtMatmulDescSetAttribute(operation, attribute, &value, sizeof value);
  }
  template <class T>
  cublasStatus_t prefer(cublasLtMatmulPreferenceAttributes_t attribute, const T& value) {
    return cublasLtMatmulPreferenceSetAttribute(preference, attribute, &value, sizeof value);
  }
  void useEpilogue(cublasLtEpilogue_t epilogue) { set(CUBLASLT_MATMUL_DESC_EPILOGUE, epilogue); }
  void useAuxiliary(std::int64_t ld) {
    set(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, static_cast<void*>(memory + 3 * part));
    set(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, ld);
  }
  void useBias(cudaDataType_t type) {
    set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, static_cast<const void*>(memory + 4 * part));
    set(CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, type);
  }

  cublasStatus_t choose() {
    int count = 0;
    return cublasLtMatmulAlgoGetHeuristic(handle, operation, a, b, c, d, preference, 1, &chosen, &count);
  }
  cublasStatus_t multiply() {
    const float alpha = 1;
    return cublasLtMatmul(handle, operation, &alpha, dataA, a, dataB, b, &beta, dataC, c, dataD, d, &chosen.algo,
                          workspace, workspaceBytes, nullptr);
  }
  cublasStatus_t chooseAndMultiply() {
    const cublasStatus_t status = choose();
    return status == CUBLAS_STATUS_SUCCESS ? multiply() : status;
  }

  static constexpr std::uint64_t m = 16, n = 8, k = 64;
  static constexpr std::size_t part = 4096, bytes = 6 * part;
  std::byte* memory = nullptr;
  cublasLtHandle_t handle = nullptr;
  cublasLtMatmulDesc_t operation = nullptr;
  cublasLtMatrixLayout_t a = nullptr, b = nullptr, c = nullptr, d = nullptr;
  cublasLtMatmulPreference_t preference = nullptr;
  cublasLtMatmulHeuristicResult_t chosen{};
  float beta = 0;
  std::byte *dataA = nullptr, *dataB = nullptr, *dataC = nullptr, *dataD = nullptr, *workspace = nullptr;
  std::size_t workspaceBytes = part;
};

TEST(CublasLtStandIn, multipliesWhatIsRight) {
  Call call;
  EXPECT_EQ(call.chooseAndMultiply(), CUBLAS_STATUS_SUCCESS);
  call.useEpilogue(CUBLASLT_EPILOGUE_GELU_AUX_BIAS);
  call.useAuxiliary(16);
  call.useBias(CUDA_R_16BF);
  EXPECT_EQ(call.chooseAndMultiply(), CUBLAS_STATUS_SUCCESS);
}

TEST(CublasLtStandIn, refusesAttributesThatItDoesNotKnow) {
  Call call;
  EXPECT_EQ(call.set(CUBLASLT_MATMUL_DESC_SM_COUNT_TARGET, std::int32_t{4}), CUBLAS_STATUS_NOT_SUPPORTED);
  EXPECT_EQ(call.prefer(CUBLASLT_MATMUL_PREF_MAX_WAVES_COUNT, 1.0f), CUBLAS_STATUS_NOT_SUPPORTED);
  const std::int32_t order = CUBLASLT_ORDER_COL32;
  EXPECT_EQ(cublasLtMatrixLayoutSetAttribute(call.a, CUBLASLT_MATRIX_LAYOUT_ORDER, &order, sizeof order),
            CUBLAS_STATUS_NOT_SUPPORTED);
  EXPECT_EQ(call.set(CUBLASLT_MATMUL_DESC_TRANSA, std::int64_t{0}), CUBLAS_STATUS_INVALID_VALUE) << "of another size";
}

TEST(CublasLtStandIn, refusesShapesThatDoNotFit) {
  for (const auto& [rows, columns, ld] : {std::tuple{15u, 64u, 16}, {16u, 63u, 16}, {16u, 64u, 15}, {16u, 0u, 16}}) {
    Call call;
    call.layout(call.a, CUDA_R_16BF, rows, columns, ld);
    EXPECT_EQ(call.choose(), CUBLAS_STATUS_INVALID_VALUE) << rows << " x " << columns << ", " << ld;
  }
}

TEST(CublasLtStandIn, refusesTypesThatDoNotGoTogether) {
  Call call;
  call.layout(call.a, CUDA_R_32F, Call::m, Call::k, Call::m);
  EXPECT_EQ(call.choose(), CUBLAS_STATUS_NOT_SUPPORTED) << "operands of two types";
  Call half;
  half.layout(half.c, CUDA_R_16F, Call::m, Call::n, Call::m);
  half.layout(half.d, CUDA_R_16F, Call::m, Call::n, Call::m);
  EXPECT_EQ(half.choose(), CUBLAS_STATUS_NOT_SUPPORTED) << "bfloat16 into float16";
  Call biased;
  biased.useEpilogue(CUBLASLT_EPILOGUE_BIAS);
  biased.useBias(CUDA_R_32F);
  EXPECT_EQ(biased.choose(), CUBLAS_STATUS_NOT_SUPPORTED) << "a float32 bias of a bfloat16 result";
}

TEST(CublasLtStandIn, refusesEpiloguesWithoutWhatTheyNeed) {
  Call call;
  call.useEpilogue(CUBLASLT_EPILOGUE_RELU);
  EXPECT_EQ(call.choose(), CUBLAS_STATUS_NOT_SUPPORTED);
  call.useEpilogue(CUBLASLT_EPILOGUE_BIAS);
  EXPECT_EQ(call.choose(), CUBLAS_STATUS_INVALID_VALUE) << "no bias";
  call.useEpilogue(CUBLASLT_EPILOGUE_DGELU);
  EXPECT_EQ(call.choose(), CUBLAS_STATUS_INVALID_VALUE) << "no auxiliary matrix";
  for (const std::int64_t ld : {8, 20}) {  // less than the rows; no multiple of 8
    call.useAuxiliary(ld);
    EXPECT_EQ(call.choose(), CUBLAS_STATUS_INVALID_VALUE) << ld;
  }
  call.useAuxiliary(24);
  EXPECT_EQ(call.chooseAndMultiply(), CUBLAS_STATUS_SUCCESS);
  call.beta = 1;
  EXPECT_EQ(call.multiply(), CUBLAS_STATUS_NOT_SUPPORTED) << "a GELU of a sum with C";
}

TEST(CublasLtStandIn, refusesMatricesThatLieWrong) {
  Call call;
  call.prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, std::uint32_t{16});
  ASSERT_EQ(call.choose(), CUBLAS_STATUS_SUCCESS);
  call.dataD = call.memory + Call::bytes - 16;
  EXPECT_EQ(call.multiply(), CUBLAS_STATUS_INVALID_VALUE) << "D leaves its allocation";
  call.dataD = call.dataB;
  EXPECT_EQ(call.multiply(), CUBLAS_STATUS_INVALID_VALUE) << "D lies over B";
  call.dataD = call.memory + 3 * Call::part;
  call.dataC = call.dataD + 16;
  EXPECT_EQ(call.multiply(), CUBLAS_STATUS_SUCCESS) << "without beta C is nothing";
  call.beta = 1;
  EXPECT_EQ(call.multiply(), CUBLAS_STATUS_INVALID_VALUE) << "C lies over D";
}

TEST(CublasLtStandIn, refusesAnAlgorithmThatWasChosenForSomethingElse) {
  Call call;
  ASSERT_EQ(call.choose(), CUBLAS_STATUS_SUCCESS);
  call.dataB += 2;
  EXPECT_EQ(call.multiply(), CUBLAS_STATUS_INVALID_VALUE) << "less aligned";
  EXPECT_EQ(call.prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, std::uint32_t{2}), CUBLAS_STATUS_SUCCESS);
  EXPECT_EQ(call.chooseAndMultiply(), CUBLAS_STATUS_SUCCESS);
  call.workspaceBytes = 16;
  EXPECT_EQ(call.multiply(), CUBLAS_STATUS_INVALID_VALUE) << "workspace too small";
  call.workspaceBytes = Call::part;
  call.useEpilogue(CUBLASLT_EPILOGUE_GELU);
  EXPECT_EQ(call.multiply(), CUBLAS_STATUS_INVALID_VALUE) << "another epilogue";
}

}  // namespace
