// Pooling over windows of rows and columns, by PyTorch's conventions.
//   x [N, H, W, C], y [N, OH, OW, C]; any floating dtype, sums in at least float32
//   max     the largest value of each window; padding never wins, a NaN always does
//   avg     sum / divisor; with count_include_pad the divisor counts padding, but never what ceil_mode adds
//   size    floor((in + padding - kernel) / stride) + 1; ceil_mode rounds up, unless the last window would
//           then start beyond the input and the padding before it
//   adaptive: window o of an axis is [floor(o in / out), ceil((o + 1) in / out)); windows may overlap
//   saved   max: the place of each maximum within its window (one byte for windows of at most 256 elements)
//           avg: nothing
//   throws  Error unless x is a floating [N, H, W, C], 0 <= padding <= kernel / 2, and y has a pixel
#pragma once

#include <array>

#include "lockstep/runtime/kernel.h"
#include "lockstep/runtime/tensor.h"

namespace lockstep {

struct PoolPadding {
  int64_t top = 0, bottom = 0, left = 0, right = 0;

  PoolPadding(int64_t all = 0) : PoolPadding(all, all) {}
  PoolPadding(int64_t rows, int64_t columns) : PoolPadding(rows, rows, columns, columns) {}
  PoolPadding(int64_t top, int64_t bottom, int64_t left, int64_t right)
      : top(top), bottom(bottom), left(left), right(right) {}
};

// max_pool2d(x, {.kernel = {3, 3}, .stride = {2, 2}, .padding = 1})
struct Pool2dOptions {
  std::array<int64_t, 2> kernel{2, 2};  // rows, columns
  std::array<int64_t, 2> stride{0, 0};  // 0: as the kernel
  PoolPadding padding = {};
  bool ceil_mode = false;
  bool count_include_pad = true;  // average only
};

Tensor max_pool2d(const Tensor& x, const Pool2dOptions& options = {});
Tensor avg_pool2d(const Tensor& x, const Pool2dOptions& options = {});
Tensor adaptive_max_pool2d(const Tensor& x, std::array<int64_t, 2> size);  // size: {OH, OW}
Tensor adaptive_avg_pool2d(const Tensor& x, std::array<int64_t, 2> size);
Tensor global_avg_pool2d(const Tensor& x);  // [N, C], the mean of each channel

// The windows of one axis: output o covers inputs [begin(o), end(o)).
struct PoolAxis {
  int64_t in = 0, out = 0;
  int64_t kernel = 0;  // the longest window
  int64_t stride = 0, pad_begin = 0, pad_end = 0;
  bool adaptive = false, count_pad = false;

  // Where the window would start if padding were part of the input.
  LOCKSTEP_HD int64_t origin(int64_t o) const { return adaptive ? o * in / out : o * stride - pad_begin; }
  LOCKSTEP_HD int64_t begin(int64_t o) const { return origin(o) < 0 ? 0 : origin(o); }
  LOCKSTEP_HD int64_t end(int64_t o) const {
    int64_t end = adaptive ? ((o + 1) * in + out - 1) / out : origin(o) + kernel;
    return end < in ? end : in;
  }
  // Elements that an average counts.
  LOCKSTEP_HD int64_t divisor(int64_t o) const {
    if (!count_pad) return end(o) - begin(o);
    return kernel < in + pad_end - origin(o) ? kernel : in + pad_end - origin(o);
  }
  // Outputs [first_output(i), last_output(i)] have input i in their windows; none if the last is before the
  // first.
  LOCKSTEP_HD int64_t first_output(int64_t i) const {
    if (adaptive) return i * out / in;
    return i + pad_begin < kernel ? 0 : (i + pad_begin - kernel) / stride + 1;
  }
  LOCKSTEP_HD int64_t last_output(int64_t i) const {
    int64_t last = adaptive ? ((i + 1) * out - 1) / in : (i + pad_begin) / stride;
    return last < out ? last : out - 1;
  }
};

// index [N, OH, OW, C], uint8 or int32: row * columns.kernel + column of the maximum, counted from the
// window's origin. Undefined where it is not wanted.
LOCKSTEP_KERNEL(max_pool2d_forward, const Tensor& x, Tensor& y, Tensor& index, PoolAxis rows,
                PoolAxis columns, Stream s)
LOCKSTEP_KERNEL(max_pool2d_backward, const Tensor& dy, const Tensor& index, Tensor& dx, PoolAxis rows,
                PoolAxis columns, Stream s)
LOCKSTEP_KERNEL(avg_pool2d_forward, const Tensor& x, Tensor& y, PoolAxis rows, PoolAxis columns, Stream s)
LOCKSTEP_KERNEL(avg_pool2d_backward, const Tensor& dy, Tensor& dx, PoolAxis rows, PoolAxis columns, Stream s)

}  // namespace lockstep
