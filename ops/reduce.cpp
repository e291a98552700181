#include "lockstep/ops/reduce.h"

#include <limits>

#include "lockstep/ops/binary.h"
#include "lockstep/ops/compare.h"
#include "lockstep/ops/where.h"
#include "lockstep/runtime/autograd.h"
#include "lockstep/runtime/primitives.h"
#include "lockstep/runtime/reduction.h"

namespace lockstep {

namespace {

struct Shapes {
  Shape kept_axes;  // reduced axes of size 1
  Shape result;
  int64_t terms;  // elements of x per element of the result
};

Shapes reduced_shapes(const char* op, const Tensor& x, const Shape& axes, bool keepdim) {
  bool reduced[Shape::kMaxDims] = {};
  for (int64_t axis : axes) {
    bool& seen = reduced[normalize_axis(op, axis, x.shape())];
    LOCKSTEP_CHECK(!seen, "[", op, "] axis ", axis, " is given twice, for shape ", x.shape());
    seen = true;
  }
  Shapes shapes{{}, {}, 1};
  for (int i = 0; i < x.ndim(); i++) {
    const int64_t size = x.shape()[i];
    if (axes.empty() || reduced[i]) {
      shapes.terms *= size;
      shapes.kept_axes.push_back(1);
      if (keepdim) shapes.result.push_back(1);
    } else {
      shapes.kept_axes.push_back(size);
      shapes.result.push_back(size);
    }
  }
  return shapes;
}

void check_floating(const char* op, const Tensor& x) {
  LOCKSTEP_CHECK(is_floating(x.dtype()), "[", op, "] expected a floating-point dtype, got ", x.dtype(),
                 " for shape ", x.shape());
}

// sum / divisor. The gradient is a view that repeats dy: the engine copies it only where it must.
Tensor scaled_sum(const char* op, const Tensor& x, const Shapes& shapes, double divisor) {
  Tensor y = empty(shapes.result, x.dtype(), x.device());
  Tensor target = y.reshape(shapes.kept_axes);
  LOCKSTEP_DISPATCH(current_stream(x.device()), sum_to, x, divisor, target);
  return record(op, y, std::span(&x, 1),
                [shape = x.shape(), kept = shapes.kept_axes, divisor](const Tensor& dy) -> Tensors {
                  Tensor scaled = divisor == 1 ? dy : div(dy, divisor);
                  return {scaled.reshape(kept).expand(shape)};
                });
}

Tensor extremum(const char* op, bool largest, const Tensor& x, const Shape& axes, bool keepdim) {
  const Shapes shapes = reduced_shapes(op, x, axes, keepdim);
  Tensor y = empty(shapes.result, x.dtype(), x.device());
  LOCKSTEP_CHECK(shapes.terms > 0 || y.numel() == 0, "[", op, "] no elements, for shape ", x.shape());
  Tensor target = y.reshape(shapes.kept_axes);
  if (largest) LOCKSTEP_DISPATCH(current_stream(x.device()), reduce_max, x, target);
  else LOCKSTEP_DISPATCH(current_stream(x.device()), reduce_min, x, target);
  return record(op, y, std::span(&x, 1),
                [x = Saved(x), y = Saved(y), kept = shapes.kept_axes](const Tensor& dy) -> Tensors {
                  Tensor chosen = eq(x, y.get().reshape(kept));
                  const DType wide = dy.dtype() == DType::float64 ? DType::float64 : DType::float32;
                  Tensor ties = sum_to_shape(chosen.to(wide), kept);
                  Tensor share = div(dy.to(wide).reshape(kept), ties).to(dy.dtype());
                  return {where(chosen, share, zeros({}, dy.dtype(), dy.device()))};
                });
}

}  // namespace

Tensor sum(const Tensor& x, const Shape& axes, bool keepdim) {
  const Shapes shapes = reduced_shapes("sum", x, axes, keepdim);
  return scaled_sum("sum", is_floating(x.dtype()) ? x : x.to(DType::int64), shapes, 1);
}

Tensor mean(const Tensor& x, const Shape& axes, bool keepdim) {
  check_floating("mean", x);
  const Shapes shapes = reduced_shapes("mean", x, axes, keepdim);
  return scaled_sum("mean", x, shapes, double(shapes.terms));
}

Tensor max(const Tensor& x, const Shape& axes, bool keepdim) {
  return extremum("max", true, x, axes, keepdim);
}
Tensor min(const Tensor& x, const Shape& axes, bool keepdim) {
  return extremum("min", false, x, axes, keepdim);
}

Tensor argmax(const Tensor& x, int64_t axis, bool keepdim) {
  const int along = normalize_axis("argmax", axis, x.shape());
  Shape shape = x.shape();
  shape[along] = 1;
  if (!keepdim) shape.erase(along);
  Tensor y = empty(shape, DType::int64, x.device());
  LOCKSTEP_CHECK(x.shape()[along] > 0 || y.numel() == 0, "[argmax] no elements along axis ", axis,
                 ", for shape ", x.shape());
  LOCKSTEP_DISPATCH(current_stream(x.device()), argmax_forward, x, along, y);
  return y;
}

Tensor var(const Tensor& x, const Shape& axes, bool unbiased, bool keepdim) {
  check_floating("var", x);
  const Shapes shapes = reduced_shapes("var", x, axes, keepdim);
  const double divisor = double(shapes.terms - (unbiased ? 1 : 0));
  LOCKSTEP_CHECK(divisor > 0, "[var] ", shapes.terms, " elements have no ", unbiased ? "unbiased " : "",
                 "variance, for shape ", x.shape());
  Tensor y = empty(shapes.result, x.dtype(), x.device());
  Tensor target = y.reshape(shapes.kept_axes);
  LOCKSTEP_DISPATCH(current_stream(x.device()), reduce_var, x, divisor, target);
  return record("var", y, std::span(&x, 1),
                [x = Saved(x), kept = shapes.kept_axes, n = double(shapes.terms),
                 divisor](const Tensor& dy) -> Tensors {
                  Tensor centre = empty(kept, dy.dtype(), dy.device());
                  LOCKSTEP_DISPATCH(current_stream(dy.device()), sum_to, x, n, centre);
                  return {mul(sub(x, centre), mul(dy.reshape(kept), 2 / divisor))};
                });
}

namespace cpu {

namespace {

template <class T>
struct MaxPolicy {
  using Acc = Compute<T>;
  Acc start() const {
    using Limits = std::numeric_limits<Acc>;
    return Limits::has_infinity ? -Limits::infinity() : Limits::lowest();
  }
  double center(int64_t) const { return 0; }
  Acc add(Acc acc, Acc value, double) const { return value > acc || value != value ? value : acc; }
  Acc merge(Acc a, Acc b) const { return add(a, b, 0); }
};

template <class T>
struct MinPolicy {
  using Acc = Compute<T>;
  Acc start() const {
    using Limits = std::numeric_limits<Acc>;
    return Limits::has_infinity ? Limits::infinity() : Limits::max();
  }
  double center(int64_t) const { return 0; }
  Acc add(Acc acc, Acc value, double) const { return value < acc || value != value ? value : acc; }
  Acc merge(Acc a, Acc b) const { return add(a, b, 0); }
};

template <class T>
struct SquaredDeviationPolicy {
  using Acc = double;
  const double* means;
  Acc start() const { return 0; }
  double center(int64_t output) const { return means[output]; }
  Acc add(Acc acc, Compute<T> value, double mean) const {
    return acc + (double(value) - mean) * (double(value) - mean);
  }
  Acc merge(Acc a, Acc b) const { return a + b; }
};

ReductionPlan plan_to(const Tensor& x, const Tensor& y) {
  std::array<bool, Shape::kMaxDims> reduced{};
  for (int i = 0; i < x.ndim(); i++) reduced[size_t(i)] = y.shape()[i] != x.shape()[i];
  return plan_reduction(x, reduced);
}

template <template <class> class Policy>
void reduce_all_dtypes(const Tensor& x, Tensor& y) {
  const ReductionPlan plan = plan_to(x, y);
  dispatch_all(x.dtype(), [&]<class T>() {
    T* out = y.data<T>();
    reduce<T>(x, plan, Policy<T>(), [=](int64_t i, Compute<T> value) { out[i] = T(value); });
  });
}

}  // namespace

void reduce_max(const Tensor& x, Tensor& y, Stream) { reduce_all_dtypes<MaxPolicy>(x, y); }
void reduce_min(const Tensor& x, Tensor& y, Stream) { reduce_all_dtypes<MinPolicy>(x, y); }

void reduce_var(const Tensor& x, double divisor, Tensor& y, Stream) {
  const ReductionPlan plan = plan_to(x, y);
  Memory memory(Device(), size_t(plan.outputs) * sizeof(double));
  double* means = static_cast<double*>(memory.data());
  dispatch_float(x.dtype(), [&]<class T>() {
    T* out = y.data<T>();
    reduce<T>(x, plan, SumPolicy<T>(),
              [=, n = double(plan.terms)](int64_t i, double sum) { means[i] = sum / n; });
    reduce<T>(x, plan, SquaredDeviationPolicy<T>{means},
              [=](int64_t i, double sum) { out[i] = T(Compute<T>(sum / divisor)); });
  });
}

void argmax_forward(const Tensor& input, int axis, Tensor& y, Stream) {
  const Tensor x = input.detach().contiguous();
  int64_t outer = 1, inner = 1;
  const int64_t n = x.shape()[axis];
  for (int i = 0; i < x.ndim(); i++) (i < axis ? outer : inner) *= i == axis ? 1 : x.shape()[i];
  int64_t* out = y.data<int64_t>();
  dispatch_all(x.dtype(), [&]<class T>() {
    const T* in = x.data<T>();
    parallel_for(outer * inner, std::max<int64_t>(1, kElementGrain / std::max<int64_t>(1, n)),
                 [&](int64_t begin, int64_t end) {
                   for (int64_t i = begin; i < end; i++) {
                     const T* column = in + i / inner * n * inner + i % inner;
                     int64_t best = 0;
                     for (int64_t t = 1; t < n; t++) {
                       const Compute<T> value = column[t * inner], largest = column[best * inner];
                       if (value > largest || (value != value && largest == largest)) best = t;
                     }
                     out[i] = best;
                   }
                 });
  });
}

}  // namespace cpu

}  // namespace lockstep
