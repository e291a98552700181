// y = x with `before` and `after` elements of `value` added along each axis: pad(x, {{0, 0}, {1, 2}}, -1).
//
//   x, y    any dtype; amounts: one pair per axis, none negative (slice takes away)
//   saved   nothing; dx is the slice of dy where x lies
#pragma once

#include <utility>
#include <vector>

#include "lockstep/runtime/tensor.h"

namespace lockstep {

Tensor pad(const Tensor& x, const std::vector<std::pair<int64_t, int64_t>>& amounts, double value = 0);

}  // namespace lockstep
