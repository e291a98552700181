#include "lockstep/ops/conv2d_plans.h"

#include <cstring>
#include <type_traits>

#include "lockstep/ops/gemm.h"
#include "lockstep/runtime/parallel.h"

namespace lockstep::cpu {

ConvChunks conv_chunks(ConvDirection direction, const ConvGeometry& g) {
  int64_t count = 16;
  if (direction == ConvDirection::backward_weight && g.weights() > 65536)
    count = g.weights() <= 262144 ? 8 : 4;
  const int64_t samples = std::max<int64_t>((g.N + count - 1) / count, 1);
  return {samples, (g.N + samples - 1) / samples};
}

namespace {

template <class T>
void add_partials_of(const T* partials, int64_t count, int64_t stride, int64_t n, T* sum) {
  parallel_for(n, kElementGrain / 4, [&](int64_t begin, int64_t end) {
    T* __restrict out = sum + begin;
    if (count == 0) std::memset(out, 0, size_t(end - begin) * sizeof(T));
    for (int64_t part = 0; part < count; part++) {
      const T* __restrict in = partials + part * stride + begin;
      if (part == 0) std::memcpy(out, in, size_t(end - begin) * sizeof(T));
      else
        for (int64_t i = 0; i < end - begin; i++) out[i] += in[i];
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

bool plan_supports(ConvPlan plan, ConvDirection, const ConvGeometry&) { return plan == ConvPlan::im2col; }

ConvPlan choose_plan(ConvDirection, const ConvGeometry&) { return ConvPlan::im2col; }

template <class T>
void conv_forward(ConvPlan, const ConvGeometry& g, const T* x, const T* w, const T* bias, bool relu, T* y) {
  im2col_forward(g, x, w, bias, relu, y);
}

template <class T>
void conv_backward_input(ConvPlan, const ConvGeometry& g, const T* dy, const T* w, T* dx) {
  im2col_backward_input(g, dy, w, dx);
}

template <class T>
void conv_backward_weight(ConvPlan, const ConvGeometry& g, const T* x, const T* dy, T* dw, T* dbias) {
  if (dw) im2col_backward_weight(g, x, dy, dw);
  if (dbias) column_sums(dy, g.N * g.P * g.Q, g.K, dbias);
}

#define LOCKSTEP_INSTANTIATE(T)                                                                      \
  template void conv_forward(ConvPlan, const ConvGeometry&, const T*, const T*, const T*, bool, T*); \
  template void conv_backward_input(ConvPlan, const ConvGeometry&, const T*, const T*, T*);          \
  template void conv_backward_weight(ConvPlan, const ConvGeometry&, const T*, const T*, T*, T*);
LOCKSTEP_INSTANTIATE(float)
LOCKSTEP_INSTANTIATE(double)
#undef LOCKSTEP_INSTANTIATE

}  // namespace lockstep::cpu
