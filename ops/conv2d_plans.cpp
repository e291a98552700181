#include "lockstep/ops/conv2d_plans.h"

#include <omp.h>

#include <cstring>
#include <type_traits>

#include "lockstep/ops/conv2d_direct.h"
#include "lockstep/ops/gemm.h"
#include "lockstep/ops/onednn.h"
#include "lockstep/runtime/cpu_features.h"
#include "lockstep/runtime/parallel.h"

namespace lockstep::cpu {

ConvChunks conv_chunks(ConvDirection direction, const ConvGeometry& g) {
  int64_t count = 16;
  if (direction == ConvDirection::backward_weight && g.weights() > 65536)
    count = g.weights() <= 262144 ? 8 : 4;
  const int64_t samples = std::max<int64_t>((g.N + count - 1) / count, 1);
  return {samples, (g.N + samples - 1) / samples};
}

// Inside another parallel region chunks run in the calling thread alone.
ThreadScratch::ThreadScratch(size_t bytes)
    : stride_((bytes + 63) / 64 * 64),
      one_thread_(omp_in_parallel()),
      memory_(Device(), stride_ * size_t(one_thread_ ? 1 : num_threads())) {}

void* ThreadScratch::get() const {
  if (stride_ == 0) return nullptr;
  return static_cast<char*>(memory_.data()) + stride_ * size_t(one_thread_ ? 0 : omp_get_thread_num());
}

namespace {

template <class T>
void add_partials_of(const T* partials, int64_t count, int64_t stride, int64_t n, T* sum) {
  parallel_for(n, kElementGrain / 4, [&](int64_t begin, int64_t end) {
    T* __restrict out = sum + begin;
    if (count == 0) std::memset(out, 0, size_t(end - begin) * sizeof(T));
    for (int64_t part = 0; part < count; part++) {
      const T* __restrict in = partials + part * stride + begin;
      if (part > 0)
        for (int64_t i = 0; i < end - begin; i++) out[i] += in[i];
      else if (out != in) std::memcpy(out, in, size_t(end - begin) * sizeof(T));
    }
  });
}

}  // namespace

void add_partials(const float* partials, int64_t count, int64_t stride, int64_t n, float* sum) {
  add_partials_of(partials, count, stride, n, sum);
}
void add_partials(const double* partials, int64_t count, int64_t stride, int64_t n, double* sum) {
  add_partials_of(partials, count, stride, n, sum);
}

namespace {

// Null for the plans that are not direct, and where the processor has no AVX-512.
const DirectKernels* direct_kernels(ConvPlan plan) {
  if (plan == ConvPlan::direct) return direct_kernels_baseline();
  if (plan == ConvPlan::direct_avx512 && cpu_features().avx512) return direct_kernels_avx512();
  return nullptr;
}

}  // namespace

bool plan_supports(ConvPlan plan, [[maybe_unused]] ConvDirection direction,
                   [[maybe_unused]] const ConvGeometry& g, [[maybe_unused]] bool bias) {
  if (plan == ConvPlan::im2col) return true;
  if (direct_kernels(plan)) return direct_supports(g);
#ifdef LOCKSTEP_ONEDNN
  if (plan == ConvPlan::onednn) {
    // oneDNN 2 gathers the pixels of a strided 1x1 convolution into a workspace, and with a part of a vector
    // of channels writes past it: the weight gradient of fewer than 8 on AVX2, for one.
    const bool strided_pointwise = g.R == 1 && g.S == 1 && (g.stride_h > 1 || g.stride_w > 1);
    if (strided_pointwise && g.group_channels() % 8 != 0) return false;
    return onednn::conv_supports(direction, g, bias);
  }
#endif
  return false;
}

ConvPlan choose_plan(ConvDirection direction, const ConvGeometry& g, bool bias) {
  for (ConvPlan direct : {ConvPlan::direct_avx512, ConvPlan::direct})
    if (plan_supports(direct, direction, g)) return direct;
  // Measured: the gradients of 1x1 kernels are faster as plain matrix products.
  const bool product = g.R == 1 && g.S == 1 && g.groups == 1 && direction != ConvDirection::forward;
  if (!product && plan_supports(ConvPlan::onednn, direction, g, bias)) return ConvPlan::onednn;
  return ConvPlan::im2col;
}

template <class T>
void conv_forward(ConvPlan plan, const ConvGeometry& g, const T* x, const T* w, const T* bias, bool relu,
                  T* y) {
  if constexpr (std::is_same_v<T, float>) {
    if (const DirectKernels* kernels = direct_kernels(plan))
      return direct_forward(*kernels, g, x, w, bias, relu, y);
#ifdef LOCKSTEP_ONEDNN
    if (plan == ConvPlan::onednn) return onednn::conv_forward(g, x, w, bias, relu, y);
#endif
  }
  LOCKSTEP_ASSERT(plan == ConvPlan::im2col, "plan ", int(plan), " for ", dtype_of<T>);
  im2col_forward(g, x, w, bias, relu, y);
}

template <class T>
void conv_backward_input(ConvPlan plan, const ConvGeometry& g, const T* dy, const T* w, T* dx) {
  if constexpr (std::is_same_v<T, float>) {
    if (const DirectKernels* kernels = direct_kernels(plan))
      return direct_backward_input(*kernels, g, dy, w, dx);
#ifdef LOCKSTEP_ONEDNN
    if (plan == ConvPlan::onednn) return onednn::conv_backward_input(g, dy, w, dx);
#endif
  }
  LOCKSTEP_ASSERT(plan == ConvPlan::im2col, "plan ", int(plan), " for ", dtype_of<T>);
  im2col_backward_input(g, dy, w, dx);
}

template <class T>
void conv_backward_weight(ConvPlan plan, const ConvGeometry& g, const T* x, const T* dy, T* dw, T* dbias) {
  if (dbias) column_sums(dy, g.N * g.P * g.Q, g.K, dbias);
  if (!dw) return;
  if constexpr (std::is_same_v<T, float>) {
    if (const DirectKernels* kernels = direct_kernels(plan))
      return direct_backward_weight(*kernels, g, x, dy, dw);
#ifdef LOCKSTEP_ONEDNN
    if (plan == ConvPlan::onednn) return onednn::conv_backward_weight(g, x, dy, dw);
#endif
  }
  LOCKSTEP_ASSERT(plan == ConvPlan::im2col, "plan ", int(plan), " for ", dtype_of<T>);
  im2col_backward_weight(g, x, dy, dw);
}

#define LOCKSTEP_INSTANTIATE(T)                                                                      \
  template void conv_forward(ConvPlan, const ConvGeometry&, const T*, const T*, const T*, bool, T*); \
  template void conv_backward_input(ConvPlan, const ConvGeometry&, const T*, const T*, T*);          \
  template void conv_backward_weight(ConvPlan, const ConvGeometry&, const T*, const T*, T*, T*);
LOCKSTEP_INSTANTIATE(float)
LOCKSTEP_INSTANTIATE(double)
#undef LOCKSTEP_INSTANTIATE

}  // namespace lockstep::cpu
