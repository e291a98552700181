// Loops of the CPU kernels over operands of one shape, with any strides (0 where an operand is broadcast).
//
//   cpu::map<float, float, float>(y, [](float a, float b) { return a + b; }, a, b);   // y = f(a, b),
//   broadcast to y
//
// Elements are loaded as Compute<T>, so f sees float for the 16-bit types. Work is cut as in Note [Fixed
// chunks].
#pragma once

#include <array>
#include <tuple>
#include <type_traits>
#include <utility>

#include "lockstep/runtime/parallel.h"
#include "lockstep/runtime/tensor.h"

namespace lockstep::cpu {

// Axes of one iteration over N operands: merged where every operand permits it, size-1 axes dropped, the last
// innermost. ndim >= 1.
template <int N>
struct Loop {
  Shape shape;
  std::array<Strides, N> strides;  // in elements of each operand

  int64_t inner() const { return shape.back(); }
};

template <int N>
Loop<N> make_loop(const Shape& shape, const std::array<const Tensor*, N>& operands) {
  Loop<N> loop;
  std::array<Strides, N> full;
  for (int k = 0; k < N; k++) {
    const Tensor& x = *operands[k];
    int lead = shape.size() - x.ndim();
    LOCKSTEP_ASSERT(lead >= 0, "operand ", x.shape(), " for loop ", shape);
    full[k] = Strides(shape.size(), 0);
    for (int i = 0; i < x.ndim(); i++) {
      LOCKSTEP_ASSERT(x.shape()[i] == shape[lead + i] || x.shape()[i] == 1, "operand ", x.shape(),
                      " for loop ", shape);
      full[k][lead + i] = x.shape()[i] == 1 ? 0 : x.strides()[i];
    }
  }
  for (int i = 0; i < shape.size(); i++) {
    if (shape[i] == 1) continue;
    bool merge = !loop.shape.empty();
    for (int k = 0; k < N && merge; k++) merge = loop.strides[k].back() == full[k][i] * shape[i];
    if (merge) {
      loop.shape[loop.shape.size() - 1] *= shape[i];
      for (int k = 0; k < N; k++) loop.strides[k][loop.strides[k].size() - 1] = full[k][i];
    } else {
      loop.shape.push_back(shape[i]);
      for (int k = 0; k < N; k++) loop.strides[k].push_back(full[k][i]);
    }
  }
  if (loop.shape.empty()) {
    loop.shape.push_back(1);
    for (int k = 0; k < N; k++) loop.strides[k].push_back(1);
  }
  return loop;
}

// Calls row(offsets, length) for the innermost rows of elements [begin, end) of the loop; offsets[k] is where
// operand k starts, in elements.
template <int N, class Row>
void for_rows(const Loop<N>& loop, int64_t begin, int64_t end, Row&& row) {
  int last = loop.shape.size() - 1;
  Shape index(last + 1, 0);
  std::array<int64_t, N> offsets{};
  for (int64_t i = last, rest = begin; i >= 0; i--) {
    index[int(i)] = rest % loop.shape[int(i)];
    rest /= loop.shape[int(i)];
    for (int k = 0; k < N; k++) offsets[k] += index[int(i)] * loop.strides[k][int(i)];
  }
  for (int64_t at = begin; at < end;) {
    int64_t length = std::min(loop.shape[last] - index[last], end - at);
    row(offsets, length);
    at += length;
    if (at >= end) break;
    for (int k = 0; k < N; k++) offsets[k] -= index[last] * loop.strides[k][last];
    index[last] = 0;
    for (int i = last - 1; i >= 0; i--) {
      for (int k = 0; k < N; k++) offsets[k] += loop.strides[k][i];
      if (++index[i] < loop.shape[i]) break;
      for (int k = 0; k < N; k++) offsets[k] -= loop.shape[i] * loop.strides[k][i];
      index[i] = 0;
    }
  }
}

namespace detail {

// One row. The strides that matter are made constants, so that the compiler vectorises: all 1, or one input
// constant.
template <class Out, class... In, class F, size_t... K>
inline void map_row(int64_t length, Out* y, int64_t y_stride,
                    const std::array<int64_t, sizeof...(In) + 1>& strides, F& f, std::index_sequence<K...>,
                    const In*... x) {
  using Result = Compute<Out>;
  if (y_stride == 1 && ((strides[K + 1] == 1) && ...)) {
#pragma omp simd
    for (int64_t i = 0; i < length; i++) y[i] = Out(Result(f(Compute<In>(x[i])...)));
    return;
  }
  if constexpr (sizeof...(In) == 2) {
    auto [a, b] = std::pair(x...);
    if (y_stride == 1 && strides[1] == 1 && strides[2] == 0) {
      const auto constant = Compute<std::decay_t<decltype(*b)>>(*b);
#pragma omp simd
      for (int64_t i = 0; i < length; i++)
        y[i] = Out(Result(f(Compute<std::decay_t<decltype(*a)>>(a[i]), constant)));
      return;
    }
    if (y_stride == 1 && strides[1] == 0 && strides[2] == 1) {
      const auto constant = Compute<std::decay_t<decltype(*a)>>(*a);
#pragma omp simd
      for (int64_t i = 0; i < length; i++)
        y[i] = Out(Result(f(constant, Compute<std::decay_t<decltype(*b)>>(b[i]))));
      return;
    }
  }
  for (int64_t i = 0; i < length; i++)
    y[i * y_stride] = Out(Result(f(Compute<In>(x[i * strides[K + 1]])...)));
}

}  // namespace detail

template <class Out, class... In, class F, class... Inputs>
void map(Tensor& y, F f, const Inputs&... inputs) {
  static_assert(sizeof...(In) == sizeof...(Inputs));
  constexpr int N = sizeof...(In) + 1;
  const int64_t n = y.numel();
  if (n == 0) return;
  Loop<N> loop = make_loop<N>(y.shape(), {&y, &inputs...});
  std::array<int64_t, N> strides;
  for (int k = 0; k < N; k++) strides[k] = loop.strides[k].back();
  Out* out = y.data<Out>();
  [&]<size_t... K>(std::index_sequence<K...> sequence) {
    std::tuple<const In*...> pointers{inputs.template data<In>()...};
    parallel_for(n, kElementGrain, [&](int64_t begin, int64_t end) {
      for_rows<N>(loop, begin, end, [&](const std::array<int64_t, N>& at, int64_t length) {
        detail::map_row<Out, In...>(length, out + at[0], strides[0], strides, f, sequence,
                                    (std::get<K>(pointers) + at[K + 1])...);
      });
    });
  }
  (std::make_index_sequence<sizeof...(In)>{});
}

}  // namespace lockstep::cpu
