// y = f(x), element by element. Floating dtypes (neg: integers too), any shape and strides; y is row-major.
//   throws  Error for another dtype
// To add one: a struct, a line in LOCKSTEP_UNARY_OPS, and the function below that users call.
#pragma once

#include "lockstep/ops/math.h"
#include "lockstep/runtime/kernel.h"
#include "lockstep/runtime/tensor.h"

namespace lockstep {

enum class Gelu { exact, tanh };

Tensor neg(const Tensor& x);
Tensor exp(const Tensor& x);
Tensor log(const Tensor& x);  // natural; -inf at 0, NaN below
Tensor sqrt(const Tensor& x);
Tensor abs(const Tensor& x);   // gradient 0 at 0
Tensor relu(const Tensor& x);  // max(x, 0); gradient 0 at 0; a NaN passes
// x Phi(x), or with Phi(x) ~ (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))) / 2.    Hendrycks & Gimpel 2016.
Tensor gelu(const Tensor& x, Gelu form = Gelu::exact);
Tensor sigmoid(const Tensor& x);  // 1 / (1 + e^-x)
Tensor tanh(const Tensor& x);
Tensor silu(const Tensor& x);  // x sigmoid(x).    Elfwing et al. 2017; Ramachandran et al. 2017.

// backward(s, dy): the gradient of x, where s is y if kSavesOutput and x otherwise. T is float or double.
namespace unary {

struct Exp {
  static constexpr bool kSavesOutput = true;
  template <class T>
  LOCKSTEP_HD static T forward(T x) {
    return math::exp(x);
  }
  template <class T>
  LOCKSTEP_HD static T backward(T y, T dy) {
    return dy * y;
  }
};

struct Log {
  static constexpr bool kSavesOutput = false;
  template <class T>
  LOCKSTEP_HD static T forward(T x) {
    return math::log(x);
  }
  template <class T>
  LOCKSTEP_HD static T backward(T x, T dy) {
    return dy / x;
  }
};

struct Sqrt {
  static constexpr bool kSavesOutput = true;
  template <class T>
  LOCKSTEP_HD static T forward(T x) {
    return math::sqrt(x);
  }
  template <class T>
  LOCKSTEP_HD static T backward(T y, T dy) {
    return dy / (2 * y);
  }
};

struct Abs {
  static constexpr bool kSavesOutput = false;
  template <class T>
  LOCKSTEP_HD static T forward(T x) {
    return x < 0 ? -x : x + 0;
  }  // -0 + 0 is 0
  template <class T>
  LOCKSTEP_HD static T backward(T x, T dy) {
    return x > 0 ? dy : x < 0 ? -dy : 0 * x;
  }
};

struct Relu {
  static constexpr bool kSavesOutput = true;
  template <class T>
  LOCKSTEP_HD static T forward(T x) {
    return x <= 0 ? T(0) : x;
  }
  template <class T>
  LOCKSTEP_HD static T backward(T y, T dy) {
    return y <= 0 ? T(0) : dy;
  }
};

struct GeluExact {
  static constexpr bool kSavesOutput = false;
  template <class T>
  LOCKSTEP_HD static T phi(T x) {
    return T(0.5) * (1 + math::erf(x * T(0.70710678118654752)));
  }
  template <class T>
  LOCKSTEP_HD static T forward(T x) {
    return x * phi(x);
  }
  template <class T>
  LOCKSTEP_HD static T backward(T x, T dy) {
    const T kInverseSqrtTwoPi = T(0.39894228040143268);
    return dy * (phi(x) + x * kInverseSqrtTwoPi * math::exp(T(-0.5) * x * x));
  }
};

struct GeluTanh {
  static constexpr bool kSavesOutput = false;
  static constexpr double kScale = 0.79788456080286536, kCubic = 0.044715;
  template <class T>
  LOCKSTEP_HD static T forward(T x) {
    return T(0.5) * x * (1 + math::tanh(T(kScale) * (x + T(kCubic) * x * x * x)));
  }
  template <class T>
  LOCKSTEP_HD static T backward(T x, T dy) {
    T t = math::tanh(T(kScale) * (x + T(kCubic) * x * x * x)), slope = 1 - t * t;
    T inner = T(kScale) * (1 + T(3 * kCubic) * x * x);  // overflows where slope is 0 long since
    return dy * T(0.5) * (1 + t + (slope == 0 ? T(0) : x * slope * inner));
  }
};

struct Sigmoid {
  static constexpr bool kSavesOutput = true;
  template <class T>
  LOCKSTEP_HD static T forward(T x) {
    return math::sigmoid(x);
  }
  template <class T>
  LOCKSTEP_HD static T backward(T y, T dy) {
    return dy * y * (1 - y);
  }
};

struct Tanh {
  static constexpr bool kSavesOutput = true;
  template <class T>
  LOCKSTEP_HD static T forward(T x) {
    return math::tanh(x);
  }
  template <class T>
  LOCKSTEP_HD static T backward(T y, T dy) {
    return dy * (1 - y * y);
  }
};

struct Silu {
  static constexpr bool kSavesOutput = false;
  template <class T>
  LOCKSTEP_HD static T forward(T x) {
    return x * math::sigmoid(x);
  }
  template <class T>
  LOCKSTEP_HD static T backward(T x, T dy) {
    T s = math::sigmoid(x);
    return dy * s * (1 + x * (1 - s));
  }
};

}  // namespace unary

#define LOCKSTEP_UNARY_OPS(OP) \
  OP(exp, Exp)                 \
  OP(log, Log)                 \
  OP(sqrt, Sqrt)               \
  OP(abs, Abs)                 \
  OP(relu, Relu)               \
  OP(gelu, GeluExact)          \
  OP(gelu_tanh, GeluTanh)      \
  OP(sigmoid, Sigmoid)         \
  OP(tanh, Tanh)               \
  OP(silu, Silu)

enum class UnaryOp {
#define OP(name, Op) name,
  LOCKSTEP_UNARY_OPS(OP)
#undef OP
};

// Calls f.template operator()<Op>(name) with the struct of `op`.
template <class F>
decltype(auto) dispatch_unary(UnaryOp op, F&& f) {
  switch (op) {
#define OP(name, Op) \
  case UnaryOp::name: return f.template operator()<unary::Op>(#name);
    LOCKSTEP_UNARY_OPS(OP)
#undef OP
  }
  throw_error("[unary] no such op");
}

LOCKSTEP_KERNEL(unary_forward, UnaryOp op, const Tensor& x, Tensor& y, Stream s)
LOCKSTEP_KERNEL(unary_backward, UnaryOp op, const Tensor& saved, const Tensor& dy, Tensor& dx, Stream s)

}  // namespace lockstep
