// The loops of CPU reductions over any axes and strides.
//
// A Policy says what is done:   struct Sum { using Acc = double; Acc start() const; double center(int64_t output) const;
//     Acc add(Acc, Compute<T> value, double center) const;  Acc merge(Acc, Acc) const; };
// reduce() calls finish(output, acc) for each output, in any order and thread; outputs count in the row-major order of the
// kept axes.
//
// Where the innermost axis is summed, a row is added in kLanes interleaved accumulators, so that it vectorises; where it is
// kept, a row of accumulators takes one row of x at a time. Long sums are cut into parts by the shape alone and the parts
// merged in order (Note [Fixed chunks]).
#pragma once

#include "lockstep/runtime/elementwise.h"

namespace lockstep::cpu {

struct ReductionPlan {
  Loop kept, reduced;
  int64_t outputs = 1, terms = 1;  // terms: elements of x per output
};
// `reduced[i]` says whether axis i of x is.
ReductionPlan plan_reduction(const Tensor& x, const std::array<bool, Shape::kMaxDims>& reduced);

namespace detail {

inline constexpr int kLanes = 16;
inline constexpr int64_t kPart = 32768;  // elements of x worth a thread

// x[0], x[stride], ... n terms.
template <class T, class Policy>
typename Policy::Acc reduce_row(const Policy& policy, const T* x, int64_t stride, int64_t n, double center,
                                typename Policy::Acc acc) {
  if (stride != 1 || n < kLanes) {
    for (int64_t i = 0; i < n; i++) acc = policy.add(acc, Compute<T>(x[i * stride]), center);
    return acc;
  }
  typename Policy::Acc lanes[kLanes];
  std::fill(lanes, lanes + kLanes, policy.start());
  Block<T> block;
  for (int64_t begin = 0; begin < n; begin += kBlock) {
    const int64_t length = std::min(kBlock, n - begin);
    const Compute<T>* values = in_compute_type(x + begin, length, block.values);
    int64_t i = 0;
    for (; i + kLanes <= length; i += kLanes)
#pragma omp simd
      for (int k = 0; k < kLanes; k++) lanes[k] = policy.add(lanes[k], values[i + k], center);
    for (; i < length; i++) acc = policy.add(acc, values[i], center);
  }
  for (int width = kLanes / 2; width > 0; width /= 2)
    for (int k = 0; k < width; k++) lanes[k] = policy.merge(lanes[k], lanes[k + width]);
  return policy.merge(acc, lanes[0]);
}

}  // namespace detail

template <class T, class Policy, class Finish>
void reduce(const Tensor& input, const ReductionPlan& plan, const Policy& policy, Finish&& finish) {
  using Acc = typename Policy::Acc;
  using detail::kPart;
  if (plan.outputs == 0) return;
  const T* x = input.data<T>();
  const int64_t inner = plan.kept.shape.back(), stride = plan.kept.strides.back();
  const int64_t reduced_stride = plan.reduced.strides.back();
  const bool by_rows = plan.outputs == 1 || plan.terms == 0 || reduced_stride < stride;

  // A task makes `width` neighbouring outputs from one part of their terms.
  const int64_t width = by_rows ? 1 : std::min(inner, detail::kBlock);
  const int64_t tasks_per_row = (inner + width - 1) / width, groups = plan.outputs / inner * tasks_per_row;
  const int64_t part = std::max<int64_t>(1, groups >= 64 ? plan.terms : kPart / width);
  const int64_t parts = std::max<int64_t>(1, (plan.terms + part - 1) / part);

  Memory partial_memory(Device(), parts == 1 ? 0 : size_t(parts * plan.outputs) * sizeof(Acc));
  Acc* partial = static_cast<Acc*>(partial_memory.data());
  auto store = [&](int64_t index, int64_t output, Acc acc) {
    if (parts == 1) finish(output, acc);
    else partial[index * plan.outputs + output] = acc;
  };
  auto run_row = [&](int64_t index, int64_t output) {
    int64_t base = 0;
    for_rows(plan.kept, output, output + 1, [&](int64_t offset, int64_t) { base = offset; });
    Acc acc = policy.start();
    const int64_t begin = index * part, end = std::min(plan.terms, begin + part);
    const double center = policy.center(output);
    if (begin < end)
      for_rows(plan.reduced, begin, end, [&](int64_t offset, int64_t length) {
        acc = detail::reduce_row<T>(policy, x + base + offset, reduced_stride, length, center, acc);
      });
    store(index, output, acc);
  };
  auto run_columns = [&](int64_t index, int64_t group) {
    const int64_t column = group % tasks_per_row * width, first = group / tasks_per_row * inner + column;
    const int64_t columns = std::min(width, inner - column);
    int64_t base = 0;
    for_rows(plan.kept, first, first + 1, [&](int64_t offset, int64_t) { base = offset; });
    Acc acc[detail::kBlock];
    double center[detail::kBlock];
    for (int64_t j = 0; j < columns; j++) acc[j] = policy.start(), center[j] = policy.center(first + j);
    detail::Block<T> block;
    for_rows(plan.reduced, index * part, std::min(plan.terms, (index + 1) * part),
             [&](int64_t offset, int64_t length) {
               for (int64_t t = 0; t < length; t++) {
                 const T* row = x + base + offset + t * reduced_stride;
                 if (stride == 1) {
                   const Compute<T>* values = detail::in_compute_type(row, columns, block.values);
#pragma omp simd
                   for (int64_t j = 0; j < columns; j++) acc[j] = policy.add(acc[j], values[j], center[j]);
                 } else {
                   for (int64_t j = 0; j < columns; j++)
                     acc[j] = policy.add(acc[j], Compute<T>(row[j * stride]), center[j]);
                 }
               }
             });
    for (int64_t j = 0; j < columns; j++) store(index, first + j, acc[j]);
  };

  const int64_t task_elements = std::max<int64_t>(1, width * std::min(part, plan.terms));
  parallel_for(groups * parts, std::max<int64_t>(1, kPart / task_elements), [&](int64_t begin, int64_t end) {
    for (int64_t task = begin; task < end; task++) {
      if (by_rows) run_row(task % parts, task / parts);
      else run_columns(task % parts, task / parts);
    }
  });
  if (parts == 1) return;
  parallel_for(plan.outputs, kPart / parts + 1, [&](int64_t begin, int64_t end) {
    for (int64_t output = begin; output < end; output++) {
      Acc acc = partial[output];
      for (int64_t i = 1; i < parts; i++) acc = policy.merge(acc, partial[i * plan.outputs + output]);
      finish(output, acc);
    }
  });
}

// Sums: double for floating types, int64 for integers.
template <class T>
struct SumPolicy {
  using Acc = std::conditional_t<std::is_floating_point_v<Compute<T>>, double, int64_t>;
  Acc start() const { return 0; }
  double center(int64_t) const { return 0; }
  Acc add(Acc acc, Compute<T> value, double) const { return acc + Acc(value); }
  Acc merge(Acc a, Acc b) const { return a + b; }
};

}  // namespace lockstep::cpu
