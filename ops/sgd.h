// Stochastic gradient descent with momentum (Sutskever et al. 2013, in the form PyTorch uses), over all
// parameters at once:
//   d = g + weight_decay * w
//   m = d at the first step, else momentum * m + (1 - dampening) * d
//   w = w - lr * m         Nesterov: w = w - lr * (d + momentum * m)         no momentum: w = w - lr * d
// In place on parameters and on state[0] = m, which is not touched without momentum. Versions are not raised.
#pragma once

#include <span>

#include "lockstep/ops/parameter_update.h"
#include "lockstep/runtime/kernel.h"

namespace lockstep {

struct SGDRule {
  double momentum = 0;
  double dampening = 0;
  bool nesterov = false;
};

LOCKSTEP_KERNEL(sgd_update, std::span<const ParameterUpdate> updates, const SGDRule& rule, Stream s)

}  // namespace lockstep
