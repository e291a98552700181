#include "lockstep/ops/linear.h"

#include "lockstep/ops/gemm.h"
#include "lockstep/runtime/autograd.h"
#include "lockstep/runtime/primitives.h"

namespace lockstep {
namespace {

void check_linear(const Tensor& x, const Tensor& w, const Tensor& bias) {
  LOCKSTEP_CHECK(is_floating(x.dtype()), "[linear] expected a floating-point dtype, got ", x.dtype());
  LOCKSTEP_CHECK(w.ndim() == 2, "[linear] weight of shape ", w.shape(), ", expected [out, in]");
  LOCKSTEP_CHECK(x.ndim() >= 1 && x.shape().back() == w.shape()[1], "[linear] input of shape ", x.shape(),
                 ", expected [..., ", w.shape()[1], "] for weight ", w.shape());
  LOCKSTEP_CHECK(x.dtype() == w.dtype(), "[linear] input is ", x.dtype(), ", weight ", w.dtype(),
                 ", expected one dtype");
  check_same_device("linear", {&x, &w});
  if (!bias.defined()) return;
  LOCKSTEP_CHECK(bias.ndim() == 1 && bias.shape()[0] == w.shape()[0], "[linear] bias of shape ", bias.shape(),
                 ", expected [", w.shape()[0], "] for weight ", w.shape());
  LOCKSTEP_CHECK(bias.dtype() == w.dtype(), "[linear] bias is ", bias.dtype(), ", weight ", w.dtype(),
                 ", expected one dtype");
  check_same_device("linear", {&w, &bias});
}

Shape with_last(Shape shape, int64_t size) {
  shape[shape.size() - 1] = size;
  return shape;
}

Shape as_rows(const Shape& shape) {
  int64_t rows = 1;
  for (int i = 0; i < shape.size() - 1; i++) rows *= shape[i];
  return {rows, shape.back()};
}

}  // namespace

Tensor linear(const Tensor& input, const Tensor& weight, const Tensor& bias) {
  check_linear(input, weight, bias);
  const bool needs_x = input.requires_grad(), needs_w = weight.requires_grad();
  const bool has_bias = bias.defined(), needs_bias = has_bias && bias.requires_grad();
  Tensor x, w, b;  // row-major, x as [rows, in]; no history: the node below holds it
  {
    NoGradGuard no_grad;
    x = input.contiguous().reshape(as_rows(input.shape()));
    w = weight.contiguous();
    if (has_bias) b = bias.contiguous();
  }
  Tensor y = empty(with_last(input.shape(), w.shape()[0]), x.dtype(), x.device());
  LOCKSTEP_DISPATCH(current_stream(x.device()), linear_forward, x, w, b, y);
  Tensors inputs = {input, weight};
  if (has_bias) inputs.push_back(bias);
  return record("linear", y, inputs,
                [x = needs_w ? Saved(x) : Saved(), w = needs_x ? Saved(w) : Saved(), x_shape = input.shape(),
                 w_shape = w.shape(), needs_w, has_bias, needs_bias](const Tensor& dy_any) -> Tensors {
                  const bool is_16_bit = element_size(dy_any.dtype()) == 2;
                  const Tensor dy = dy_any.contiguous().reshape(as_rows(dy_any.shape()));
                  const Stream stream = current_stream(dy.device());
                  Tensor dx, dw, db;
                  if (w.defined()) {
                    dx = empty(x_shape, dy.dtype(), dy.device());
                    LOCKSTEP_DISPATCH(stream, linear_backward_input, dy, w.get(), dx);
                  }
                  // Over micro-batches the product is added to the gradient that is there, without a pass of
                  // its own.
                  if (needs_w && !is_16_bit) dw = accumulation_target(1);
                  const bool accumulate = dw.defined() && dw.is_contiguous();
                  if (needs_w && !accumulate) dw = empty(w_shape, dy.dtype(), dy.device());
                  if (needs_bias) db = empty({w_shape[0]}, dy.dtype(), dy.device());
                  if (needs_w || needs_bias)
                    LOCKSTEP_DISPATCH(stream, linear_backward_weight, needs_w ? x.get() : Tensor(), dy,
                                      accumulate, dw, db);
                  return has_bias ? Tensors{dx, dw, db} : Tensors{dx, dw};
                });
}

namespace cpu {

void linear_forward(const Tensor& x, const Tensor& w, const Tensor& bias, Tensor& y, Stream s) {
  if (is_16_bit(y)) {
    Tensor wide = empty(y.shape(), DType::float32);
    linear_forward(widen(x, s), widen(w, s), widen(bias, s), wide, s);
    return copy(wide, y, s);
  }
  const int64_t rows = x.shape()[0], in = w.shape()[1], out = w.shape()[0];
  dispatch_wide(y.dtype(), [&]<class T>() {
    gemm<T>(false, true, rows, out, in, 1, x.data<T>(), in, w.data<T>(), in, 0, y.data<T>(), out,
            data_or_null<T>(bias));
  });
}

void linear_backward_input(const Tensor& dy, const Tensor& w, Tensor& dx, Stream s) {
  if (is_16_bit(dx)) {
    Tensor wide = empty(dx.shape(), DType::float32);
    linear_backward_input(widen(dy, s), widen(w, s), wide, s);
    return copy(wide, dx, s);
  }
  const int64_t rows = dy.shape()[0], in = w.shape()[1], out = w.shape()[0];
  dispatch_wide(dx.dtype(), [&]<class T>() {
    gemm<T>(false, false, rows, in, out, 1, dy.data<T>(), out, w.data<T>(), in, 0, dx.data<T>(), in);
  });
}

void linear_backward_weight(const Tensor& x, const Tensor& dy, bool accumulate, Tensor& dw, Tensor& dbias,
                            Stream s) {
  if (is_16_bit(dy)) {
    Tensor wide_dw = dw.defined() ? empty(dw.shape()) : Tensor();
    Tensor wide_dbias = dbias.defined() ? empty(dbias.shape()) : Tensor();
    linear_backward_weight(widen(x, s), widen(dy, s), false, wide_dw, wide_dbias, s);
    if (dw.defined()) copy(wide_dw, dw, s);
    if (dbias.defined()) copy(wide_dbias, dbias, s);
    return;
  }
  const int64_t rows = dy.shape()[0], out = dy.shape()[1];
  dispatch_wide(dy.dtype(), [&]<class T>() {
    if (dw.defined()) {
      const int64_t in = dw.shape()[1];
      gemm<T>(true, false, out, in, rows, 1, dy.data<T>(), out, x.data<T>(), in, accumulate ? 1 : 0,
              dw.data<T>(), in);
    }
    if (dbias.defined()) column_sums(dy.data<T>(), rows, out, dbias.data<T>());
  });
}

}  // namespace cpu
}  // namespace lockstep
