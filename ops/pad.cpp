#include "lockstep/ops/pad.h"

#include "lockstep/runtime/autograd.h"
#include "lockstep/runtime/primitives.h"

namespace lockstep {
namespace {

// The part of y that x, of `shape`, occupies.
Tensor inside(Tensor y, const Shape& offset, const Shape& shape) {
  for (int d = 0; d < shape.size(); d++)
    if (y.shape()[d] != shape[d]) y = y.slice(d, offset[d], offset[d] + shape[d]);
  return y;
}

}  // namespace

Tensor pad(const Tensor& x, const std::vector<std::pair<int64_t, int64_t>>& amounts, double value) {
  LOCKSTEP_CHECK(int(amounts.size()) == x.ndim(), "[pad] got ", amounts.size(), " pairs for shape ",
                 x.shape(), ", expected one per axis");
  Shape shape, offset;
  for (int d = 0; d < x.ndim(); d++) {
    const auto [before, after] = amounts[size_t(d)];
    LOCKSTEP_CHECK(before >= 0 && after >= 0, "[pad] amounts ", before, " and ", after, " on axis ", d,
                   ", expected none below 0");
    int64_t size;
    LOCKSTEP_CHECK(
        !__builtin_add_overflow(x.shape()[d], before, &size) && !__builtin_add_overflow(size, after, &size),
        "[pad] amounts ", before, " and ", after, " on axis ", d, " of shape ", x.shape(), " overflow");
    shape.push_back(size);
    offset.push_back(before);
  }
  Tensor y = full(shape, value, x.dtype(), x.device());
  Tensor part = inside(y, offset, x.shape());
  LOCKSTEP_DISPATCH(current_stream(x.device()), copy, x, part);
  return record("pad", y, {x}, [offset, shape = x.shape()](const Tensor& dy) -> Tensors {
    return {inside(dy, offset, shape)};
  });
}

}  // namespace lockstep
