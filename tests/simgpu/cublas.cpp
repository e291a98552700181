// The part of cuBLAS that a training runtime uses.
#include <cublas_v2.h>

#include <set>

#include "simgpu/gemm.h"
#include "simgpu/libraries.h"
#include "simgpu/memory.h"
#include "simgpu/report.h"
#include "simgpu/scheduler.h"

namespace simgpu {
namespace {

struct Blas {
  int device = 0;
  cudaStream_t stream = nullptr;
  cublasPointerMode_t pointer_mode = CUBLAS_POINTER_MODE_HOST;
  cublasMath_t math_mode = CUBLAS_DEFAULT_MATH;
  void* workspace = nullptr;
  size_t workspace_bytes = 0;
};
std::set<Blas*> handles;

Blas* blas_of(cublasHandle_t handle, const char* call) {
  auto* b = reinterpret_cast<Blas*>(handle);
  if (!handles.contains(b)) {
    report("misuse", std::string(call) + " is given a handle that is none");
    return nullptr;
  }
  if (b->device != host.device)
    report("misuse", std::string(call) + " uses a handle of device " + std::to_string(b->device) +
                         " while device " + std::to_string(host.device) + " is current");
  return b;
}

// The scalars are of the compute type: float, except for a product in double.
double scalar(const void* p, bool is_double) {
  return is_double ? *static_cast<const double*>(p) : static_cast<double>(*static_cast<const float*>(p));
}

struct Product {  // the arguments that all forms share
  cublasOperation_t trans_a, trans_b;
  int64_t m, n, k;
  const void *alpha, *a;
  cudaDataType type_a;
  int64_t lda, stride_a;
  const void* b;
  cudaDataType type_b;
  int64_t ldb, stride_b;
  const void* beta;
  void* c;
  cudaDataType type_c;
  int64_t ldc, stride_c;
  int64_t batch;
};

cublasStatus_t multiply(cublasHandle_t handle, const Product& p, const char* call) {
  Blas* blas = blas_of(handle, call);
  if (blas == nullptr) return CUBLAS_STATUS_NOT_INITIALIZED;
  const bool ta = p.trans_a != CUBLAS_OP_N, tb = p.trans_b != CUBLAS_OP_N;
  if (p.m < 0 || p.n < 0 || p.k < 0 || p.batch < 0 || p.lda < std::max<int64_t>(1, ta ? p.k : p.m) ||
      p.ldb < std::max<int64_t>(1, tb ? p.n : p.k) || p.ldc < std::max<int64_t>(1, p.m) ||
      p.alpha == nullptr || p.beta == nullptr)
    return CUBLAS_STATUS_INVALID_VALUE;
  Gemm g{p.m,
         p.n,
         p.k,
         {p.a, Type::f32, ta, p.lda, p.stride_a},
         {p.b, Type::f32, tb, p.ldb, p.stride_b},
         {p.c, Type::f32, false, p.ldc, p.stride_c},
         p.batch};
  if (!type_of(p.type_a, &g.a.type) || !type_of(p.type_b, &g.b.type) || !type_of(p.type_c, &g.c.type) ||
      g.a.type != g.b.type || (g.a.type == Type::f64) != (g.c.type == Type::f64))
    return CUBLAS_STATUS_NOT_SUPPORTED;
  Stream* stream = stream_of(blas->stream, call);
  if (stream == nullptr) return CUBLAS_STATUS_EXECUTION_FAILED;
  if (p.m == 0 || p.n == 0 || p.batch == 0) return CUBLAS_STATUS_SUCCESS;

  const bool is_double = g.c.type == Type::f64;
  const bool on_device = blas->pointer_mode == CUBLAS_POINTER_MODE_DEVICE;
  // Scalars of the host are read now, those of the device when the product runs.
  double alpha = 0, beta = 1;
  if (!on_device) alpha = scalar(p.alpha, is_double), beta = scalar(p.beta, is_double);
  std::vector<Range> ranges = gemm_ranges(g, beta != 0, on_device || alpha != 0);
  if (on_device)
    for (const void* s : {p.alpha, p.beta}) ranges.push_back({s, is_double ? 8u : 4u, false});
  if (blas->workspace != nullptr && world().rng.chance(2))  // the real one sometimes uses its workspace
    ranges.push_back({blas->workspace, blas->workspace_bytes, true});
  const double flops = 2.0 * double(p.m) * double(p.n) * double(p.k) * double(p.batch);
  enqueue(
      stream, call, std::move(ranges),
      [=](Op&) {
        if (on_device) run_gemm(g, scalar(p.alpha, is_double), scalar(p.beta, is_double));
        else run_gemm(g, alpha, beta);
      },
      5 + flops / 1e7);
  return CUBLAS_STATUS_SUCCESS;
}

}  // namespace

void reset_cublas() {
  for (Blas* b : handles) delete b;
  handles.clear();
}

}  // namespace simgpu

using namespace simgpu;

