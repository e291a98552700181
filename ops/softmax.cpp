#include "lockstep/ops/softmax.h"

#include <cmath>

#include "lockstep/ops/softmax_rows.h"
#include "lockstep/runtime/autograd.h"

namespace lockstep {
namespace {

int check(const char* op, const Tensor& x, int64_t axis) {
  LOCKSTEP_CHECK(is_floating(x.dtype()), "[", op, "] dtype ", x.dtype(), ", expected a floating dtype");
  LOCKSTEP_CHECK(x.ndim() > 0, "[", op, "] a scalar has no axis, expected at least one");
  return normalize_axis(op, axis, x.shape());
}

// The lines along `axis` as contiguous rows. Not recorded: x has no history.
Tensor to_rows(const Tensor& x, int axis) {
  return axis == x.ndim() - 1 ? x.contiguous() : x.transpose(axis, -1).contiguous();
}
Tensor from_rows(const Tensor& rows, int axis) {
  return axis == rows.ndim() - 1 ? rows : rows.transpose(axis, -1).contiguous();
}

}  // namespace

Tensor softmax(const Tensor& x, int64_t axis) {
  const int a = check("softmax", x, axis);
  Tensor rows = to_rows(x.detach(), a), y_rows = empty_like(rows);
  LOCKSTEP_DISPATCH(current_stream(x.device()), softmax_forward, rows, y_rows);
  Tensor y = from_rows(y_rows, a);
  return record("softmax", y, {x}, [y = Saved(y), a](const Tensor& dy) -> Tensors {
    Tensor rows = to_rows(y, a), dy_rows = to_rows(dy, a), dx = empty_like(rows);
    LOCKSTEP_DISPATCH(current_stream(dy.device()), softmax_backward, rows, dy_rows, dx);
    return {from_rows(dx, a)};
  });
}

Tensor log_softmax(const Tensor& x, int64_t axis) {
  const int a = check("log_softmax", x, axis);
  Tensor rows = to_rows(x.detach(), a), y_rows = empty_like(rows);
  LOCKSTEP_DISPATCH(current_stream(x.device()), log_softmax_forward, rows, y_rows);
  Tensor y = from_rows(y_rows, a);
  return record("log_softmax", y, {x}, [y = Saved(y), a](const Tensor& dy) -> Tensors {
    Tensor rows = to_rows(y, a), dy_rows = to_rows(dy, a), dx = empty_like(rows);
    LOCKSTEP_DISPATCH(current_stream(dy.device()), log_softmax_backward, rows, dy_rows, dx);
    return {from_rows(dx, a)};
  });
}

namespace cpu {
namespace {

// Calls row(begin of the row in elements, its length) for every row of x.
template <class F>
void for_each_row(const Tensor& x, F&& row) {
  const int64_t n = x.shape().back();
  if (x.numel() == 0) return;
  parallel_for(x.numel() / n, softmax_grain(n), [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; r++) row(r * n, n);
  });
}

template <class T>
void softmax_row(const T* __restrict x, T* __restrict y, int64_t n) {
  using C = Compute<T>;
  const C max = row_max(x, n);
  if constexpr (std::is_same_v<T, C>) {
    double sum = 0;
#pragma omp simd reduction(+ : sum)
    for (int64_t i = 0; i < n; i++) sum += y[i] = math::exp(x[i] - max);
    const C scale = C(1 / sum);
#pragma omp simd
    for (int64_t i = 0; i < n; i++) y[i] *= scale;
  } else {  // y is too coarse to hold what is yet to be scaled
    const C scale = C(1 / row_sum_exp(x, n, max));
#pragma omp simd
    for (int64_t i = 0; i < n; i++) y[i] = T(math::exp(C(x[i]) - max) * scale);
  }
}

}  // namespace

void softmax_forward(const Tensor& x, Tensor& y, Stream) {
  dispatch_float(x.dtype(), [&]<class T>() {
    for_each_row(
        x, [px = x.data<T>(), py = y.data<T>()](int64_t at, int64_t n) { softmax_row(px + at, py + at, n); });
  });
}

void softmax_backward(const Tensor& y, const Tensor& dy, Tensor& dx, Stream) {
  dispatch_float(y.dtype(), [&]<class T>() {
    using C = Compute<T>;
    for_each_row(y,
                 [all_y = y.data<T>(), all_dy = dy.data<T>(), all_dx = dx.data<T>()](int64_t at, int64_t n) {
                   const T* __restrict y = all_y + at, * __restrict dy = all_dy + at;
                   T* __restrict dx = all_dx + at;
                   double sum = 0;
#pragma omp simd reduction(+ : sum)
                   for (int64_t i = 0; i < n; i++) sum += double(C(y[i]) * C(dy[i]));
                   const C dot = C(sum);
#pragma omp simd
                   for (int64_t i = 0; i < n; i++) dx[i] = T(C(y[i]) * (C(dy[i]) - dot));
                 });
  });
}

void log_softmax_forward(const Tensor& x, Tensor& y, Stream) {
  dispatch_float(x.dtype(), [&]<class T>() {
    using C = Compute<T>;
    for_each_row(x, [all_x = x.data<T>(), all_y = y.data<T>()](int64_t at, int64_t n) {
      const T* __restrict x = all_x + at;
      T* __restrict y = all_y + at;
      const C max = row_max(x, n), log_sum = C(std::log(row_sum_exp(x, n, max)));
#pragma omp simd
      for (int64_t i = 0; i < n; i++) y[i] = T(C(x[i]) - max - log_sum);
    });
  });
}

void log_softmax_backward(const Tensor& y, const Tensor& dy, Tensor& dx, Stream) {
  dispatch_float(y.dtype(), [&]<class T>() {
    using C = Compute<T>;
    for_each_row(y,
                 [all_y = y.data<T>(), all_dy = dy.data<T>(), all_dx = dx.data<T>()](int64_t at, int64_t n) {
                   const T* __restrict y = all_y + at, * __restrict dy = all_dy + at;
                   T* __restrict dx = all_dx + at;
                   double sum = 0;
#pragma omp simd reduction(+ : sum)
                   for (int64_t i = 0; i < n; i++) sum += double(C(dy[i]));
                   const C total = C(sum);
#pragma omp simd
                   for (int64_t i = 0; i < n; i++) dx[i] = T(C(dy[i]) - math::exp(C(y[i])) * total);
                 });
  });
}

}  // namespace cpu
}  // namespace lockstep
