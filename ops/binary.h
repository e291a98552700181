// y = f(a, b), element by element, broadcast by NumPy's rules; any strides; y is row-major.
//   dtypes  add, sub, mul, maximum, minimum: floating and integer (uint8 wraps); div, pow: floating. Operands
//   of two dtypes
//           are cast to promote(a, b), and the cast is recorded. A scalar takes the tensor's dtype; for an
//           integer tensor it must be whole.
//   saved   what a gradient reads and only for operands that need one: add, sub: nothing; mul: the other
//   operand;
//           div: b, and a if b needs a gradient; pow, maximum, minimum: both
//   throws  Error for shapes that do not broadcast, two devices, other dtypes
// To add one: a struct, a line in LOCKSTEP_BINARY_OPS, and the functions below that users call.
#pragma once

#include "lockstep/ops/math.h"
#include "lockstep/runtime/kernel.h"
#include "lockstep/runtime/tensor.h"

namespace lockstep {

Tensor add(const Tensor& a, const Tensor& b);
Tensor add(const Tensor& a, double b);
Tensor sub(const Tensor& a, const Tensor& b);
Tensor sub(const Tensor& a, double b);
Tensor sub(double a, const Tensor& b);
Tensor mul(const Tensor& a, const Tensor& b);
Tensor mul(const Tensor& a, double b);
Tensor div(const Tensor& a, const Tensor& b);
Tensor div(const Tensor& a, double b);
Tensor div(double a, const Tensor& b);
// a^b. At a = 0 the gradient of b is 0 for b >= 0 (the limit), so that 0^b trains.
Tensor pow(const Tensor& a, const Tensor& b);
Tensor pow(const Tensor& a, double b);
// A NaN in either operand is the result. Where a = b each gets half of the gradient.
Tensor maximum(const Tensor& a, const Tensor& b);
Tensor maximum(const Tensor& a, double b);
Tensor minimum(const Tensor& a, const Tensor& b);
Tensor minimum(const Tensor& a, double b);

inline Tensor operator+(const Tensor& a, const Tensor& b) { return add(a, b); }
inline Tensor operator+(const Tensor& a, double b) { return add(a, b); }
inline Tensor operator+(double a, const Tensor& b) { return add(b, a); }
inline Tensor operator-(const Tensor& a, const Tensor& b) { return sub(a, b); }
inline Tensor operator-(const Tensor& a, double b) { return sub(a, b); }
inline Tensor operator-(double a, const Tensor& b) { return sub(a, b); }
inline Tensor operator*(const Tensor& a, const Tensor& b) { return mul(a, b); }
inline Tensor operator*(const Tensor& a, double b) { return mul(a, b); }
inline Tensor operator*(double a, const Tensor& b) { return mul(b, a); }
inline Tensor operator/(const Tensor& a, const Tensor& b) { return div(a, b); }
inline Tensor operator/(const Tensor& a, double b) { return div(a, b); }
inline Tensor operator/(double a, const Tensor& b) { return div(a, b); }
inline Tensor operator-(const Tensor& a) { return mul(a, -1.0); }

// The dtype in which operands of two dtypes meet: the wider of two floats (float16 with bfloat16: float32),
// the float of a float and an integer or bool, the wider of two integers, the integer of an integer and bool.
DType promote(DType a, DType b);

// da(a, b, dy) and db(a, b, dy) are the gradients; kDaReads and kDbReads say which operands they read.
namespace binary {

enum Reads { kNone = 0, kA = 1, kB = 2, kBoth = 3 };

struct Add {
  static constexpr bool kIntegers = true;
  static constexpr Reads kDaReads = kNone, kDbReads = kNone;
  template <class T>
  LOCKSTEP_HD static T forward(T a, T b) {
    return T(a + b);
  }
  template <class T>
  LOCKSTEP_HD static T da(T, T, T dy) {
    return dy;
  }
  template <class T>
  LOCKSTEP_HD static T db(T, T, T dy) {
    return dy;
  }
};

struct Sub {
  static constexpr bool kIntegers = true;
  static constexpr Reads kDaReads = kNone, kDbReads = kNone;
  template <class T>
  LOCKSTEP_HD static T forward(T a, T b) {
    return T(a - b);
  }
  template <class T>
  LOCKSTEP_HD static T da(T, T, T dy) {
    return dy;
  }
  template <class T>
  LOCKSTEP_HD static T db(T, T, T dy) {
    return -dy;
  }
};

struct Mul {
  static constexpr bool kIntegers = true;
  static constexpr Reads kDaReads = kB, kDbReads = kA;
  template <class T>
  LOCKSTEP_HD static T forward(T a, T b) {
    return T(a * b);
  }
  template <class T>
  LOCKSTEP_HD static T da(T, T b, T dy) {
    return dy * b;
  }
  template <class T>
  LOCKSTEP_HD static T db(T a, T, T dy) {
    return dy * a;
  }
};

struct Div {
  static constexpr bool kIntegers = false;
  static constexpr Reads kDaReads = kB, kDbReads = kBoth;
  template <class T>
  LOCKSTEP_HD static T forward(T a, T b) {
    return a / b;
  }
  template <class T>
  LOCKSTEP_HD static T da(T, T b, T dy) {
    return dy / b;
  }
  template <class T>
  LOCKSTEP_HD static T db(T a, T b, T dy) {
    return -dy * (a / b) / b;
  }
};

struct Pow {
  static constexpr bool kIntegers = false;
  static constexpr Reads kDaReads = kBoth, kDbReads = kBoth;
  template <class T>
  LOCKSTEP_HD static T forward(T a, T b) {
    return b == 2 ? a * a : math::pow(a, b);
  }
  template <class T>
  LOCKSTEP_HD static T da(T a, T b, T dy) {
    return b == 2 ? dy * 2 * a : b == 0 ? T(0) : dy * b * math::pow(a, b - 1);
  }
  template <class T>
  LOCKSTEP_HD static T db(T a, T b, T dy) {
    return a == 0 && b >= 0 ? T(0) : dy * math::pow(a, b) * math::log(a);
  }
};

struct Maximum {
  static constexpr bool kIntegers = true;
  static constexpr Reads kDaReads = kBoth, kDbReads = kBoth;
  template <class T>
  LOCKSTEP_HD static T forward(T a, T b) {
    return a > b || a != a ? a : b;
  }
  template <class T>
  LOCKSTEP_HD static T da(T a, T b, T dy) {
    return a < b ? T(0) : a == b ? dy / 2 : dy;
  }
  template <class T>
  LOCKSTEP_HD static T db(T a, T b, T dy) {
    return da(b, a, dy);
  }
};

struct Minimum {
  static constexpr bool kIntegers = true;
  static constexpr Reads kDaReads = kBoth, kDbReads = kBoth;
  template <class T>
  LOCKSTEP_HD static T forward(T a, T b) {
    return a < b || a != a ? a : b;
  }
  template <class T>
  LOCKSTEP_HD static T da(T a, T b, T dy) {
    return a > b ? T(0) : a == b ? dy / 2 : dy;
  }
  template <class T>
  LOCKSTEP_HD static T db(T a, T b, T dy) {
    return da(b, a, dy);
  }
};

}  // namespace binary

#define LOCKSTEP_BINARY_OPS(OP) \
  OP(add, Add)                  \
  OP(sub, Sub)                  \
  OP(mul, Mul)                  \
  OP(div, Div)                  \
  OP(pow, Pow)                  \
  OP(maximum, Maximum)          \
  OP(minimum, Minimum)

enum class BinaryOp {
#define OP(name, Op) name,
  LOCKSTEP_BINARY_OPS(OP)
#undef OP
};

// Calls f.template operator()<Op>(name) with the struct of `op`.
template <class F>
decltype(auto) dispatch_binary(BinaryOp op, F&& f) {
  switch (op) {
#define OP(name, Op) \
  case BinaryOp::name: return f.template operator()<binary::Op>(#name);
    LOCKSTEP_BINARY_OPS(OP)
#undef OP
  }
  throw_error("[binary] no such op");
}

LOCKSTEP_KERNEL(binary_forward, BinaryOp op, const Tensor& a, const Tensor& b, Tensor& y, Stream s)
// The gradient of a (or of b), in the shape of dy. An operand that it does not read may be any tensor of the
// dtype that broadcasts to dy.
LOCKSTEP_KERNEL(binary_backward, BinaryOp op, bool of_a, const Tensor& a, const Tensor& b, const Tensor& dy,
                Tensor& dx, Stream s)
// y = f(x, c), or f(c, x) if `reversed`.
LOCKSTEP_KERNEL(binary_scalar_forward, BinaryOp op, const Tensor& x, double c, bool reversed, Tensor& y,
                Stream s)
LOCKSTEP_KERNEL(binary_scalar_backward, BinaryOp op, const Tensor& x, double c, bool reversed,
                const Tensor& dy, Tensor& dx, Stream s)

}  // namespace lockstep
