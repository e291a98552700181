#include "lockstep/ops/compare.h"

#include <functional>

#include "lockstep/ops/binary.h"
#include "lockstep/runtime/autograd.h"
#include "lockstep/runtime/elementwise.h"

namespace lockstep {

namespace {

constexpr const char* kNames[] = {"eq", "ne", "lt", "le", "gt", "ge"};

Tensor apply(CompareOp op, const Tensor& a, const Tensor& b) {
  const char* name = kNames[int(op)];
  check_same_device(name, {&a, &b});
  if (a.dtype() != b.dtype()) {
    const DType dtype = promote(a.dtype(), b.dtype());
    NoGradGuard no_grad;
    return apply(op, a.to(dtype), b.to(dtype));
  }
  Tensor y = empty(broadcast_shapes(name, a.shape(), b.shape()), DType::boolean, a.device());
  LOCKSTEP_DISPATCH(current_stream(a.device()), compare, op, a, b, y);
  return y;
}

Tensor apply(CompareOp op, const Tensor& a, double b) {
  Tensor y = empty(a.shape(), DType::boolean, a.device());
  LOCKSTEP_DISPATCH(current_stream(a.device()), compare_scalar, op, a, b, y);
  return y;
}

template <class F>
void dispatch_compare(CompareOp op, F&& f) {
  switch (op) {
    case CompareOp::eq: return f(std::equal_to<>());
    case CompareOp::ne: return f(std::not_equal_to<>());
    case CompareOp::lt: return f(std::less<>());
    case CompareOp::le: return f(std::less_equal<>());
    case CompareOp::gt: return f(std::greater<>());
    case CompareOp::ge: return f(std::greater_equal<>());
  }
}

}  // namespace

Tensor eq(const Tensor& a, const Tensor& b) { return apply(CompareOp::eq, a, b); }
Tensor eq(const Tensor& a, double b) { return apply(CompareOp::eq, a, b); }
Tensor ne(const Tensor& a, const Tensor& b) { return apply(CompareOp::ne, a, b); }
Tensor ne(const Tensor& a, double b) { return apply(CompareOp::ne, a, b); }
Tensor lt(const Tensor& a, const Tensor& b) { return apply(CompareOp::lt, a, b); }
Tensor lt(const Tensor& a, double b) { return apply(CompareOp::lt, a, b); }
Tensor le(const Tensor& a, const Tensor& b) { return apply(CompareOp::le, a, b); }
Tensor le(const Tensor& a, double b) { return apply(CompareOp::le, a, b); }
Tensor gt(const Tensor& a, const Tensor& b) { return apply(CompareOp::gt, a, b); }
Tensor gt(const Tensor& a, double b) { return apply(CompareOp::gt, a, b); }
Tensor ge(const Tensor& a, const Tensor& b) { return apply(CompareOp::ge, a, b); }
Tensor ge(const Tensor& a, double b) { return apply(CompareOp::ge, a, b); }

namespace cpu {

void compare(CompareOp op, const Tensor& a, const Tensor& b, Tensor& y, Stream) {
  dispatch_compare(
      op, [&](auto test) { dispatch_all(a.dtype(), [&]<class T>() { map<bool, T, T>(y, test, a, b); }); });
}

void compare_scalar(CompareOp op, const Tensor& a, double b, Tensor& y, Stream) {
  dispatch_compare(op, [&](auto test) {
    dispatch_all(a.dtype(), [&]<class T>() {
      if constexpr (std::is_integral_v<T>)
        map<bool, T, double>(
            y, [test](auto p, auto q) { return test(double(p), q); }, a, b);
      else map<bool, T, T>(y, test, a, double(Compute<T>(T(b))));
    });
  });
}

}  // namespace cpu

}  // namespace lockstep
