#include "lockstep/runtime/shape.h"

#include <ostream>

namespace lockstep {

int64_t Shape::numel() const {
  int64_t product = 1;
  bool overflow = false;
  for (int64_t size : *this) {
    LOCKSTEP_CHECK(size >= 0, "negative size in shape ", *this);
    overflow |= __builtin_mul_overflow(product, size, &product);
  }
  LOCKSTEP_CHECK(!overflow, "shape ", *this, " has more than 2^63 elements");
  return product;
}

std::ostream& operator<<(std::ostream& out, const Shape& shape) {
  out << '[';
  for (int i = 0; i < shape.size(); i++) out << (i ? ", " : "") << shape[i];
  return out << ']';
}

Strides contiguous_strides(const Shape& shape) {
  Strides strides(shape.size(), 1);
  for (int i = shape.size() - 2; i >= 0; i--)
    strides[i] = strides[i + 1] * std::max<int64_t>(shape[i + 1], 1);
  return strides;
}

Shape broadcast_shapes(const char* op, const Shape& a, const Shape& b) {
  Shape result = a.size() >= b.size() ? a : b;
  for (int i = 1; i <= std::min(a.size(), b.size()); i++) {
    int64_t m = a[a.size() - i], n = b[b.size() - i];
    LOCKSTEP_CHECK(m == n || m == 1 || n == 1, "[", op, "] shapes ", a, " and ", b,
                   " do not broadcast: axis -", i, " is ", m, " against ", n);
    result[result.size() - i] = m == 1 ? n : m;
  }
  return result;
}

int normalize_axis(const char* op, int64_t axis, const Shape& shape) {
  int ndim = shape.size();
  LOCKSTEP_CHECK(-ndim <= axis && axis < ndim, "[", op, "] axis ", axis, " for shape ", shape,
                 ", expected in [", -ndim, ", ", ndim, ")");
  return int(axis < 0 ? axis + ndim : axis);
}

}  // namespace lockstep
