// y = x * keep / (1 - p), where each element is kept with probability 1 - p.   Srivastava et al. 2014,
// inverted form.
//   x, y    one shape; any floating dtype
//   keep    from generator(), which moves on by x.numel() numbers: uniform_float(word) >= p, word as in
//   random.h; so the
//           same for any number of threads. A dropped element is 0 whatever it was, NaN included.
//   saved   keep, one bit an element: 1/32 of a float32 x, and on a CPU four times faster to read than to
//   draw again throws  Error if x is not floating or p is outside [0, 1]
// Without training, and for p = 0, the result is x itself and the generator stays where it is. So it does on
// meta.
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
