// Linear layers through cuBLASLt: y = relu(x w^T + bias), and the gradient of the bias beside that of the
// weight.
#include <cublasLt.h>

#include "simgpu/self/fixture.h"

namespace {

struct Linear : SimulatedGpu {
  cublasLtMatrixLayout_t layout(uint64_t rows, uint64_t cols, int64_t ld) {
    cublasLtMatrixLayout_t l;
    EXPECT_EQ(cublasLtMatrixLayoutCreate(&l, CUDA_R_32F, rows, cols, ld), CUBLAS_STATUS_SUCCESS);
    return l;
  }
  cublasLtMatmulDesc_t description(cublasOperation_t a, cublasOperation_t b, cublasLtEpilogue_t epilogue,
                                   void* bias) {
    cublasLtMatmulDesc_t d;
    EXPECT_EQ(cublasLtMatmulDescCreate(&d, CUBLAS_COMPUTE_32F, CUDA_R_32F), CUBLAS_STATUS_SUCCESS);
    cublasLtMatmulDescSetAttribute(d, CUBLASLT_MATMUL_DESC_TRANSA, &a, sizeof a);
    cublasLtMatmulDescSetAttribute(d, CUBLASLT_MATMUL_DESC_TRANSB, &b, sizeof b);
    cublasLtMatmulDescSetAttribute(d, CUBLASLT_MATMUL_DESC_EPILOGUE, &epilogue, sizeof epilogue);
    cublasLtMatmulDescSetAttribute(d, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &bias, sizeof bias);
    return d;
  }
  const float one = 1, zero = 0;
};

TEST_F(Linear, bias_and_relu) {
  // 3 rows of 4 inputs, 2 outputs; row-major, so columns of the transposed problem: y^T (2x3) = w (2x4) x^T
  // (4x3).
  const std::vector<float> x{1, 2, 3, 4, -1, 0, 1, 0, 5, 5, 5, 5}, w{1, 0, 0, 1, -1, -1, -1, -1}, bias{-4, 8};
  float *dx = upload(x), *dw = upload(w), *db = upload(bias), *dy = device_array<float>(6);
  cublasLtHandle_t lt;
  cublasLtCreate(&lt);
  cublasLtMatmulDesc_t d = description(CUBLAS_OP_T, CUBLAS_OP_N, CUBLASLT_EPILOGUE_RELU_BIAS, db);
  cublasLtMatrixLayout_t out = layout(2, 3, 2);
  ASSERT_EQ(cublasLtMatmul(lt, d, &one, dw, layout(4, 2, 4), dx, layout(4, 3, 4), &zero, dy, out, dy, out,
                           nullptr, nullptr, 0, stream),
            CUBLAS_STATUS_SUCCESS);
  EXPECT_EQ(download(dy, 6), (std::vector<float>{1, 0, 0, 8, 6, 0}));
}

TEST_F(Linear, weight_gradient_with_the_gradient_of_the_bias) {
  // dw^T (4x2) = x^T (4x3) dy (3x2): A = x^T, B = dy, whose row sums over the batch are the bias gradient.
  const std::vector<float> x{1, 2, 3, 4, -1, 0, 1, 0, 5, 5, 5, 5}, dy{1, 2, 3, 4, 5, 6};
  float *dx = upload(x), *ddy = upload(dy), *db = device_array<float>(2), *dw = device_array<float>(8);
  cublasLtHandle_t lt;
  cublasLtCreate(&lt);
  cublasLtMatmulDesc_t d = description(CUBLAS_OP_N, CUBLAS_OP_T, CUBLASLT_EPILOGUE_BGRADB, db);
  cublasLtMatrixLayout_t out = layout(4, 2, 4);
  ASSERT_EQ(cublasLtMatmul(lt, d, &one, dx, layout(4, 3, 4), ddy, layout(2, 3, 2), &zero, dw, out, dw, out,
                           nullptr, nullptr, 0, stream),
            CUBLAS_STATUS_SUCCESS);
  EXPECT_EQ(download(db, 2), (std::vector<float>{9, 12}));
  EXPECT_EQ(download(dw, 8), (std::vector<float>{23, 27, 31, 29, 28, 34, 40, 38}));
}

TEST_F(Linear, an_epilogue_that_is_not_simulated_is_refused) {
  cublasLtHandle_t lt;
  cublasLtCreate(&lt);
  cublasLtMatmulDesc_t d = description(CUBLAS_OP_N, CUBLAS_OP_N, CUBLASLT_EPILOGUE_DGELU, nullptr);
  cublasLtMatrixLayout_t l = layout(4, 4, 4);
  cublasLtMatmulHeuristicResult_t result;
  int count = 1;
  EXPECT_EQ(cublasLtMatmulAlgoGetHeuristic(lt, d, l, l, l, l, nullptr, 1, &result, &count),
            CUBLAS_STATUS_NOT_SUPPORTED);
  EXPECT_EQ(count, 0);
}

}  // namespace
