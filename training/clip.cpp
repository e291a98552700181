#include "lockstep/training/clip.h"

#include <cmath>
#include <limits>
#include <unordered_set>

#include "lockstep/ops/tensor_list.h"
#include "lockstep/runtime/autograd.h"
#include "lockstep/training/by_device.h"

namespace lockstep {

namespace {

double norm_of(const std::vector<DeviceList<Tensor>>& lists) {
  auto sum = [&](double factor) {
    double total = 0;
    for (const auto& [device, grads] : lists) {
      double part = 0;
      LOCKSTEP_DISPATCH(current_stream(device), sum_of_squares, std::span<const Tensor>(grads), factor, part);
      total += part;
    }
    return total;
  };
  double total = sum(1);
  bool has_double = false;
  for (const auto& [device, grads] : lists)
    for (const Tensor& grad : grads) has_double |= grad.dtype() == DType::float64;
  // Squares of float32 and shorter always fit a double; those of float64 may overflow, or vanish, and are
  // summed again.
  constexpr double kTiny = 0x1p-900, kScale = 0x1p600;
  if (has_double && total == std::numeric_limits<double>::infinity())
    return std::sqrt(sum(1 / kScale)) * kScale;
  if (has_double && total < kTiny) return std::sqrt(sum(kScale)) / kScale;
  return std::sqrt(total);
}

}  // namespace

double clip_grad_norm(const Tensors& parameters, double max_norm, const ClipOptions& options) {
  LOCKSTEP_CHECK(max_norm >= 0, "[clip_grad_norm] max_norm ", max_norm, ", expected 0 or more");
  NoGradGuard no_grad;
  std::unordered_set<const TensorImpl*> seen;
  Tensors grads;
  for (size_t i = 0; i < parameters.size(); i++) {
    LOCKSTEP_CHECK(seen.insert(parameters[i].handle().get()).second, "[clip_grad_norm] parameter ", i,
                   " is listed twice");
    Tensor grad = parameters[i].grad();
    if (!grad.defined() || !parameters[i].requires_grad()) continue;
    if (!grad.is_contiguous()) {  // may be an expanded view, whose elements must not be scaled several times
      grad = grad.contiguous();
      parameters[i].set_grad(grad);
    }
    grads.push_back(grad);
  }
  auto lists = by_device(grads, [](const Tensor& grad) { return grad.device(); });
  const double norm = norm_of(lists);
  if (!std::isfinite(norm)) {
    LOCKSTEP_CHECK(!options.error_if_nonfinite, "[clip_grad_norm] the norm of the gradients is ", norm,
                   ", expected a finite one; the gradients are unchanged");
    return norm;
  }
  if (norm <= max_norm) return norm;
  for (const auto& [device, list] : lists) {
    LOCKSTEP_DISPATCH(current_stream(device), scale_list, std::span<const Tensor>(list), max_norm / norm);
    for (const Tensor& grad : list) grad.bump_version();
  }
  return norm;
}

}  // namespace lockstep
