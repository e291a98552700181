#include "lockstep/training/norm_layers.h"

#include "lockstep/ops/batch_norm.h"
#include "lockstep/ops/layer_norm.h"
#include "lockstep/runtime/autograd.h"
#include "lockstep/training/init.h"

namespace lockstep {

namespace {

Tensor filled(const Shape& shape, double value, DType dtype = DType::float32) {
  Tensor x = empty_parameter(shape, dtype);
  init::constant(x, value);
  return x;
}

Shape channels_shape(int64_t channels) {
  LOCKSTEP_CHECK(channels >= 1, "[BatchNorm] ", channels, " channels, expected 1 or more");
  return {channels};
}

}  // namespace

BatchNorm::BatchNorm(int least_ndim, int most_ndim, int64_t channels, const BatchNormConfig& config)
    : least_ndim_(least_ndim),
      most_ndim_(most_ndim),
      config_(config),
      weight(register_parameter("weight", config.affine ? filled(channels_shape(channels), 1) : Tensor())),
      bias(register_parameter("bias", config.affine ? filled({channels}, 0) : Tensor())),
      running_mean(register_buffer("running_mean", filled(channels_shape(channels), 0))),
      running_var(register_buffer("running_var", filled({channels}, 1))),
      num_batches_tracked(register_buffer("num_batches_tracked", filled({}, 0, DType::int64))) {
  LOCKSTEP_CHECK(config.eps > 0, "[BatchNorm] eps ", config.eps, ", expected a positive one");
  LOCKSTEP_CHECK(0 <= config.momentum && config.momentum <= 1, "[BatchNorm] momentum ", config.momentum,
                 ", expected one in [0, 1]");
}

Tensor BatchNorm::forward(const Tensor& x, const Tensor& residual) {
  LOCKSTEP_CHECK(least_ndim_ <= x.ndim() && x.ndim() <= most_ndim_, "[", type_name(), "] x of shape ",
                 x.shape(), ", expected ",
                 least_ndim_ == most_ndim_ ? "[N, H, W, C]" : "[N, C] or [N, L, C]");
  Tensor y = batch_norm(x, weight, bias, running_mean, running_var, is_training(), config_.momentum,
                        config_.eps, config_.relu ? Activation::relu : Activation::none, residual);
  if (is_training()) {
    NoGradGuard no_grad;
    num_batches_tracked.add_(ones({}, DType::int64, num_batches_tracked.device()));
  }
  return y;
}

std::string BatchNorm::describe() const {
  return concat(type_name(), "(", running_mean.size(0), config_.relu ? ", relu)" : ")");
}

LayerNorm::LayerNorm(const Shape& normalized_shape, double eps, bool affine)
    : normalized_shape_(normalized_shape),
      eps_(eps),
      weight(register_parameter("weight", affine ? filled(normalized_shape, 1) : Tensor())),
      bias(register_parameter("bias", affine ? filled(normalized_shape, 0) : Tensor())) {
  LOCKSTEP_CHECK(!normalized_shape.empty() && normalized_shape.numel() > 0, "[LayerNorm] normalized_shape ",
                 normalized_shape, ", expected at least one element");
  LOCKSTEP_CHECK(eps > 0, "[LayerNorm] eps ", eps, ", expected a positive one");
}

Tensor LayerNorm::forward(const Tensor& x) { return layer_norm(x, normalized_shape_, weight, bias, eps_); }

std::string LayerNorm::describe() const { return concat("LayerNorm(", normalized_shape_, ")"); }

}  // namespace lockstep
