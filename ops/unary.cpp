#include "lockstep/ops/unary.h"

#include "lockstep/ops/binary.h"
#include "lockstep/runtime/autograd.h"
#include "lockstep/runtime/elementwise.h"

namespace lockstep {

namespace {

Tensor apply(UnaryOp op, const Tensor& x) {
  struct Traits {
    const char* name;
    bool saves_output;
  };
  Traits traits = dispatch_unary(op, []<class Op>(const char* name) {
    return Traits{name, Op::kSavesOutput};
  });
  LOCKSTEP_CHECK(is_floating(x.dtype()), "[", traits.name, "] expected a floating-point dtype, got ",
                 x.dtype(), " for shape ", x.shape());
  Tensor y = empty_like(x);
  LOCKSTEP_DISPATCH(current_stream(x.device()), unary_forward, op, x, y);
  return record(traits.name, y, std::span(&x, 1),
                [op, saved = Saved(traits.saves_output ? y : x)](const Tensor& dy) -> Tensors {
                  Tensor dx = empty_like(dy);
                  LOCKSTEP_DISPATCH(current_stream(dy.device()), unary_backward, op, saved, dy, dx);
                  return {dx};
                });
}

}  // namespace

Tensor neg(const Tensor& x) { return mul(x, -1.0); }
Tensor exp(const Tensor& x) { return apply(UnaryOp::exp, x); }
Tensor log(const Tensor& x) { return apply(UnaryOp::log, x); }
Tensor sqrt(const Tensor& x) { return apply(UnaryOp::sqrt, x); }
Tensor abs(const Tensor& x) { return apply(UnaryOp::abs, x); }
Tensor relu(const Tensor& x) { return apply(UnaryOp::relu, x); }
Tensor gelu(const Tensor& x, Gelu form) {
  return apply(form == Gelu::exact ? UnaryOp::gelu : UnaryOp::gelu_tanh, x);
}
Tensor sigmoid(const Tensor& x) { return apply(UnaryOp::sigmoid, x); }
Tensor tanh(const Tensor& x) { return apply(UnaryOp::tanh, x); }
Tensor silu(const Tensor& x) { return apply(UnaryOp::silu, x); }

namespace cpu {

namespace {

// One type for all dtypes, so that each op is compiled once for float and once for double.
template <class Op>
struct Forward {
  template <class C>
  C operator()(C x) const {
    return Op::forward(x);
  }
};
template <class Op>
struct Backward {
  template <class C>
  C operator()(C saved, C dy) const {
    return Op::backward(saved, dy);
  }
};

}  // namespace

void unary_forward(UnaryOp op, const Tensor& x, Tensor& y, Stream) {
  dispatch_unary(op, [&]<class Op>(const char*) {
    dispatch_float(x.dtype(), [&]<class T>() { map<T, T>(y, Forward<Op>(), x); });
  });
}

void unary_backward(UnaryOp op, const Tensor& saved, const Tensor& dy, Tensor& dx, Stream) {
  dispatch_unary(op, [&]<class Op>(const char*) {
    dispatch_float(dy.dtype(), [&]<class T>() { map<T, T, T>(dx, Backward<Op>(), saved, dy); });
  });
}

}  // namespace cpu

}  // namespace lockstep
