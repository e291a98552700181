#include "lockstep/runtime/reduction.h"

namespace lockstep::cpu {

ReductionPlan plan_reduction(const Tensor& x, const std::array<bool, Shape::kMaxDims>& reduced) {
  ReductionPlan plan;
  Shape kept, kept_strides, axes, sizes, strides;
  for (int i = 0; i < x.ndim(); i++) {
    if (reduced[size_t(i)]) {
      axes.push_back(i);
      plan.terms *= x.shape()[i];
    } else {
      kept.push_back(x.shape()[i]);
      kept_strides.push_back(x.strides()[i]);
      plan.outputs *= x.shape()[i];
    }
  }
  // Terms may come in any order: along memory is the fastest.
  std::stable_sort(axes.begin(), axes.end(),
                   [&](int64_t a, int64_t b) { return x.strides()[int(a)] > x.strides()[int(b)]; });
  for (int64_t axis : axes) {
    sizes.push_back(x.shape()[int(axis)]);
    strides.push_back(x.strides()[int(axis)]);
  }
  plan.kept = merge_axes(kept, kept_strides);
  plan.reduced = merge_axes(sizes, strides);
  return plan;
}

}  // namespace lockstep::cpu
