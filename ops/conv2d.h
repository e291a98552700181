// Two-dimensional convolution (as in all of deep learning: correlation), NHWC images and KRSC filters.
//   y[n, p, q, k] = bias[k] + sum over r, s, c of w[k, r, s, c] * x[n, h, v, c]
//   h = p * stride - top + r * dilation,  v = q * stride - left + s * dilation,  x is 0 outside of the image;
//   c runs over the C / groups channels of k's group
//   x       [N, H, W, C], float64, float32, float16 or bfloat16 (16-bit types are computed in float32)
//   w       [K, R, S, C / groups], same dtype
//   bias    [K], same dtype, or undefined
//   y       [N, P, Q, K],  P = (H + top + bottom - dilation * (R - 1) - 1) / stride + 1 rounded down
//   saved   x if w needs a gradient, w if x does, y for conv2d_relu; dbias is summed in double
//   throws  Error for wrong ranks, sizes, dtypes or devices, and for a kernel larger than the padded input
// CPU: float32 runs one of the plans of conv2d_plans.h, chosen from shapes and processor features alone, with
// the same bits for any number of threads.
#pragma once

#include <array>
#include <cstdint>

#include "lockstep/runtime/kernel.h"
#include "lockstep/runtime/tensor.h"

namespace lockstep {

struct Conv2dOptions {
  std::array<int64_t, 2> stride{1, 1};         // rows, columns
  std::array<int64_t, 4> padding{0, 0, 0, 0};  // top, bottom, left, right
  std::array<int64_t, 2> dilation{1, 1};
  int64_t groups = 1;
};

// Padding with which stride 1 keeps the size of the image; the odd one of an even kernel goes to the bottom
// and the right.
Conv2dOptions same_padding(std::array<int64_t, 2> kernel, std::array<int64_t, 2> dilation = {1, 1},
                           int64_t groups = 1);

Tensor conv2d(const Tensor& x, const Tensor& w, const Tensor& bias = {}, const Conv2dOptions& options = {});
// max(conv2d(...), 0) in one pass; keeps y instead of both results.
Tensor conv2d_relu(const Tensor& x, const Tensor& w, const Tensor& bias = {},
                   const Conv2dOptions& options = {});

// Row-major tensors; shapes already checked.
LOCKSTEP_KERNEL(conv2d_forward, const Tensor& x, const Tensor& w, const Tensor& bias,
                const Conv2dOptions& options, bool relu, Tensor& y, Stream s)
LOCKSTEP_KERNEL(conv2d_backward_input, const Tensor& dy, const Tensor& w, const Conv2dOptions& options,
                Tensor& dx, Stream s)
// Either of dw and dbias may be undefined: not wanted.
LOCKSTEP_KERNEL(conv2d_backward_weight, const Tensor& x, const Tensor& dy, const Conv2dOptions& options,
                Tensor& dw, Tensor& dbias, Stream s)
// dx = dy where y > 0, else 0.
LOCKSTEP_KERNEL(conv2d_relu_mask, const Tensor& y, const Tensor& dy, Tensor& dx, Stream s)

}  // namespace lockstep