#define SIMGPU_BLAS_CALL(name) \
  ::simgpu::Call call(#name);  \
  if (call.injected() != 0) return static_cast<cublasStatus_t>(call.injected())
#define SIMGPU_BLAS(handle)                  \
  Blas* blas = blas_of(handle, call.name()); \
  if (blas == nullptr) return CUBLAS_STATUS_NOT_INITIALIZED

extern "C" {

cublasStatus_t cublasCreate_v2(cublasHandle_t* handle) {
  SIMGPU_BLAS_CALL(cublasCreate);
  auto* b = new Blas{host.device};
  handles.insert(b);
  *handle = reinterpret_cast<cublasHandle_t>(b);
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasDestroy_v2(cublasHandle_t handle) {
  SIMGPU_BLAS_CALL(cublasDestroy);
  SIMGPU_BLAS(handle);
  handles.erase(blas);
  delete blas;
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasGetVersion_v2(cublasHandle_t, int* version) {
  *version = CUBLAS_VERSION;
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasSetStream_v2(cublasHandle_t handle, cudaStream_t stream) {
  SIMGPU_BLAS_CALL(cublasSetStream);
  SIMGPU_BLAS(handle);
  blas->stream = stream;
  blas->workspace = nullptr;  // as documented: back to the default one
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasGetStream_v2(cublasHandle_t handle, cudaStream_t* stream) {
  SIMGPU_BLAS_CALL(cublasGetStream);
  SIMGPU_BLAS(handle);
  *stream = blas->stream;
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasSetWorkspace_v2(cublasHandle_t handle, void* workspace, size_t bytes) {
  SIMGPU_BLAS_CALL(cublasSetWorkspace);
  SIMGPU_BLAS(handle);
  if (reinterpret_cast<uintptr_t>(workspace) % 256 != 0) return CUBLAS_STATUS_INVALID_VALUE;
  blas->workspace = workspace, blas->workspace_bytes = bytes;
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasSetMathMode(cublasHandle_t handle, cublasMath_t mode) {
  SIMGPU_BLAS_CALL(cublasSetMathMode);
  SIMGPU_BLAS(handle);
  blas->math_mode = mode;
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasGetMathMode(cublasHandle_t handle, cublasMath_t* mode) {
  SIMGPU_BLAS_CALL(cublasGetMathMode);
  SIMGPU_BLAS(handle);
  *mode = blas->math_mode;
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasSetPointerMode_v2(cublasHandle_t handle, cublasPointerMode_t mode) {
  SIMGPU_BLAS_CALL(cublasSetPointerMode);
  SIMGPU_BLAS(handle);
  blas->pointer_mode = mode;
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasSgemm_v2(cublasHandle_t handle, cublasOperation_t trans_a, cublasOperation_t trans_b,
                              int m, int n, int k, const float* alpha, const float* a, int lda,
                              const float* b, int ldb, const float* beta, float* c, int ldc) {
  SIMGPU_BLAS_CALL(cublasSgemm);
  return multiply(handle, {trans_a, trans_b,    m,   n, k,    alpha, a,          CUDA_R_32F, lda, 0,
                           b,       CUDA_R_32F, ldb, 0, beta, c,     CUDA_R_32F, ldc,        0,   1},
                  call.name());
}
cublasStatus_t cublasDgemm_v2(cublasHandle_t handle, cublasOperation_t trans_a, cublasOperation_t trans_b,
                              int m, int n, int k, const double* alpha, const double* a, int lda,
                              const double* b, int ldb, const double* beta, double* c, int ldc) {
  SIMGPU_BLAS_CALL(cublasDgemm);
  return multiply(handle, {trans_a, trans_b,    m,   n, k,    alpha, a,          CUDA_R_64F, lda, 0,
                           b,       CUDA_R_64F, ldb, 0, beta, c,     CUDA_R_64F, ldc,        0,   1},
                  call.name());
}
cublasStatus_t cublasGemmEx(cublasHandle_t handle, cublasOperation_t trans_a, cublasOperation_t trans_b,
                            int m, int n, int k, const void* alpha, const void* a, cudaDataType type_a,
                            int lda, const void* b, cudaDataType type_b, int ldb, const void* beta, void* c,
                            cudaDataType type_c, int ldc, cublasComputeType_t, cublasGemmAlgo_t) {
  SIMGPU_BLAS_CALL(cublasGemmEx);
  return multiply(handle, {trans_a, trans_b, m,   n, k,    alpha, a,      type_a, lda, 0,
                           b,       type_b,  ldb, 0, beta, c,     type_c, ldc,    0,   1},
                  call.name());
}
cublasStatus_t cublasGemmStridedBatchedEx(cublasHandle_t handle, cublasOperation_t trans_a,
                                          cublasOperation_t trans_b, int m, int n, int k, const void* alpha,
                                          const void* a, cudaDataType type_a, int lda, long long stride_a,
                                          const void* b, cudaDataType type_b, int ldb, long long stride_b,
                                          const void* beta, void* c, cudaDataType type_c, int ldc,
                                          long long stride_c, int batch, cublasComputeType_t,
                                          cublasGemmAlgo_t) {
  SIMGPU_BLAS_CALL(cublasGemmStridedBatchedEx);
  return multiply(handle, {trans_a, trans_b, m,   n,        k,    alpha, a,      type_a, lda,      stride_a,
                           b,       type_b,  ldb, stride_b, beta, c,     type_c, ldc,    stride_c, batch},
                  call.name());
}

const char* cublasGetStatusName(cublasStatus_t status) {
  switch (status) {
    case CUBLAS_STATUS_SUCCESS: return "CUBLAS_STATUS_SUCCESS";
    case CUBLAS_STATUS_NOT_INITIALIZED: return "CUBLAS_STATUS_NOT_INITIALIZED";
    case CUBLAS_STATUS_ALLOC_FAILED: return "CUBLAS_STATUS_ALLOC_FAILED";
    case CUBLAS_STATUS_INVALID_VALUE: return "CUBLAS_STATUS_INVALID_VALUE";
    case CUBLAS_STATUS_EXECUTION_FAILED: return "CUBLAS_STATUS_EXECUTION_FAILED";
    case CUBLAS_STATUS_NOT_SUPPORTED: return "CUBLAS_STATUS_NOT_SUPPORTED";
    default: return "CUBLAS_STATUS_INTERNAL_ERROR";
  }
}
const char* cublasGetStatusString(cublasStatus_t status) { return cublasGetStatusName(status); }
}
