// Layer normalisation of each row, a row being the trailing axes `normalized_shape`.
//   y = (x - mean) / sqrt(var + eps) * weight + bias, mean and (biased) var of the row
//   x, y           [..., normalized_shape], one floating dtype
//   weight, bias   normalized_shape, floating, may be float32 beside a 16-bit x, and undefined: 1 and 0
//   saved          x, weight, and mean and 1/std of each row as float64
//   throws         Error for wrong shapes, dtypes or devices
//   Ba, Kiros & Hinton 2016, Layer normalization.
#pragma once

#include "lockstep/runtime/kernel.h"
#include "lockstep/runtime/tensor.h"

namespace lockstep {

Tensor layer_norm(const Tensor& x, const Shape& normalized_shape, const Tensor& weight = {},
                  const Tensor& bias = {}, double eps = 1e-5);

// Row-major; mean and rstd are [rows] float64, weight and bias may be undefined.
LOCKSTEP_KERNEL(layer_norm_forward, const Tensor& x, const Tensor& weight, const Tensor& bias, double eps,
                Tensor& mean, Tensor& rstd, Tensor& y, Stream s)
// Any gradient may be undefined: not wanted.
LOCKSTEP_KERNEL(layer_norm_backward, const Tensor& x, const Tensor& dy, const Tensor& weight,
                const Tensor& mean, const Tensor& rstd, Tensor& dx, Tensor& dweight, Tensor& dbias, Stream s)

}  // namespace lockstep
