// y[i, :] = weight[indices[i], :]
//
//   weight   [V, D], any floating dtype;  indices  any shape; int64, int32 or uint8;  y  [indices..., D]
//   saved    the indices; dW adds up the rows of dy in double and in the order of the indices, each row of dW
//   by one
//            thread: no atomics, the same bits for any number of threads
//   padding  the row `padding_idx` gets no gradient (-1: there is none)
//   throws   Error for an index outside [0, V), with its position and value. On meta the indices are not
//   read.
#pragma once

#include "lockstep/runtime/kernel.h"
#include "lockstep/runtime/tensor.h"

namespace lockstep {

Tensor embedding(const Tensor& weight, const Tensor& indices, int64_t padding_idx = -1);

// All contiguous, indices int64. dweight need not be zero: every row is written.
LOCKSTEP_KERNEL(embedding_forward, const Tensor& weight, const Tensor& indices, Tensor& y, Stream s)
LOCKSTEP_KERNEL(embedding_backward, const Tensor& dy, const Tensor& indices, int64_t padding_idx,
                Tensor& dweight, Stream s)

}  // namespace lockstep
