// Batch normalisation over all axes but the last, alone or with what usually follows it, in one pass.
//   y = activation((x - mean) / sqrt(var + eps) * weight + bias + residual)
//   x, y, residual   [N, ..., C], one floating dtype; residual may be undefined: 0
//   weight, bias     [C], floating, may be float32 beside a 16-bit x, and undefined: 1 and 0
//   training         mean and var (biased) are those of x, in double; the running statistics become
//                    (1 - momentum) * running + momentum * batch, with the unbiased var, as in PyTorch
//   inference        mean and var are the running ones
//   running_*        [C], floating, row-major; in training both may be undefined: not kept
//   saved            x, weight, mean, 1/std (both [C]); for relu bias, or y if there is a residual
//   throws           Error for wrong shapes, dtypes or devices, and in training for one value per channel,
//                    whose unbiased variance does not exist; the running statistics are then as they were
//   Ioffe & Szegedy 2015, Batch normalization; merging of partial variances: Chan, Golub & LeVeque 1979.
#pragma once

#include "lockstep/runtime/kernel.h"
#include "lockstep/runtime/tensor.h"

namespace lockstep {

enum class Activation { none, relu };

Tensor batch_norm(const Tensor& x, const Tensor& weight, const Tensor& bias, const Tensor& running_mean,
                  const Tensor& running_var, bool training, double momentum = 0.1, double eps = 1e-5,
                  Activation activation = Activation::none, const Tensor& residual = {});

// mean and rstd are [C] float64: means of 10,000 times the deviation keep their digits.
LOCKSTEP_KERNEL(batch_norm_statistics, const Tensor& x, Tensor& mean, Tensor& rstd, Tensor& running_mean,
                Tensor& running_var, double momentum, double eps, Stream s)
LOCKSTEP_KERNEL(batch_norm_running_statistics, const Tensor& running_mean, const Tensor& running_var,
                Tensor& mean, Tensor& rstd, double eps, Stream s)
LOCKSTEP_KERNEL(batch_norm_forward, const Tensor& x, const Tensor& residual, const Tensor& weight,
                const Tensor& bias, const Tensor& mean, const Tensor& rstd, Activation activation, Tensor& y,
                Stream s)

// Any of them may be undefined: not wanted.
struct BatchNormGradients {
  Tensor dx, dweight, dbias, dresidual;
};
// y is defined for relu with a residual only; without one the sign of y is found from x.
LOCKSTEP_KERNEL(batch_norm_backward, const Tensor& x, const Tensor& y, const Tensor& dy, const Tensor& weight,
                const Tensor& bias, const Tensor& mean, const Tensor& rstd, bool training,
                Activation activation, BatchNormGradients& gradients, Stream s)

}  // namespace lockstep
