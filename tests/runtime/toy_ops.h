// Operations in a few lines each, so that the tests of the engine need nothing but the engine. Slow on
// purpose: values pass through vectors of doubles.
#pragma once

#include <cmath>

#include "lockstep/runtime/autograd.h"
#include "lockstep/runtime/tensor.h"

namespace lockstep::test {

// f(x[i]) per element, of the shape and dtype of x; no history.
template <class F>
Tensor mapped(const Tensor& x, F f) {
  std::vector<double> values = x.to_vector<double>();
  for (double& value : values) value = f(value);
  return from_vector(values, x.shape()).to(x.dtype());
}

// a[i] * b[i], shapes equal; no history.
inline Tensor multiplied(const Tensor& a, const Tensor& b) {
  std::vector<double> values = a.to_vector<double>(), factors = b.to_vector<double>();
  for (size_t i = 0; i < values.size(); i++) values[i] *= factors[i];
  return from_vector(values, a.shape()).to(a.dtype());
}

// x + y, broadcast.
inline Tensor plus(const Tensor& x, const Tensor& y) {
  Tensor sum = x.detach();
  if (x.shape() != y.shape()) sum = sum.expand(broadcast_shapes("plus", x.shape(), y.shape()));
  sum = sum.clone();
  {
    NoGradGuard no_grad;
    sum.add_(y);
  }
  return record("plus", sum, {x, y}, [](const Tensor& dy) -> Tensors { return {dy, dy}; });
}

inline Tensor scaled(const Tensor& x, double factor) {
  return record(
      "scaled", mapped(x, [=](double v) { return factor * v; }), {x},
      [factor](const Tensor& dy) -> Tensors { return {mapped(dy, [=](double v) { return factor * v; })}; });
}

inline Tensor product(const Tensor& a, const Tensor& b) {
  return record("product", multiplied(a, b), {a, b},
                [a = Saved(a), b = Saved(b)](const Tensor& dy) -> Tensors {
                  return {multiplied(dy, b), multiplied(dy, a)};
                });
}

// Saves its output.
inline Tensor exponential(const Tensor& x) {
  Tensor y = mapped(x, [](double v) { return std::exp(v); });
  return record("exponential", y, {x},
                [y = Saved(y)](const Tensor& dy) -> Tensors { return {multiplied(dy, y)}; });
}

// NaN below 0; the gradient at 0 is infinite.
inline Tensor square_root(const Tensor& x) {
  Tensor y = mapped(x, [](double v) { return std::sqrt(v); });
  return record("square_root", y, {x}, [y = Saved(y)](const Tensor& dy) -> Tensors {
    return {multiplied(dy, mapped(y, [](double v) { return 0.5 / v; }))};
  });
}

inline Tensor total(const Tensor& x) {
  double sum = 0;
  for (double value : x.to_vector<double>()) sum += value;
  return record("total", scalar(sum).to(x.dtype()), {x},
                [shape = x.shape()](const Tensor& dy) -> Tensors { return {dy.expand(shape)}; });
}

// A leaf that wants a gradient.
inline Tensor leaf(const std::vector<double>& values, const Shape& shape) {
  return from_vector(values, shape).set_requires_grad();
}
inline Tensor leaf(double value) { return scalar(value).set_requires_grad(); }

inline std::vector<double> gradient(const Tensor& x) { return x.grad().to_vector<double>(); }

}  // namespace lockstep::test
