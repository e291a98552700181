#include "lockstep/ops/where.h"

#include "lockstep/ops/binary.h"
#include "lockstep/runtime/autograd.h"
#include "lockstep/runtime/elementwise.h"

namespace lockstep {

Tensor where(const Tensor& condition, const Tensor& a, const Tensor& b) {
  LOCKSTEP_CHECK(condition.dtype() == DType::boolean, "[where] condition is ", condition.dtype(),
                 ", expected bool, for shape ", condition.shape());
  if (a.dtype() != b.dtype()) {
    const DType dtype = promote(a.dtype(), b.dtype());
    return where(condition, a.to(dtype), b.to(dtype));
  }
  check_same_device("where", {&condition, &a, &b});
  Shape shape = broadcast_shapes("where", condition.shape(), broadcast_shapes("where", a.shape(), b.shape()));
  Tensor y = empty(shape, a.dtype(), a.device());
  LOCKSTEP_DISPATCH(current_stream(a.device()), where_forward, condition, a, b, y);
  return record("where", y, {a, b},
                [condition = Saved(condition), need_a = a.requires_grad(),
                 need_b = b.requires_grad()](const Tensor& dy) -> Tensors {
                  auto gradient = [&](bool taken) {
                    Tensor dx = empty_like(dy);
                    LOCKSTEP_DISPATCH(current_stream(dy.device()), where_backward, condition, taken, dy, dx);
                    return dx;
                  };
                  return {need_a ? gradient(true) : Tensor(), need_b ? gradient(false) : Tensor()};
                });
}

namespace cpu {

void where_forward(const Tensor& condition, const Tensor& a, const Tensor& b, Tensor& y, Stream) {
  auto select = [](bool taken, auto p, auto q) { return taken ? p : q; };
  dispatch_all(y.dtype(), [&]<class T>() { map<T, bool, T, T>(y, select, condition, a, b); });
}

void where_backward(const Tensor& condition, bool taken, const Tensor& dy, Tensor& dx, Stream) {
  auto select = [taken](bool c, auto g) { return c == taken ? g : 0; };
  dispatch_float(dy.dtype(), [&]<class T>() { map<T, bool, T>(dx, select, condition, dy); });
}

}  // namespace cpu

}  // namespace lockstep
