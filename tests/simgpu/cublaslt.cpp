// The part of cuBLASLt that linear layers use: products with a bias, an activation, or a bias gradient fused
// on.
#include <cublasLt.h>

#include <cmath>
#include <cstring>
#include <set>

#include "simgpu/gemm.h"
#include "simgpu/libraries.h"
#include "simgpu/memory.h"
#include "simgpu/report.h"
#include "simgpu/scheduler.h"

namespace simgpu {
namespace {

struct Layout {
  Type type = Type::f32;
  uint64_t rows = 0, cols = 0;
  int64_t ld = 0, stride = 0;
  int32_t batch = 1, order = CUBLASLT_ORDER_COL;
};

struct Description {
  cublasOperation_t trans_a = CUBLAS_OP_N, trans_b = CUBLAS_OP_N;
  cudaDataType_t scale = CUDA_R_32F;
  uint32_t epilogue = CUBLASLT_EPILOGUE_DEFAULT;
  void* bias = nullptr;
  int32_t bias_type = -1;
};

std::set<Layout*> layouts;
std::set<Description*> descriptions;
int lt_handle;  // there is nothing to keep in one

template <class T>
cublasStatus_t assign(T* to, const void* from, size_t bytes) {
  if (from == nullptr || bytes != sizeof(T)) return CUBLAS_STATUS_INVALID_VALUE;
  std::memcpy(to, from, bytes);
  return CUBLAS_STATUS_SUCCESS;
}

double activate(uint32_t epilogue, double x) {
  if (epilogue & CUBLASLT_EPILOGUE_RELU) return x > 0 ? x : 0;
  if (epilogue & CUBLASLT_EPILOGUE_GELU)
    return 0.5 * x * (1 + std::tanh(0.7978845608028654 * (x + 0.044715 * x * x * x)));
  return x;
}

struct Fused {
  Gemm gemm;  // into `c`, which is D
  const void* addend = nullptr;
  int64_t addend_ld = 0, addend_stride = 0;
  double alpha = 1, beta = 0;
  uint32_t epilogue = CUBLASLT_EPILOGUE_DEFAULT;
  void* bias = nullptr;
  Type bias_type = Type::f32;
};

bool gives_bias_gradient(uint32_t e) {
  return e == CUBLASLT_EPILOGUE_BGRADA || e == CUBLASLT_EPILOGUE_BGRADB;
}

// D before the epilogue is rounded once only, after it: the product goes through a float matrix.
void run_fused(const Fused& f) {
  const Gemm& g = f.gemm;
  for (int64_t item = 0; item < g.batch; ++item) {
    Gemm one = g;
    const auto at = [&](const Matrix& x) {
      return static_cast<const char*>(x.data) + static_cast<size_t>(item * x.stride) * size_of(x.type);
    };
    one.batch = 1;
    one.a.data = at(g.a), one.b.data = at(g.b);
    std::vector<float> product(static_cast<size_t>(g.m * g.n));
    one.c = {product.data(), Type::f32, false, g.m, 0};
    run_gemm(one, f.alpha, 0);
    auto* d = const_cast<char*>(at(g.c));
    for (int64_t j = 0; j < g.n; ++j)
      for (int64_t i = 0; i < g.m; ++i) {
        double value = static_cast<double>(product[static_cast<size_t>(j * g.m + i)]);
        if (f.beta != 0)
          value += f.beta * load(g.c.type, f.addend,
                                 static_cast<size_t>(item * f.addend_stride + j * f.addend_ld + i));
        if (f.epilogue & CUBLASLT_EPILOGUE_BIAS) value += load(f.bias_type, f.bias, static_cast<size_t>(i));
        store(g.c.type, d, static_cast<size_t>(j * g.c.ld + i), activate(f.epilogue, value));
      }
    if (!gives_bias_gradient(f.epilogue)) continue;
    const bool of_a = f.epilogue == CUBLASLT_EPILOGUE_BGRADA;
    const Matrix& x = of_a ? one.a : one.b;
    for (int64_t i = 0; i < (of_a ? g.m : g.n); ++i) {
      double sum = 0;
      for (int64_t p = 0; p < g.k; ++p) {
        const int64_t row = of_a ? i : p, col = of_a ? p : i;
        sum += load(x.type, x.data, static_cast<size_t>(x.transposed ? row * x.ld + col : col * x.ld + row));
      }
      store(f.bias_type, f.bias, static_cast<size_t>(i), sum);
    }
  }
}

// The epilogue's name says what was fused, for reports and the timeline.
cublasStatus_t matmul(const Description& p, const Layout& a, const Layout& b, const Layout& c,
                      const Layout& d, Fused f, const void* pa, const void* pb, const void* pc, void* pd,
                      cudaStream_t handle, const char* call) {
  const bool ta = p.trans_a != CUBLAS_OP_N, tb = p.trans_b != CUBLAS_OP_N;
  const auto m = static_cast<int64_t>(d.rows), n = static_cast<int64_t>(d.cols);
  const auto k = static_cast<int64_t>(ta ? a.rows : a.cols);
  for (const Layout* l : {&a, &b, &c, &d}) {
    if (l->order != CUBLASLT_ORDER_COL) return CUBLAS_STATUS_NOT_SUPPORTED;
    if (l->ld < static_cast<int64_t>(l->rows) || l->batch != d.batch) return CUBLAS_STATUS_INVALID_VALUE;
  }
  if (static_cast<int64_t>(ta ? a.cols : a.rows) != m || static_cast<int64_t>(tb ? b.cols : b.rows) != k ||
      static_cast<int64_t>(tb ? b.rows : b.cols) != n || c.rows != d.rows || c.cols != d.cols)
    return CUBLAS_STATUS_INVALID_VALUE;
  if (a.type != b.type || c.type != d.type || a.type == Type::f64 ||
      (d.batch > 1 && gives_bias_gradient(p.epilogue)))
    return CUBLAS_STATUS_NOT_SUPPORTED;
  f.gemm = {m,
            n,
            k,
            {pa, a.type, ta, a.ld, a.stride},
            {pb, b.type, tb, b.ld, b.stride},
            {pd, d.type, false, d.ld, d.stride},
            d.batch};
  f.addend = pc, f.addend_ld = c.ld, f.addend_stride = c.stride;
  f.bias = p.bias;
  f.bias_type = d.type;
  if (p.bias_type >= 0 && !type_of(static_cast<cudaDataType>(p.bias_type), &f.bias_type))
    return CUBLAS_STATUS_NOT_SUPPORTED;
  const bool adds_bias = (p.epilogue & CUBLASLT_EPILOGUE_BIAS) != 0;
  if ((adds_bias || gives_bias_gradient(p.epilogue)) && p.bias == nullptr) return CUBLAS_STATUS_INVALID_VALUE;
  Stream* stream = stream_of(handle, call);
  if (stream == nullptr) return CUBLAS_STATUS_EXECUTION_FAILED;

  std::vector<Range> ranges = gemm_ranges(f.gemm, false, f.alpha != 0);
  if (f.beta != 0) {
    Gemm addend = f.gemm;
    addend.c = {pc, c.type, false, c.ld, c.stride};
    for (Range& r : gemm_ranges(addend, false, false)) {
      r.write = false;
      ranges.push_back(r);
    }
  }
  if (adds_bias) ranges.push_back({p.bias, static_cast<size_t>(m) * size_of(f.bias_type), false});
  if (gives_bias_gradient(p.epilogue))
    ranges.push_back(
        {p.bias, static_cast<size_t>(p.epilogue == CUBLASLT_EPILOGUE_BGRADA ? m : n) * size_of(f.bias_type),
         true});
  enqueue(
      stream, call, std::move(ranges), [f](Op&) { run_fused(f); },
      5 + 2.0 * double(m) * double(n) * double(k) / 1e7);
  return CUBLAS_STATUS_SUCCESS;
}

}  // namespace

void reset_cublaslt() {
  for (Layout* l : layouts) delete l;
  for (Description* d : descriptions) delete d;
  layouts.clear();
  descriptions.clear();
}

}  // namespace simgpu

