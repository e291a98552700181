#include "lockstep/ops/loss.h"

#include "lockstep/runtime/primitives.h"

namespace lockstep {

DType compute_dtype(DType dtype) { return dtype == DType::float64 ? DType::float64 : DType::float32; }

double loss_scale(Reduction reduction, int64_t elements) {
  return reduction == Reduction::mean && elements > 0 ? 1.0 / double(elements) : 1.0;
}

Tensor reduce_loss(const Tensor& losses, Reduction reduction, DType dtype) {
  if (reduction == Reduction::none) return losses.detach().to(dtype);
  const Stream stream = current_stream(losses.device());
  Tensor y = empty({}, losses.dtype(), losses.device());
  LOCKSTEP_DISPATCH(stream, sum_to, losses, y);
  if (reduction == Reduction::mean)
    LOCKSTEP_DISPATCH(stream, scale, y, loss_scale(reduction, losses.numel()));
  return y.to(dtype);
}

}  // namespace lockstep
