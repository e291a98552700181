// y = exp(x - max x) / sum(exp(x - max x)) along `axis`     Bridle 1990
// log y = x - max x - log(sum(exp(x - max x)))
//
//   x, y    one shape; any floating dtype; computed in at least float32, sums in double
//   saved   y, since dx = y * (dy - sum(dy * y)), and dx = dy - exp(y) * sum(dy) for the logarithm
//   -inf    entries have probability 0; a line of -inf alone is NaN and leaves the other lines as they are
//   throws  Error if axis is outside [-ndim, ndim) or the dtype is not floating
//
// The kernels work on the last axis; another one is moved there and back by a copy.
#pragma once

#include "lockstep/runtime/kernel.h"
#include "lockstep/runtime/tensor.h"

namespace lockstep {

Tensor softmax(const Tensor& x, int64_t axis = -1);
Tensor log_softmax(const Tensor& x, int64_t axis = -1);

LOCKSTEP_KERNEL(softmax_forward, const Tensor& x, Tensor& y, Stream s)
LOCKSTEP_KERNEL(softmax_backward, const Tensor& y, const Tensor& dy, Tensor& dx, Stream s)
LOCKSTEP_KERNEL(log_softmax_forward, const Tensor& x, Tensor& y, Stream s)
LOCKSTEP_KERNEL(log_softmax_backward, const Tensor& y, const Tensor& dy, Tensor& dx, Stream s)

}  // namespace lockstep
