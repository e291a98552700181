// Adam (Kingma & Ba 2015) and AdamW (Loshchilov & Hutter 2019), over all parameters at once; t is the
// parameter's step:
//   Adam: g = g + weight_decay * w        AdamW (decoupled): w = w - lr * weight_decay * w
//   m = beta1 * m + (1 - beta1) * g       v = beta2 * v + (1 - beta2) * g^2
//   w = w - lr / (1 - beta1^t) * m / (sqrt(v / (1 - beta2^t)) + epsilon)
// In place on parameters, state[0] = m and state[1] = v. Versions are not raised.
#pragma once

#include <span>

#include "lockstep/ops/parameter_update.h"
#include "lockstep/runtime/kernel.h"

namespace lockstep {

struct AdamRule {
  double beta1 = 0.9;
  double beta2 = 0.999;
  double epsilon = 1e-8;
  bool decoupled = false;
};

LOCKSTEP_KERNEL(adam_update, std::span<const ParameterUpdate> updates, const AdamRule& rule, Stream s)

}  // namespace lockstep
