// y[i][j][k] = x[i][index[i][j][k]][k] for axis 1, and likewise for the others: along `axis` an element is
// picked by number.
//
//   x       any dtype;  index  int64, int32 or uint8, as many axes as x, no larger than x except along `axis`
//   y       shape of the index, dtype of x
//   saved   the index; dx adds up dy wherever an element was picked, in double and in the order of the index,
//   so that it
//           does not depend on the number of threads
//   throws  Error for wrong shapes and dtypes, and for an index outside [0, size), with its position and
//   value.
//           On meta the index is not read.
#pragma once

#include "lockstep/runtime/kernel.h"
#include "lockstep/runtime/tensor.h"

namespace lockstep {

Tensor gather(const Tensor& x, int64_t axis, const Tensor& index);

// index is int64 and contiguous, y, dy and dx are contiguous, dx is zero.
LOCKSTEP_KERNEL(gather_forward, const Tensor& x, const Tensor& index, int axis, Tensor& y, Stream s)
LOCKSTEP_KERNEL(gather_backward, const Tensor& dy, const Tensor& index, int axis, Tensor& dx, Stream s)

}  // namespace lockstep
