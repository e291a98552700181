// Matrix product by the rules of NumPy's and PyTorch's matmul.
//   a, b    [..., M, K] and [..., K, N], leading axes broadcast. A 1-d `a` is a row, a 1-d `b` a column, and
//           that axis is dropped from the result. float64, float32, float16 or bfloat16 (16-bit types are
//           computed in float32). Transposed views are passed on without a copy.
//   y       [..., M, N]
//   saved   b if a needs a gradient, a if b does:  da = dy b^T,  db = a^T dy
//   throws  Error for scalars, inner sizes that differ, axes that do not broadcast, dtypes or devices
#pragma once

#include "lockstep/runtime/kernel.h"
#include "lockstep/runtime/tensor.h"

namespace lockstep {

Tensor matmul(const Tensor& a, const Tensor& b);

// a [batch..., M, K], b [batch..., K, N], y [batch..., M, N] row-major; the leading axes equal, with any
// strides; of the last two axes of a and b one has stride 1 and the other at least the length of that one.
LOCKSTEP_KERNEL(matmul, const Tensor& a, const Tensor& b, Tensor& y, Stream s)

}  // namespace lockstep
