// y = x w^T + bias.
//   x       [..., in], float64, float32, float16 or bfloat16 (16-bit types are computed in float32)
//   w       [out, in], same dtype
//   bias    [out], same dtype, or undefined
//   y       [..., out]
//   saved   x if w needs a gradient, w if x does:  dx = dy w,  dw = dy^T x,  dbias = sum of dy (in double)
//   throws  Error for other ranks, sizes that do not fit, or tensors of different dtypes or devices
#pragma once

#include "lockstep/runtime/kernel.h"
#include "lockstep/runtime/tensor.h"

namespace lockstep {

Tensor linear(const Tensor& x, const Tensor& w, const Tensor& bias = {});

// Row-major; x [rows, in], y and dy [rows, out].
LOCKSTEP_KERNEL(linear_forward, const Tensor& x, const Tensor& w, const Tensor& bias, Tensor& y, Stream s)
LOCKSTEP_KERNEL(linear_backward_input, const Tensor& dy, const Tensor& w, Tensor& dx, Stream s)
// Either of dw and dbias may be undefined: not wanted. accumulate: dw += dy^T x instead of =, float32 and
// float64.
LOCKSTEP_KERNEL(linear_backward_weight, const Tensor& x, const Tensor& dy, bool accumulate, Tensor& dw,
                Tensor& dbias, Stream s)

}  // namespace lockstep
