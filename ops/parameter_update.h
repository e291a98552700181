// What an optimizer's kernel gets for each parameter. Updates are computed, and their state kept, in float32
// or wider.
#pragma once

#include <array>
#include <cstdint>

#include "lockstep/runtime/tensor.h"

namespace lockstep {

struct ParameterUpdate {
  Tensor parameter, grad;  // contiguous; one floating dtype
  // Contiguous, of update_dtype(parameter.dtype()); undefined where the rule keeps none.
  std::array<Tensor, 2> state;
  int64_t step = 1;  // 1 at the parameter's first update
  double lr = 0;
  double weight_decay = 0;
};

inline DType update_dtype(DType dtype) { return dtype == DType::float64 ? DType::float64 : DType::float32; }

}  // namespace lockstep
