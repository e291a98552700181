// y = x * keep / (1 - p), where each element is kept with probability 1 - p.
//   x, y    one shape; any floating dtype
//   keep    uniform_float(word) >= p, the words from generator() as in random.h, which moves on by x.numel()
//           numbers; so the same for any number of threads. What is dropped is 0, NaN included.
//   saved   keep, one bit an element: 1/32 of a float32 x, and twice as fast to read as to draw again
//   throws  Error if x is not floating or p is outside [0, 1]
// Without training, and for p = 0, the result is x itself and the generator stays where it is. On meta the
// generator stays too.
//   Srivastava et al. 2014, Dropout: a simple way to prevent neural networks from overfitting.
#pragma once

#include "lockstep/runtime/random.h"
#include "lockstep/runtime/tensor.h"

namespace lockstep {

Tensor dropout(const Tensor& x, double p = 0.5, bool training = true);

// Bytes of a mask over n elements. Bit k of byte 8 g + j belongs to element 64 g + 8 k + j, so that vector
// loops run over j.
inline int64_t dropout_mask_bytes(int64_t n) { return (n + 63) / 64 * 8; }

// `mask` is undefined where no gradient is wanted.
LOCKSTEP_KERNEL(dropout_forward, const Tensor& x, Tensor& y, Tensor& mask, double p, RandomState start,
                Stream s)
LOCKSTEP_KERNEL(dropout_backward, const Tensor& dy, const Tensor& mask, double p, Tensor& dx, Stream s)

}  // namespace lockstep
