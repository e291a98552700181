// Clipping by the norm of all gradients together (Pascanu et al. 2013): where norm > max_norm, every gradient
// is multiplied by max_norm / norm.
#pragma once

#include "lockstep/runtime/tensor.h"

namespace lockstep {

struct ClipOptions {
  bool error_if_nonfinite = false;  // true: a NaN or infinite norm is an Error; false: it is returned
};

// Returns the norm before clipping: 0 for an empty list; parameters without a gradient count nothing;
// max_norm = infinity only measures. A norm that is NaN or infinite leaves the gradients as they are,
// whichever way it is reported. Squares are summed in double, and scaled where doubles would not hold them.
// The host waits. On meta nothing is read and 0 is returned.
double clip_grad_norm(const Tensors& parameters, double max_norm, const ClipOptions& options = {});

}  // namespace lockstep
