#include "lockstep/runtime/gradcheck.h"

#include "lockstep/runtime/autograd.h"
#include "lockstep/runtime/random.h"

namespace lockstep {
namespace {

// One value per element of y, the same in every run; away from 0, so that no element of the output goes
// unchecked.
Tensor projection(const Tensor& y) {
  Generator fixed(0x5eed);
  GeneratorGuard guard(fixed);
  Tensor r = empty(y.shape(), DType::float64);
  uniform_(r, 0.5, 1.5);
  return r;
}

double projected(const Tensor& y, const Tensor& r) {
  std::vector<double> values = y.to_vector<double>(), weights = r.to_vector<double>();
  double sum = 0;
  for (size_t i = 0; i < values.size(); i++) sum += values[i] * weights[i];
  return sum;
}

}  // namespace

GradcheckResult gradcheck(const std::function<Tensor(const Tensors&)>& f, const Tensors& inputs, double eps,
                          double rtol, double atol) {
  Tensors checked;
  for (const Tensor& input : inputs) {
    if (!input.defined() || !input.requires_grad()) continue;
    LOCKSTEP_CHECK(input.dtype() == DType::float64 && input.is_leaf() && input.is_contiguous(),
                   "[gradcheck] expected contiguous float64 leaves, got ", input.dtype(), " of shape ",
                   input.shape());
    checked.push_back(input);
  }
  LOCKSTEP_CHECK(!checked.empty(), "[gradcheck] no input requires a gradient");

  Tensor y = f(inputs);
  LOCKSTEP_CHECK(y.dtype() == DType::float64, "[gradcheck] f returned ", y.dtype(), ", expected float64");
  if (!y.requires_grad()) return {false, "the result does not require a gradient: the op is not recorded"};
  Tensor r = projection(y);
  Tensors analytic = grad({&y, 1}, checked, {&r, 1});

  NoGradGuard no_grad;
  for (size_t k = 0; k < checked.size(); k++) {
    const Tensor& x = checked[k];
    if (!analytic[k].defined()) analytic[k] = zeros_like(x);
    std::vector<double> gradient = analytic[k].to_vector<double>();
    double* values = x.data<double>();
    for (int64_t i = 0; i < x.numel(); i++) {
      const double original = values[i];
      values[i] = original + eps;
      double above = projected(f(inputs), r);
      values[i] = original - eps;
      double below = projected(f(inputs), r);
      values[i] = original;
      double numeric = (above - below) / (2 * eps), difference = std::abs(gradient[size_t(i)] - numeric);
      if (!(difference <= atol + rtol * std::abs(numeric)))
        return {false, concat("gradient of checked input ", k, " of shape ", x.shape(), " at element ", i,
                              ": analytic ", gradient[size_t(i)], ", numeric ", numeric, ", difference ",
                              difference)};
    }
  }
  return {};
}

}  // namespace lockstep
