#include "lockstep/ops/bce_with_logits.h"

#include <cmath>

#include "lockstep/ops/math.h"
#include "lockstep/runtime/autograd.h"
#include "lockstep/runtime/elementwise.h"

namespace lockstep {
namespace {

// `weight`, or 1 where it is not given, with the shape of x.
Tensor expanded(const char* name, const Tensor& weight, const Tensor& x) {
  if (!weight.defined()) return ones({}, x.dtype(), x.device()).expand(x.shape());
  LOCKSTEP_CHECK(weight.dtype() == x.dtype(), "[bce_with_logits] ", name, " of dtype ", weight.dtype(),
                 ", expected that of the logits, ", x.dtype());
  LOCKSTEP_CHECK(broadcast_shapes("bce_with_logits", weight.shape(), x.shape()) == x.shape(),
                 "[bce_with_logits] ", name, " of shape ", weight.shape(),
                 ", expected one that broadcasts to ", x.shape());
  LOCKSTEP_CHECK(!needs_grad({weight}), "[bce_with_logits] ", name,
                 " requires a gradient, expected a constant");
  check_same_device("bce_with_logits", {&x, &weight});
  return weight.detach().expand(x.shape());
}

}  // namespace

Tensor bce_with_logits(const Tensor& x, const Tensor& target, const BceOptions& options) {
  LOCKSTEP_CHECK(is_floating(x.dtype()) && x.dtype() == target.dtype(), "[bce_with_logits] dtypes ",
                 x.dtype(), " and ", target.dtype(), ", expected one floating dtype");
  LOCKSTEP_CHECK(x.shape() == target.shape(), "[bce_with_logits] logits of shape ", x.shape(),
                 " and targets of shape ", target.shape(), ", expected equal shapes");
  check_same_device("bce_with_logits", {&x, &target});
  const Tensor w = expanded("weight", options.weight, x), p = expanded("pos_weight", options.pos_weight, x);
  Tensor losses = empty(x.shape(), compute_dtype(x.dtype()), x.device());
  LOCKSTEP_DISPATCH(current_stream(x.device()), bce_forward, x, target, w, p, losses);
  const bool x_needs = x.requires_grad(), target_needs = target.requires_grad();
  const double scale = loss_scale(options.reduction, x.numel());
  return record("bce_with_logits", reduce_loss(losses, options.reduction, x.dtype()), {x, target},
                [x = Saved(x), target = Saved(target), w = Saved(w), p = Saved(p), x_needs, target_needs,
                 scale](const Tensor& dloss) -> Tensors {
                  const Stream stream = current_stream(dloss.device());
                  Tensor dx, dtarget;
                  if (x_needs) {
                    dx = empty_like(x);
                    LOCKSTEP_DISPATCH(stream, bce_backward, x, target, w, p, dloss, scale, dx);
                  }
                  if (target_needs) {
                    dtarget = empty_like(target);
                    LOCKSTEP_DISPATCH(stream, bce_target_backward, x, w, p, dloss, scale, dtarget);
                  }
                  return {dx, dtarget};
                });
}

namespace cpu {
namespace {

template <class C>
struct Softplus {  // log(1 + exp(x)) and log(1 + exp(-x))
  explicit Softplus(C x)
      : small(std::log1p(math::exp(-std::abs(x)))),
        of_x(std::max(x, C(0)) + small),
        of_minus_x(std::max(-x, C(0)) + small) {}
  C small, of_x, of_minus_x;
};

}  // namespace

void bce_forward(const Tensor& x, const Tensor& target, const Tensor& weight, const Tensor& pos_weight,
                 Tensor& losses, Stream) {
  dispatch_float(x.dtype(), [&]<class T>() {
    using C = Compute<T>;
    auto loss = [](C x, C t, C w, C p) {
      const Softplus<C> s(x);
      return w * (p * t * s.of_minus_x + (1 - t) * s.of_x);
    };
    map<C, T, T, T, T>(losses, loss, x, target, weight, pos_weight);
  });
}

void bce_backward(const Tensor& x, const Tensor& target, const Tensor& weight, const Tensor& pos_weight,
                  const Tensor& dloss, double scale, Tensor& dx, Stream) {
  dispatch_float(x.dtype(), [&]<class T>() {
    using C = Compute<T>;
    auto gradient = [factor = C(scale)](C x, C t, C w, C p, C dloss) {
      return factor * dloss * w * ((1 - t) / (1 + math::exp(-x)) - p * t / (1 + math::exp(x)));
    };
    map<T, T, T, T, T, T>(dx, gradient, x, target, weight, pos_weight, dloss);
  });
}

void bce_target_backward(const Tensor& x, const Tensor& weight, const Tensor& pos_weight, const Tensor& dloss,
                         double scale, Tensor& dtarget, Stream) {
  dispatch_float(x.dtype(), [&]<class T>() {
    using C = Compute<T>;
    auto gradient = [factor = C(scale)](C x, C w, C p, C dloss) {
      const Softplus<C> s(x);
      return factor * dloss * w * (p * s.of_minus_x - s.of_x);
    };
    map<T, T, T, T, T>(dtarget, gradient, x, weight, pos_weight, dloss);
  });
}

}  // namespace cpu
}  // namespace lockstep
