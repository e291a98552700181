// y = a where `condition` is true, b elsewhere; the three broadcast; a and b of any dtype, promoted as in
// binary.h.
//   saved   condition. da = dy where true, 0 elsewhere: a NaN in the branch not taken reaches neither y nor a
//   gradient. throws  Error if condition is not bool, for shapes that do not broadcast, and for two devices
#pragma once

#include "lockstep/runtime/kernel.h"
#include "lockstep/runtime/tensor.h"

namespace lockstep {

Tensor where(const Tensor& condition, const Tensor& a, const Tensor& b);

LOCKSTEP_KERNEL(where_forward, const Tensor& condition, const Tensor& a, const Tensor& b, Tensor& y, Stream s)
// dx = dy where condition == taken, 0 elsewhere.
LOCKSTEP_KERNEL(where_backward, const Tensor& condition, bool taken, const Tensor& dy, Tensor& dx, Stream s)

}  // namespace lockstep
