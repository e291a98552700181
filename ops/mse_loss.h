// loss = (x - y)^2 per element, reduced as in loss.h; dx = 2 (x - y) dL/dloss, dy = -dx.
//
//   x, y    one shape and floating dtype (nothing is broadcast: a [N] against a [N, 1] is nearly always a
//   mistake) loss    [] or, for Reduction::none, the shape of x; dtype of x saved   x, y
#pragma once

#include "lockstep/ops/loss.h"
#include "lockstep/runtime/kernel.h"
#include "lockstep/runtime/tensor.h"

namespace lockstep {

Tensor mse_loss(const Tensor& x, const Tensor& y, Reduction reduction = Reduction::mean);

// losses of the computing dtype; dx = 2 scale (x - y) dloss, dloss broadcast to the shape of x
LOCKSTEP_KERNEL(mse_loss_forward, const Tensor& x, const Tensor& y, Tensor& losses, Stream s)
LOCKSTEP_KERNEL(mse_loss_backward, const Tensor& x, const Tensor& y, const Tensor& dloss, double scale,
                Tensor& dx, Stream s)

}  // namespace lockstep
