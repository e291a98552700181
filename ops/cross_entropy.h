// Cross-entropy of logits against class labels: log-softmax and negative log-likelihood in one pass over the
// logits.
//
//   p      = softmax(x) of a row, y its label, w the class weights (1 without), e the label smoothing, C
//   classes loss   = (1 - e) w_y (-log p_y) + e / C sum_c w_c (-log p_c)           0 for an ignored row none
//   the losses; sum  their sum; mean  their sum / (sum of w_y over the rows that are not ignored) dx_k   =
//   dL/dloss ((1 - e) w_y (p_k - [k = y]) + e / C (p_k sum_c w_c - w_k)) Smoothing: Szegedy et al. 2016;
//   weights and the mean as in PyTorch.
//
//   logits  [..., C], any floating dtype; computed in at least float32, sums in double
//   labels  [...], int64, int32 or uint8; no gradient
//   loss    [] or, for none, [...]; dtype of the logits
//   saved   the logits and, per row, their maximum and 1 / sum(exp(x - max)): no second array of the logits'
//   size mean    of a batch in which every row is ignored (or the weights sum to 0) is 0, with zero
//   gradients: never NaN throws  Error for wrong shapes and dtypes, and for a label outside [0, C) that is
//   not ignore_index, with its row and
//           value. On meta the labels are not read.
#pragma once

#include "lockstep/ops/loss.h"
#include "lockstep/runtime/kernel.h"
#include "lockstep/runtime/tensor.h"

namespace lockstep {

struct CrossEntropyOptions {
  Tensor weight = {};  // [C], dtype of the logits; a constant: no gradient
  double label_smoothing = 0;
  int64_t ignore_index = -100;
  Reduction reduction = Reduction::mean;
};

Tensor cross_entropy(const Tensor& logits, const Tensor& labels, const CrossEntropyOptions& options = {});

// statistics [rows, 2]: maximum and 1 / sum, of the computing dtype. total_weight [], float64: what the mean
// divides by.
LOCKSTEP_KERNEL(cross_entropy_forward, const Tensor& logits, const Tensor& labels,
                const CrossEntropyOptions& options, Tensor& loss, Tensor& statistics, Tensor& total_weight,
                Stream s)
LOCKSTEP_KERNEL(cross_entropy_backward, const Tensor& dy, const Tensor& logits, const Tensor& labels,
                const CrossEntropyOptions& options, const Tensor& statistics, const Tensor& total_weight,
                Tensor& dx, Stream s)

}  // namespace lockstep
