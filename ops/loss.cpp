#include "lockstep/ops/loss.h"

#include "lockstep/runtime/primitives.h"

namespace lockstep {

DType compute_dtype(DType dtype) { return dtype == DType::float64 ? DType::float64 : DType::float32; }

double loss_scale(Reduction reduction, int64_t elements) {
  return reduction == Reduction::mean && elements > 0 ? 1.0 / double(elements) : 1.0;
}

Tensor reduce_loss(const Tensor& losses, Reduction reduction, DType dtype) {
  if (reduction == Reduction::none) return losses.detach().to(dtype);
  Tensor y = empty({}, losses.dtype(), losses.device());
  const double divisor = reduction == Reduction::mean ? std::max(1.0, double(losses.numel())) : 1.0;
  LOCKSTEP_DISPATCH(current_stream(losses.device()), sum_to, losses, divisor, y);
  return y.to(dtype);
}

}  // namespace lockstep
