// Binary cross-entropy of logits, with s(x) = log(1 + exp(x)) = max(x, 0) + log1p(exp(-|x|)), which never
// overflows and keeps small losses exact:
//
//   loss     = w (p t s(-x) + (1 - t) s(x))      per element, reduced as in loss.h
//   dx       = w ((1 - t) sigmoid(x) - p t sigmoid(-x)) dL/dloss,  dt = w (p s(-x) - s(x)) dL/dloss
//
//   x, t     logits and targets in [0, 1] (not checked); one shape and floating dtype
//   w, p     weight, and pos_weight, which counts the positive targets of a class more; 1 where not given;
//   same dtype,
//            broadcast to the shape of x; constants: no gradient. The mean divides by the elements, not by
//            the weights.
//   loss     [] or, for Reduction::none, the shape of x; dtype of x
//   saved    x, t, w, p
#pragma once

#include "lockstep/ops/loss.h"
#include "lockstep/runtime/kernel.h"
#include "lockstep/runtime/tensor.h"

namespace lockstep {

struct BceOptions {
  Tensor weight = {};
  Tensor pos_weight = {};
  Reduction reduction = Reduction::mean;
};

Tensor bce_with_logits(const Tensor& x, const Tensor& target, const BceOptions& options = {});

// losses of the computing dtype. weight and pos_weight are expanded to the shape of x; dloss broadcasts to
// it.
LOCKSTEP_KERNEL(bce_forward, const Tensor& x, const Tensor& target, const Tensor& weight,
                const Tensor& pos_weight, Tensor& losses, Stream s)
LOCKSTEP_KERNEL(bce_backward, const Tensor& x, const Tensor& target, const Tensor& weight,
                const Tensor& pos_weight, const Tensor& dloss, double scale, Tensor& dx, Stream s)
LOCKSTEP_KERNEL(bce_target_backward, const Tensor& x, const Tensor& weight, const Tensor& pos_weight,
                const Tensor& dloss, double scale, Tensor& dtarget, Stream s)

}  // namespace lockstep
