// Kernels over a whole list of contiguous floating tensors in one pass; Note [Flat chunks]. They raise no version.
#pragma once

#include <span>

#include "lockstep/runtime/kernel.h"
#include "lockstep/runtime/tensor.h"

namespace lockstep {

// sum = sum of (factor * x)^2 over all elements of all tensors, formed in double. The host waits.
LOCKSTEP_KERNEL(sum_of_squares, std::span<const Tensor> list, double factor, double& sum, Stream s)
// x = factor * x, formed in double.
LOCKSTEP_KERNEL(scale_list, std::span<const Tensor> list, double factor, Stream s)

}  // namespace lockstep
