#include "lockstep/ops/batch_norm.h"

#include "lockstep/runtime/autograd.h"

namespace lockstep {
namespace {

void check_channels(const char* name, const Tensor& parameter, const Tensor& x) {
  if (!parameter.defined()) return;
  LOCKSTEP_CHECK(parameter.shape() == Shape{x.shape().back()} && is_floating(parameter.dtype()),
                 "[batch_norm] ", name, " is ", parameter.dtype(), " ", parameter.shape(),
                 ", expected floating [", x.shape().back(), "] for x of shape ", x.shape());
  check_same_device("batch_norm", {&x, &parameter});
}

void check_arguments(const Tensor& x, const Tensor& weight, const Tensor& bias, const Tensor& running_mean,
                     const Tensor& running_var, bool training, double momentum, double eps,
                     const Tensor& residual) {
  LOCKSTEP_CHECK(is_floating(x.dtype()), "[batch_norm] expected a floating-point dtype, got ", x.dtype());
  LOCKSTEP_CHECK(x.ndim() >= 2 && x.shape().back() > 0, "[batch_norm] got shape ", x.shape(),
                 ", expected [N, ..., C] with at least one channel");
  check_channels("weight", weight, x);
  check_channels("bias", bias, x);
  check_channels("running_mean", running_mean, x);
  check_channels("running_var", running_var, x);
  LOCKSTEP_CHECK(running_mean.defined() == running_var.defined(),
                 "[batch_norm] running_mean and running_var go together, got one of them");
  for (const Tensor* running : {&running_mean, &running_var})
    LOCKSTEP_CHECK(!running->defined() || running->is_contiguous(),
                   "[batch_norm] running statistics must be row-major, got strides ", running->strides());
  if (residual.defined()) {
    LOCKSTEP_CHECK(residual.shape() == x.shape() && residual.dtype() == x.dtype(),
                   "[batch_norm] residual is ", residual.dtype(), " ", residual.shape(), ", expected ",
                   x.dtype(), " ", x.shape());
    check_same_device("batch_norm", {&x, &residual});
  }
  LOCKSTEP_CHECK(momentum >= 0 && momentum <= 1 && eps >= 0, "[batch_norm] got momentum ", momentum,
                 " and eps ", eps, ", expected 0 <= momentum <= 1 and eps >= 0");
  LOCKSTEP_CHECK(training || running_mean.defined(), "[batch_norm] inference needs running statistics");
  LOCKSTEP_CHECK(!training || x.numel() > x.shape().back(), "[batch_norm] got ", x.numel() / x.shape().back(),
                 " values per channel in training, expected at least 2, for x of shape ", x.shape());
}

}  // namespace

Tensor batch_norm(const Tensor& input, const Tensor& weight, const Tensor& bias, const Tensor& running_mean,
                  const Tensor& running_var, bool training, double momentum, double eps,
                  Activation activation, const Tensor& residual) {
  check_arguments(input, weight, bias, running_mean, running_var, training, momentum, eps, residual);
  const Tensor x = input.contiguous();
  const Tensor added = residual.defined() ? residual.contiguous() : Tensor();
  const Stream stream = current_stream(x.device());
  Tensor mean = empty({x.shape().back()}, DType::float64, x.device()), rstd = empty_like(mean);
  if (training) {
    Tensor moving_mean = running_mean, moving_var = running_var;
    LOCKSTEP_DISPATCH(stream, batch_norm_statistics, x, mean, rstd, moving_mean, moving_var, momentum, eps);
    if (running_mean.defined() && !x.device().is_meta()) {
      running_mean.bump_version();
      running_var.bump_version();
    }
  } else {
    LOCKSTEP_DISPATCH(stream, batch_norm_running_statistics, running_mean, running_var, mean, rstd, eps);
  }
  Tensor y = empty_like(x);
  LOCKSTEP_DISPATCH(stream, batch_norm_forward, x, added, weight, bias, mean, rstd, activation, y);
  const bool relu = activation == Activation::relu;
  auto keep = [](bool wanted, const Tensor& tensor) {
    return wanted && tensor.defined() ? Saved(tensor) : Saved();
  };
  auto wants = [](const Tensor& tensor) { return tensor.defined() && tensor.requires_grad(); };
  return record("batch_norm", y, {x, weight, bias, added},
                [x = Saved(x), y = keep(relu && added.defined(), y), weight = keep(true, weight),
                 bias = keep(relu && !added.defined(), bias), mean, rstd, training, activation,
                 dx_wanted = wants(x), dweight_wanted = wants(weight), dbias_wanted = wants(bias),
                 dbias_like = wants(bias) ? bias.dtype() : DType::float32,
                 dresidual_wanted = wants(added)](const Tensor& grad) -> Tensors {
                  const Tensor dy = grad.contiguous();
                  auto get = [](const Saved& saved) { return saved.defined() ? saved.get() : Tensor(); };
                  const Tensor gamma = get(weight), beta = get(bias);
                  BatchNormGradients out;
                  if (dx_wanted) out.dx = empty_like(dy);
                  if (dweight_wanted) out.dweight = empty_like(gamma);
                  if (dbias_wanted) out.dbias = empty(mean.shape(), dbias_like, mean.device());
                  if (dresidual_wanted) out.dresidual = empty_like(dy);
                  LOCKSTEP_DISPATCH(current_stream(dy.device()), batch_norm_backward, x.get(), get(y), dy,
                                    gamma, beta, mean, rstd, training, activation, out);
                  return {out.dx, out.dweight, out.dbias, out.dresidual};
                });
}

}  // namespace lockstep
