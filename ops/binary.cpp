#include "lockstep/ops/binary.h"

#include "lockstep/runtime/autograd.h"
#include "lockstep/runtime/elementwise.h"

namespace lockstep {

DType promote(DType a, DType b) {
  if (a == b) return a;
  const DType narrower = std::max(a, b), wider = std::min(a, b);  // each kind is declared from wide to narrow
  if (wider == DType::float16 && narrower == DType::bfloat16) return DType::float32;
  return wider;
}

namespace {

struct Traits {
  const char* name;
  bool integers;
  binary::Reads da, db;
};

Traits traits_of(BinaryOp op) {
  return dispatch_binary(op, []<class Op>(const char* name) {
    return Traits{name, Op::kIntegers, Op::kDaReads, Op::kDbReads};
  });
}

void check_dtype(const Traits& traits, DType dtype) {
  if (is_floating(dtype)) return;
  LOCKSTEP_CHECK(traits.integers && dtype != DType::boolean, "[", traits.name, "] expected ",
                 traits.integers ? "floating-point or integer" : "floating-point", " operands, got ", dtype);
}

Tensor gradient(BinaryOp op, bool of_a, const Tensor& a, const Tensor& b, const Tensor& dy) {
  Tensor dx = empty_like(dy);
  LOCKSTEP_DISPATCH(current_stream(dy.device()), binary_backward, op, of_a, a, b, dy, dx);
  return dx;
}

Tensor apply_same_dtype(BinaryOp op, const Tensor& a, const Tensor& b) {
  const Traits traits = traits_of(op);
  check_dtype(traits, a.dtype());
  check_same_device(traits.name, {&a, &b});
  Tensor y = a.shape() == b.shape()
                 ? empty_like(a)
                 : empty(broadcast_shapes(traits.name, a.shape(), b.shape()), a.dtype(), a.device());
  LOCKSTEP_DISPATCH(current_stream(a.device()), binary_forward, op, a, b, y);

  const bool need_a = a.requires_grad(), need_b = b.requires_grad();
  if (traits.da == binary::kNone && traits.db == binary::kNone) {
    return record(traits.name, y, {a, b}, [op, need_a, need_b](const Tensor& dy) -> Tensors {
      return {need_a ? dy : Tensor(), !need_b ? Tensor() : op == BinaryOp::sub ? mul(dy, -1.0) : dy};
    });
  }
  const int reads = (need_a ? traits.da : 0) | (need_b ? traits.db : 0);
  return record(traits.name, y, {a, b},
                [op, need_a, need_b, a = reads & binary::kA ? Saved(a) : Saved(),
                 b = reads & binary::kB ? Saved(b) : Saved()](const Tensor& dy) -> Tensors {
                  const Tensor &read_a = a.defined() ? a.get() : dy, &read_b = b.defined() ? b.get() : dy;
                  return {need_a ? gradient(op, true, read_a, read_b, dy) : Tensor(),
                          need_b ? gradient(op, false, read_a, read_b, dy) : Tensor()};
                });
}

Tensor apply(BinaryOp op, const Tensor& a, const Tensor& b) {
  if (a.dtype() == b.dtype()) return apply_same_dtype(op, a, b);
  const DType dtype = promote(a.dtype(), b.dtype());
  return apply_same_dtype(op, a.to(dtype), b.to(dtype));
}

Tensor apply(BinaryOp op, const Tensor& x, double c, bool reversed = false) {
  const Traits traits = traits_of(op);
  check_dtype(traits, x.dtype());
  LOCKSTEP_CHECK(is_floating(x.dtype()) || c == std::floor(c), "[", traits.name, "] the scalar ", c,
                 " is not whole, but the tensor is ", x.dtype());
  Tensor y = empty_like(x);
  LOCKSTEP_DISPATCH(current_stream(x.device()), binary_scalar_forward, op, x, c, reversed, y);
  const bool reads_x = reversed ? traits.db & binary::kB : traits.da & binary::kA;
  return record(traits.name, y, std::span(&x, 1),
                [op, c, reversed, x = reads_x ? Saved(x) : Saved()](const Tensor& dy) -> Tensors {
                  Tensor dx = empty_like(dy);
                  LOCKSTEP_DISPATCH(current_stream(dy.device()), binary_scalar_backward, op,
                                    x.defined() ? x.get() : dy, c, reversed, dy, dx);
                  return {dx};
                });
}

}  // namespace

Tensor add(const Tensor& a, const Tensor& b) { return apply(BinaryOp::add, a, b); }
Tensor add(const Tensor& a, double b) { return apply(BinaryOp::add, a, b); }
Tensor sub(const Tensor& a, const Tensor& b) { return apply(BinaryOp::sub, a, b); }
Tensor sub(const Tensor& a, double b) { return apply(BinaryOp::sub, a, b); }
Tensor sub(double a, const Tensor& b) { return apply(BinaryOp::sub, b, a, true); }
Tensor mul(const Tensor& a, const Tensor& b) { return apply(BinaryOp::mul, a, b); }
Tensor mul(const Tensor& a, double b) { return apply(BinaryOp::mul, a, b); }
Tensor div(const Tensor& a, const Tensor& b) { return apply(BinaryOp::div, a, b); }
Tensor div(const Tensor& a, double b) { return apply(BinaryOp::div, a, b); }
Tensor div(double a, const Tensor& b) { return apply(BinaryOp::div, b, a, true); }
Tensor pow(const Tensor& a, const Tensor& b) { return apply(BinaryOp::pow, a, b); }
Tensor pow(const Tensor& a, double b) { return apply(BinaryOp::pow, a, b); }
Tensor maximum(const Tensor& a, const Tensor& b) { return apply(BinaryOp::maximum, a, b); }
Tensor maximum(const Tensor& a, double b) { return apply(BinaryOp::maximum, a, b); }
Tensor minimum(const Tensor& a, const Tensor& b) { return apply(BinaryOp::minimum, a, b); }
Tensor minimum(const Tensor& a, double b) { return apply(BinaryOp::minimum, a, b); }

namespace cpu {

namespace {

// One type for all dtypes and for tensors and scalars, so that each op is compiled once for float and once
// for double.
template <class Op>
struct Forward {
  template <class C>
  C operator()(C a, C b) const {
    return Op::forward(a, b);
  }
};
template <class Op>
struct GradientOfA {
  template <class C>
  C operator()(C a, C b, C dy) const {
    return Op::da(a, b, dy);
  }
};
template <class Op>
struct GradientOfB {
  template <class C>
  C operator()(C a, C b, C dy) const {
    return Op::db(a, b, dy);
  }
};

template <class A, class B>
void forward(BinaryOp op, const A& a, const B& b, Tensor& y) {
  dispatch_binary(op, [&]<class Op>(const char*) {
    auto run = [&]<class T>() { map<T, T, T>(y, Forward<Op>(), a, b); };
    if constexpr (Op::kIntegers) {
      if (!is_floating(y.dtype())) return dispatch_index(y.dtype(), run);
    }
    dispatch_float(y.dtype(), run);
  });
}

template <class A, class B>
void backward(BinaryOp op, bool of_a, const A& a, const B& b, const Tensor& dy, Tensor& dx) {
  dispatch_binary(op, [&]<class Op>(const char*) {
    dispatch_float(dy.dtype(), [&]<class T>() {
      if (of_a) map<T, T, T, T>(dx, GradientOfA<Op>(), a, b, dy);
      else map<T, T, T, T>(dx, GradientOfB<Op>(), a, b, dy);
    });
  });
}

}  // namespace

void binary_forward(BinaryOp op, const Tensor& a, const Tensor& b, Tensor& y, Stream) {
  forward(op, a, b, y);
}

void binary_backward(BinaryOp op, bool of_a, const Tensor& a, const Tensor& b, const Tensor& dy, Tensor& dx,
                     Stream) {
  backward(op, of_a, a, b, dy, dx);
}

void binary_scalar_forward(BinaryOp op, const Tensor& x, double c, bool reversed, Tensor& y, Stream) {
  if (reversed) forward(op, c, x, y);
  else forward(op, x, c, y);
}

void binary_scalar_backward(BinaryOp op, const Tensor& x, double c, bool reversed, const Tensor& dy,
                            Tensor& dx, Stream) {
  if (reversed) backward(op, false, c, x, dy, dx);
  else backward(op, true, x, c, dy, dx);
}

}  // namespace cpu

}  // namespace lockstep
