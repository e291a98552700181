#include "lockstep/ops/matmul.h"

#include "lockstep/ops/gemm.h"
#include "lockstep/runtime/autograd.h"
#include "lockstep/runtime/parallel.h"
#include "lockstep/runtime/primitives.h"

namespace lockstep {
namespace {

// The last two axes as a library takes a matrix: rows (or, transposed, columns) `ld` apart. An axis of size 1
// has no step.
struct Layout {
  bool expressible = false, transposed = false;
  int64_t ld = 1;
};

Layout layout_of(const Tensor& x) {
  const int row = x.ndim() - 2, column = x.ndim() - 1;
  const int64_t rows = x.shape()[row], columns = x.shape()[column];
  const int64_t row_step = x.strides()[row], column_step = x.strides()[column];
  auto steps_fit = [](int64_t count, int64_t step, int64_t length) { return count <= 1 || step >= length; };
  if ((columns <= 1 || column_step == 1) && steps_fit(rows, row_step, columns))
    return {true, false, std::max<int64_t>({rows > 1 ? row_step : columns, columns, 1})};
  if ((rows <= 1 || row_step == 1) && steps_fit(columns, column_step, rows))
    return {true, true, std::max<int64_t>({columns > 1 ? column_step : rows, rows, 1})};
  return {};
}

Tensor expressible(const Tensor& x) { return layout_of(x).expressible ? x : x.contiguous(); }

Shape batch_of(const Tensor& x) { return std::span(x.shape().begin(), size_t(x.ndim() - 2)); }

Shape with_matrix(Shape batch, int64_t rows, int64_t columns) {
  batch.push_back(rows);
  batch.push_back(columns);
  return batch;
}

// Can the leading axes be taken as more rows of one matrix?
bool folds(const Tensor& x) {
  for (int i = 0; i + 2 < x.ndim(); i++)
    if (x.strides()[i] != x.strides()[i + 1] * x.shape()[i + 1]) return false;
  return true;
}

// Not recorded; at least two axes each, already checked. The result has the broadcast leading axes.
Tensor product(const Tensor& a_any, const Tensor& b_any) {
  NoGradGuard no_grad;
  Tensor a = expressible(a_any), b = expressible(b_any);
  const int64_t M = a.shape()[a.ndim() - 2], N = b.shape().back();
  const Shape batch = broadcast_shapes("matmul", batch_of(a), batch_of(b));
  Tensor y = empty(with_matrix(batch, M, N), a.dtype(), a.device());
  a = a.expand(with_matrix(batch, M, a.shape().back()));
  b = b.expand(with_matrix(batch, b.shape()[b.ndim() - 2], N));
  LOCKSTEP_DISPATCH(current_stream(a.device()), matmul, a, b, y);
  return y;
}

}  // namespace

Tensor matmul(const Tensor& a, const Tensor& b) {
  LOCKSTEP_CHECK(is_floating(a.dtype()), "[matmul] expected a floating-point dtype, got ", a.dtype());
  LOCKSTEP_CHECK(a.dtype() == b.dtype(), "[matmul] dtypes ", a.dtype(), " and ", b.dtype(), ", expected one");
  LOCKSTEP_CHECK(a.ndim() >= 1 && b.ndim() >= 1, "[matmul] shapes ", a.shape(), " and ", b.shape(),
                 ", expected at least one axis each");
  const int64_t b_rows = b.shape()[std::max(b.ndim() - 2, 0)];
  LOCKSTEP_CHECK(a.shape().back() == b_rows, "[matmul] shapes ", a.shape(), " and ", b.shape(),
                 ": inner sizes ", a.shape().back(), " and ", b_rows, ", expected equal ones");
  check_same_device("matmul", {&a, &b});
  if (a.ndim() == 1) return matmul(a.unsqueeze(0), b).squeeze(b.ndim() == 1 ? 0 : -2);
  if (b.ndim() == 1) return matmul(a, b.unsqueeze(1)).squeeze(-1);
  if (b.ndim() == 2 && a.ndim() > 2 && a.numel() > 0 && folds(a)) {
    Shape shape = batch_of(a);
    return matmul(a.reshape({-1, a.shape().back()}), b)
        .reshape(with_matrix(shape, a.shape()[a.ndim() - 2], b.shape()[1]));
  }
  const bool needs_a = a.requires_grad(), needs_b = b.requires_grad();
  return record(
      "matmul", product(a, b), {a, b},
      [a = needs_b ? Saved(a) : Saved(), b = needs_a ? Saved(b) : Saved()](const Tensor& dy) -> Tensors {
        return {b.defined() ? product(dy, b.get().transpose(-2, -1)) : Tensor(),
                a.defined() ? product(a.get().transpose(-2, -1), dy) : Tensor()};
      });
}

namespace cpu {

void matmul(const Tensor& a, const Tensor& b, Tensor& y, Stream s) {
  if (is_16_bit(y)) {
    Tensor wide = empty(y.shape(), DType::float32);
    matmul(widen(a, s), widen(b, s), wide, s);
    return copy(wide, y, s);
  }
  const int axes = y.ndim() - 2;
  const int64_t M = y.shape()[axes], N = y.shape()[axes + 1], K = a.shape().back();
  if (y.numel() == 0) return;
  const int64_t batch = y.numel() / (M * N);
  const Layout la = layout_of(a), lb = layout_of(b);
  LOCKSTEP_ASSERT(la.expressible && lb.expressible, "strides ", a.strides(), " and ", b.strides());
  dispatch_wide(y.dtype(), [&]<class T>() {
    auto one = [&](int64_t index) {
      int64_t a_at = 0, b_at = 0;
      int64_t rest = index;
      for (int i = axes - 1; i >= 0; i--) {
        const int64_t at = rest % y.shape()[i];
        rest /= y.shape()[i];
        a_at += at * a.strides()[i];
        b_at += at * b.strides()[i];
      }
      gemm<T>(la.transposed, lb.transposed, M, N, K, 1, a.data<T>() + a_at, la.ld, b.data<T>() + b_at, lb.ld,
              0, y.data<T>() + index * M * N, N);
    };
    // Threads share a large product, or take small ones whole; gemm rounds alike either way.
    const double flops = 2.0 * double(M) * double(N) * double(K + 1);
    if (batch < 16 && flops > 3e6)
      for (int64_t i = 0; i < batch; i++) one(i);
    else
      parallel_for(batch, std::max<int64_t>(1, int64_t(1e6 / flops)), [&](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; i++) one(i);
      });
  });
}

}  // namespace cpu
}  // namespace lockstep
