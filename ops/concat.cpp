#include "lockstep/ops/concat.h"

#include "lockstep/runtime/autograd.h"
#include "lockstep/runtime/primitives.h"

namespace lockstep {
namespace {

// `free_axis` is the one along which sizes may differ; -1: none.
void check(const char* op, const Tensors& xs, int free_axis) {
  for (size_t i = 1; i < xs.size(); i++) {
    const Tensor &first = xs[0], &x = xs[i];
    bool fits = x.ndim() == first.ndim();
    for (int d = 0; fits && d < x.ndim(); d++) fits = d == free_axis || x.shape()[d] == first.shape()[d];
    LOCKSTEP_CHECK(fits, "[", op, "] tensor ", i, " of shape ", x.shape(), " after one of shape ",
                   first.shape(), ", expected equal sizes",
                   free_axis < 0 ? "" : concat(" except along axis ", free_axis));
    LOCKSTEP_CHECK(x.dtype() == first.dtype(), "[", op, "] tensor ", i, " is ", x.dtype(), ", expected ",
                   first.dtype(), " like the first");
    check_same_device(op, {&first, &x});
  }
}

}  // namespace

Tensor concat(const Tensors& xs, int64_t axis) {
  LOCKSTEP_CHECK(!xs.empty(), "[concat] got no tensors, expected at least one");
  const int a = normalize_axis("concat", axis, xs[0].shape());
  check("concat", xs, a);
  Shape shape = xs[0].shape();
  shape[a] = 0;
  for (const Tensor& x : xs) shape[a] += x.shape()[a];
  Tensor y = empty(shape, xs[0].dtype(), xs[0].device());
  std::vector<int64_t> ends;
  std::vector<bool> needed;
  int64_t begin = 0;
  for (const Tensor& x : xs) {
    ends.push_back(begin + x.shape()[a]);
    needed.push_back(x.requires_grad());
    Tensor part = y.slice(a, begin, ends.back());
    LOCKSTEP_DISPATCH(current_stream(y.device()), copy, x, part);
    begin = ends.back();
  }
  return record("concat", y, xs, [a, ends, needed](const Tensor& dy) -> Tensors {
    Tensors dxs(ends.size());
    for (size_t i = 0; i < ends.size(); i++)
      if (needed[i]) dxs[i] = dy.slice(a, i == 0 ? 0 : ends[i - 1], ends[i]);
    return dxs;
  });
}

Tensor stack(const Tensors& xs, int64_t axis) {
  LOCKSTEP_CHECK(!xs.empty(), "[stack] got no tensors, expected at least one");
  check("stack", xs, -1);
  const int ndim = xs[0].ndim() + 1;
  LOCKSTEP_CHECK(-ndim <= axis && axis < ndim, "[stack] axis ", axis, " for tensors of shape ", xs[0].shape(),
                 ", expected ", -ndim, " to ", ndim - 1);
  Tensors parts;
  for (const Tensor& x : xs) parts.push_back(x.unsqueeze(axis));
  return concat(parts, axis);
}

}  // namespace lockstep
