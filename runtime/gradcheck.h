// Checks an op's backward against central differences.
#pragma once

#include <functional>
#include <string>

#include "lockstep/runtime/tensor.h"

namespace lockstep {

struct GradcheckResult {
  bool ok = true;
  std::string message;  // the first mismatch: input, element, analytic and numeric value
  explicit operator bool() const { return ok; }
};

// `f` maps the inputs to one tensor and must be a pure function of them. Compares the gradient of
// sum(f(inputs) * r), r a fixed random tensor, with (f(x + eps) - f(x - eps)) / 2 eps for every element of
// every input that requires a gradient; these must be float64 leaves. An element passes if |analytic -
// numeric| <= atol + rtol * |numeric|.
GradcheckResult gradcheck(const std::function<Tensor(const Tensors&)>& f, const Tensors& inputs,
                          double eps = 1e-6, double rtol = 1e-4, double atol = 1e-6);

}  // namespace lockstep
