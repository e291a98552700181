// The few computations that the runtime itself needs: filling, copying, converting, adding, and summing
// broadcasts away. None is recorded; none raises a version.
#pragma once

#include "lockstep/runtime/kernel.h"
#include "lockstep/runtime/tensor.h"

namespace lockstep {

LOCKSTEP_KERNEL(fill, Tensor& y, double value, Stream s)
// y = x, converted; x broadcasts to the shape of y; any strides.
LOCKSTEP_KERNEL(copy, const Tensor& x, Tensor& y, Stream s)
// y += alpha * x, computed in at least float32; x broadcasts to the shape of y; any strides; floating dtypes
// are equal.
LOCKSTEP_KERNEL(accumulate, const Tensor& x, double alpha, Tensor& y, Stream s)
LOCKSTEP_KERNEL(scale, Tensor& y, double factor, Stream s)
// Sum of x over the axes along which y has size 1 or that y lacks (leading), divided by `divisor` (of floating dtypes).
// y is row-major. Sums are kept in double, those of integers in int64, and do not depend on the number of threads.
LOCKSTEP_KERNEL(sum_to, const Tensor& x, double divisor, Tensor& y, Stream s)
// Sets found to whether x has a NaN. The host waits.
LOCKSTEP_KERNEL(has_nan, const Tensor& x, bool& found, Stream s)

// x summed to `shape`, to which it was broadcast; x itself if the shape is that already.
Tensor sum_to_shape(const Tensor& x, const Shape& shape);

}  // namespace lockstep
