// How a loss becomes one number. Elementwise losses are computed in at least float32, summed in double in an
// order that does not depend on the number of threads, and rounded once to the dtype of the input. The mean
// of nothing is 0.
#pragma once

#include "lockstep/runtime/tensor.h"

namespace lockstep {

enum class Reduction { mean, sum, none };

// losses, of the computing dtype, reduced and converted to `dtype`. Not recorded.
Tensor reduce_loss(const Tensor& losses, Reduction reduction, DType dtype);

// dL/d(loss of one element) = dy * loss_scale(...): 1 / elements for the mean.
double loss_scale(Reduction reduction, int64_t elements);

// float64 for float64, otherwise float32.
DType compute_dtype(DType dtype);

}  // namespace lockstep
