#include "lockstep/ops/mse_loss.h"

#include "lockstep/runtime/autograd.h"
#include "lockstep/runtime/elementwise.h"

namespace lockstep {

Tensor mse_loss(const Tensor& x, const Tensor& y, Reduction reduction) {
  LOCKSTEP_CHECK(is_floating(x.dtype()) && x.dtype() == y.dtype(), "[mse_loss] dtypes ", x.dtype(), " and ",
                 y.dtype(), ", expected one floating dtype");
  LOCKSTEP_CHECK(x.shape() == y.shape(), "[mse_loss] shapes ", x.shape(), " and ", y.shape(),
                 ", expected equal ones");
  check_same_device("mse_loss", {&x, &y});
  Tensor losses = empty(x.shape(), compute_dtype(x.dtype()), x.device());
  LOCKSTEP_DISPATCH(current_stream(x.device()), mse_loss_forward, x, y, losses);
  const bool x_needs = x.requires_grad(), y_needs = y.requires_grad();
  const double scale = loss_scale(reduction, x.numel());
  return record("mse_loss", reduce_loss(losses, reduction, x.dtype()), {x, y},
                [x = Saved(x), y = Saved(y), x_needs, y_needs, scale](const Tensor& dloss) -> Tensors {
                  const Stream stream = current_stream(dloss.device());
                  Tensor dx, dy;
                  if (x_needs) {
                    dx = empty_like(x);
                    LOCKSTEP_DISPATCH(stream, mse_loss_backward, x, y, dloss, scale, dx);
                  }
                  if (y_needs) {
                    dy = empty_like(y);
                    LOCKSTEP_DISPATCH(stream, mse_loss_backward, y, x, dloss, scale, dy);
                  }
                  return {dx, dy};
                });
}

namespace cpu {

void mse_loss_forward(const Tensor& x, const Tensor& y, Tensor& losses, Stream) {
  dispatch_float(x.dtype(), [&]<class T>() {
    using C = Compute<T>;
    map<C, T, T>(
        losses, [](C x, C y) { return (x - y) * (x - y); }, x, y);
  });
}

void mse_loss_backward(const Tensor& x, const Tensor& y, const Tensor& dloss, double scale, Tensor& dx,
                       Stream) {
  dispatch_float(x.dtype(), [&]<class T>() {
    using C = Compute<T>;
    map<T, T, T, T>(
        dx, [factor = C(2 * scale)](C x, C y, C dloss) { return factor * dloss * (x - y); }, x, y, dloss);
  });
}

}  // namespace cpu
}  // namespace lockstep