using namespace simgpu;

#define SIMGPU_LT_CALL(name)  \
  ::simgpu::Call call(#name); \
  if (call.injected() != 0) return static_cast<cublasStatus_t>(call.injected())

extern "C" {

cublasStatus_t cublasLtCreate(cublasLtHandle_t* handle) {
  SIMGPU_LT_CALL(cublasLtCreate);
  *handle = reinterpret_cast<cublasLtHandle_t>(&lt_handle);
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtDestroy(cublasLtHandle_t) {
  SIMGPU_LT_CALL(cublasLtDestroy);
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t* handle, cudaDataType type, uint64_t rows,
                                          uint64_t cols, int64_t ld) {
  SIMGPU_LT_CALL(cublasLtMatrixLayoutCreate);
  Layout layout;
  if (!type_of(type, &layout.type)) return CUBLAS_STATUS_NOT_SUPPORTED;
  layout.rows = rows, layout.cols = cols, layout.ld = ld;
  *handle = reinterpret_cast<cublasLtMatrixLayout_t>(*layouts.insert(new Layout(layout)).first);
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t handle) {
  SIMGPU_LT_CALL(cublasLtMatrixLayoutDestroy);
  auto* layout = reinterpret_cast<Layout*>(handle);
  if (layouts.erase(layout) == 0) return CUBLAS_STATUS_INVALID_VALUE;
  delete layout;
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatrixLayoutSetAttribute(cublasLtMatrixLayout_t handle,
                                                cublasLtMatrixLayoutAttribute_t name, const void* value,
                                                size_t bytes) {
  SIMGPU_LT_CALL(cublasLtMatrixLayoutSetAttribute);
  auto* layout = reinterpret_cast<Layout*>(handle);
  if (!layouts.contains(layout)) return CUBLAS_STATUS_INVALID_VALUE;
  switch (name) {
    case CUBLASLT_MATRIX_LAYOUT_ORDER: return assign(&layout->order, value, bytes);
    case CUBLASLT_MATRIX_LAYOUT_ROWS: return assign(&layout->rows, value, bytes);
    case CUBLASLT_MATRIX_LAYOUT_COLS: return assign(&layout->cols, value, bytes);
    case CUBLASLT_MATRIX_LAYOUT_LD: return assign(&layout->ld, value, bytes);
    case CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT: return assign(&layout->batch, value, bytes);
    case CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET: return assign(&layout->stride, value, bytes);
    default: return CUBLAS_STATUS_NOT_SUPPORTED;
  }
}

cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t* handle, cublasComputeType_t,
                                        cudaDataType_t scale) {
  SIMGPU_LT_CALL(cublasLtMatmulDescCreate);
  if (scale != CUDA_R_32F) return CUBLAS_STATUS_NOT_SUPPORTED;
  *handle = reinterpret_cast<cublasLtMatmulDesc_t>(*descriptions.insert(new Description).first);
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t handle) {
  SIMGPU_LT_CALL(cublasLtMatmulDescDestroy);
  auto* d = reinterpret_cast<Description*>(handle);
  if (descriptions.erase(d) == 0) return CUBLAS_STATUS_INVALID_VALUE;
  delete d;
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t handle,
                                              cublasLtMatmulDescAttributes_t name, const void* value,
                                              size_t bytes) {
  SIMGPU_LT_CALL(cublasLtMatmulDescSetAttribute);
  auto* d = reinterpret_cast<Description*>(handle);
  if (!descriptions.contains(d)) return CUBLAS_STATUS_INVALID_VALUE;
  switch (name) {
    case CUBLASLT_MATMUL_DESC_TRANSA: return assign(&d->trans_a, value, bytes);
    case CUBLASLT_MATMUL_DESC_TRANSB: return assign(&d->trans_b, value, bytes);
    case CUBLASLT_MATMUL_DESC_EPILOGUE: return assign(&d->epilogue, value, bytes);
    case CUBLASLT_MATMUL_DESC_BIAS_POINTER: return assign(&d->bias, value, bytes);
    case CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE: return assign(&d->bias_type, value, bytes);
    default: return CUBLAS_STATUS_NOT_SUPPORTED;
  }
}

// The preferences are taken and not looked at: any algorithm here fits in any workspace.
cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t* handle) {
  SIMGPU_LT_CALL(cublasLtMatmulPreferenceCreate);
  *handle = reinterpret_cast<cublasLtMatmulPreference_t>(&lt_handle);
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t) { return CUBLAS_STATUS_SUCCESS; }
cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t,
                                                    cublasLtMatmulPreferenceAttributes_t, const void*,
                                                    size_t) {
  return CUBLAS_STATUS_SUCCESS;
}

static bool epilogue_supported(uint32_t e) {
  switch (e) {
    case CUBLASLT_EPILOGUE_DEFAULT:
    case CUBLASLT_EPILOGUE_RELU:
    case CUBLASLT_EPILOGUE_BIAS:
    case CUBLASLT_EPILOGUE_RELU_BIAS:
    case CUBLASLT_EPILOGUE_GELU:
    case CUBLASLT_EPILOGUE_GELU_BIAS:
    case CUBLASLT_EPILOGUE_BGRADA:
    case CUBLASLT_EPILOGUE_BGRADB: return true;
    default: return false;
  }
}

cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t, cublasLtMatmulDesc_t handle,
                                              cublasLtMatrixLayout_t, cublasLtMatrixLayout_t,
                                              cublasLtMatrixLayout_t, cublasLtMatrixLayout_t,
                                              cublasLtMatmulPreference_t, int requested,
                                              cublasLtMatmulHeuristicResult_t* results, int* count) {
  SIMGPU_LT_CALL(cublasLtMatmulAlgoGetHeuristic);
  auto* d = reinterpret_cast<Description*>(handle);
  *count = 0;
  if (!descriptions.contains(d) || requested < 1) return CUBLAS_STATUS_INVALID_VALUE;
  if (!epilogue_supported(d->epilogue)) return CUBLAS_STATUS_NOT_SUPPORTED;
  results[0] = {};
  results[0].state = CUBLAS_STATUS_SUCCESS;
  *count = 1;
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmul(cublasLtHandle_t, cublasLtMatmulDesc_t handle, const void* alpha, const void* a,
                              cublasLtMatrixLayout_t layout_a, const void* b, cublasLtMatrixLayout_t layout_b,
                              const void* beta, const void* c, cublasLtMatrixLayout_t layout_c, void* d,
                              cublasLtMatrixLayout_t layout_d, const cublasLtMatmulAlgo_t*, void*, size_t,
                              cudaStream_t stream) {
  SIMGPU_LT_CALL(cublasLtMatmul);
  auto* description = reinterpret_cast<Description*>(handle);
  const auto layout = [](cublasLtMatrixLayout_t l) { return reinterpret_cast<Layout*>(l); };
  if (!descriptions.contains(description) || alpha == nullptr || beta == nullptr)
    return CUBLAS_STATUS_INVALID_VALUE;
  for (cublasLtMatrixLayout_t l : {layout_a, layout_b, layout_c, layout_d})
    if (!layouts.contains(layout(l))) return CUBLAS_STATUS_INVALID_VALUE;
  if (!epilogue_supported(description->epilogue)) return CUBLAS_STATUS_NOT_SUPPORTED;
  Fused f;
  f.alpha = static_cast<double>(*static_cast<const float*>(alpha));
  f.beta = static_cast<double>(*static_cast<const float*>(beta));
  f.epilogue = description->epilogue;
  return matmul(*description, *layout(layout_a), *layout(layout_b), *layout(layout_c), *layout(layout_d), f,
                a, b, c, d, stream, call.name());
}
}
