// y = a <op> b as bool, element by element, broadcast; any dtypes (promoted as in binary.h). Not
// differentiable. A NaN equals nothing. A scalar is rounded to the tensor's floating dtype first, and
// compared exactly with integers.
//   throws  Error for shapes that do not broadcast and for two devices
#pragma once

#include "lockstep/runtime/kernel.h"
#include "lockstep/runtime/tensor.h"

namespace lockstep {

Tensor eq(const Tensor& a, const Tensor& b);
Tensor eq(const Tensor& a, double b);
Tensor ne(const Tensor& a, const Tensor& b);
Tensor ne(const Tensor& a, double b);
Tensor lt(const Tensor& a, const Tensor& b);
Tensor lt(const Tensor& a, double b);
Tensor le(const Tensor& a, const Tensor& b);
Tensor le(const Tensor& a, double b);
Tensor gt(const Tensor& a, const Tensor& b);
Tensor gt(const Tensor& a, double b);
Tensor ge(const Tensor& a, const Tensor& b);
Tensor ge(const Tensor& a, double b);

enum class CompareOp { eq, ne, lt, le, gt, ge };

LOCKSTEP_KERNEL(compare, CompareOp op, const Tensor& a, const Tensor& b, Tensor& y, Stream s)
LOCKSTEP_KERNEL(compare_scalar, CompareOp op, const Tensor& a, double b, Tensor& y, Stream s)

}  // namespace lockstep
