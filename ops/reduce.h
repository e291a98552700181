// Reductions over any axes: `axes` lists them, negative ones from the end, none meaning all; a reduced axis has size 1 in
// the result if `keepdim` and is dropped otherwise.
//   dtypes  the result has the dtype of x; sum of integers and bool is int64; mean and var want floating
//   sums    in double (also for the 16-bit types), so that long ones are accurate; same bits for any number of threads
//   throws  Error for an axis outside [-ndim, ndim) or given twice, another dtype, max, min and argmax of no elements
#pragma once

#include "lockstep/runtime/kernel.h"
#include "lockstep/runtime/tensor.h"

namespace lockstep {

Tensor sum(const Tensor& x, const Shape& axes = {}, bool keepdim = false);   // 0 of no elements
Tensor mean(const Tensor& x, const Shape& axes = {}, bool keepdim = false);  // NaN of no elements
// Largest and smallest. A NaN wins. Elements that tie share the gradient equally. Saves x and y.
Tensor max(const Tensor& x, const Shape& axes = {}, bool keepdim = false);
Tensor min(const Tensor& x, const Shape& axes = {}, bool keepdim = false);
// Index along `axis` of the largest element, the first of several; of the first NaN if there is one. int64.
Tensor argmax(const Tensor& x, int64_t axis, bool keepdim = false);
// sum((x - mean)^2) / (n - 1), or / n if not `unbiased`; two passes. Saves x. Throws Error if that divides by 0.
Tensor var(const Tensor& x, const Shape& axes = {}, bool unbiased = true, bool keepdim = false);

// y has the shape of x with reduced axes of size 1, and is row-major.
LOCKSTEP_KERNEL(reduce_max, const Tensor& x, Tensor& y, Stream s)
LOCKSTEP_KERNEL(reduce_min, const Tensor& x, Tensor& y, Stream s)
LOCKSTEP_KERNEL(reduce_var, const Tensor& x, double divisor, Tensor& y, Stream s)
LOCKSTEP_KERNEL(argmax_forward, const Tensor& x, int axis, Tensor& y, Stream s)

}  // namespace lockstep
