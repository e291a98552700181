// concat joins tensors along an axis they have, stack along a new one.
//
//   xs      at least one; one dtype (any) and device; for concat equal shapes but for `axis`, for stack equal
//   shapes y       concat: the sizes along `axis` added up. stack: an axis of size xs.size() inserted at
//   `axis` saved   nothing; the gradients are slices of dy throws  Error for an empty list, different shapes,
//   dtypes or devices, and an axis outside of y's
#pragma once

#include "lockstep/runtime/tensor.h"

namespace lockstep {

Tensor concat(const Tensors& xs, int64_t axis = 0);
Tensor stack(const Tensors& xs, int64_t axis = 0);

}  // namespace lockstep
