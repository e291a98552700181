// Loops of the CPU kernels over operands of any strides, broadcast and converted.
//
//   cpu::map<float, float, float>(y, [](float a, float b) { return a + b; }, a, b);   // y = f(a, b)
//
// Elements are loaded as Compute<T>, so f sees float for the 16-bit types. An input may be a double instead
// of a tensor: the same value everywhere, not rounded to its T. Work is cut as in Note [Fixed chunks].
//
// Note [Blocks]. f runs over short contiguous blocks of the row-major order of y. An operand that is laid out
// like that is used where it lies; any other one (strided, broadcast, 16-bit) is first gathered into a block
// on the stack, which stays in the first-level cache. So one vectorised loop per f serves all strides and
// dtypes.
#pragma once

#include <algorithm>
#include <tuple>
#include <type_traits>
#include <utility>

#include "lockstep/runtime/parallel.h"
#include "lockstep/runtime/tensor.h"

namespace lockstep::cpu {

// How one operand is walked in the row-major order of a shape to which it broadcasts: axes merged where the
// strides permit it, size-1 axes dropped, the last innermost. At least one axis.
struct Loop {
  Shape shape;
  Strides strides;  // in elements, 0 where broadcast
};
Loop merge_axes(const Shape& shape, const Strides& strides);
Loop make_loop(const Tensor& x, const Shape& shape);

// Calls row(offset, length) for the innermost rows of elements [begin, end) of the loop; offset is where a
// row starts, in elements.
template <class Row>
void for_rows(const Loop& loop, int64_t begin, int64_t end, Row&& row) {
  const int last = loop.shape.size() - 1;
  int64_t index[Shape::kMaxDims], offset = 0, rest = begin;
  for (int i = last; i > 0; i--) {
    index[i] = rest % loop.shape[i];
    rest /= loop.shape[i];
    offset += index[i] * loop.strides[i];
  }
  index[0] = rest;
  offset += rest * loop.strides[0];
  while (true) {
    int64_t length = std::min(loop.shape[last] - index[last], end - begin);
    row(offset, length);
    begin += length;
    if (begin >= end) return;
    offset -= index[last] * loop.strides[last];
    index[last] = 0;
    for (int i = last - 1; i >= 0; i--) {
      offset += loop.strides[i];
      if (++index[i] < loop.shape[i]) break;
      offset -= loop.shape[i] * loop.strides[i];
      index[i] = 0;
    }
  }
}

// Conversion of contiguous elements. This and the next two are defined for every dtype in elementwise.cpp.
template <class T>
void load(const T* x, int64_t n, Compute<T>* y);
// block[i] = element begin + i of the loop over x, and back.
template <class T>
void gather(const Loop& loop, const T* x, int64_t begin, int64_t n, Compute<T>* block);
template <class T>
void scatter(const Loop& loop, const Compute<T>* block, int64_t begin, int64_t n, T* y);

namespace detail {

inline constexpr int64_t kBlock = 256;

template <class T>
struct Block {
  alignas(64) Compute<T> values[kBlock];
};

// x converted into `buffer`, or x itself where T is computed as it is.
template <class T>
const Compute<T>* in_compute_type(const T* x, int64_t n, Compute<T>* buffer) {
  if constexpr (std::is_same_v<T, Compute<T>>) {
    return x;
  } else {
    load(x, n, buffer);
    return buffer;
  }
}

template <class T>
bool lies_like(const Shape& shape, const Tensor& x) {
  return std::is_same_v<T, Compute<T>> && x.shape() == shape && x.is_contiguous();
}
template <class T>
bool lies_like(const Shape&, double) {
  return false;
}

template <class T>
class Source {
 public:
  Source(const Shape& shape, const Tensor& x)
      : data_(x.data<T>()),
        in_place_(lies_like<T>(shape, x)),
        loop_(in_place_ ? Loop() : make_loop(x, shape)) {}
  Source(const Shape&, double constant) : constant_(Compute<T>(constant)) {}

  const Compute<T>* block(int64_t begin, int64_t n, Compute<T>* buffer) const {
    if constexpr (std::is_same_v<T, Compute<T>>)
      if (in_place_) return data_ + begin;
    if (data_) gather(loop_, data_, begin, n, buffer);
    else std::fill(buffer, buffer + n, constant_);
    return buffer;
  }

 private:
  const T* data_ = nullptr;
  bool in_place_ = false;
  Compute<T> constant_{};
  Loop loop_;
};

template <class T>
class Target {
 public:
  explicit Target(Tensor& y)
      : data_(y.data<T>()),
        in_place_(lies_like<T>(y.shape(), y)),
        loop_(in_place_ ? Loop() : make_loop(y, y.shape())) {}

  Compute<T>* block(int64_t begin, Compute<T>* buffer) const {
    if constexpr (std::is_same_v<T, Compute<T>>)
      if (in_place_) return data_ + begin;
    return buffer;
  }
  void store(int64_t begin, int64_t n, const Compute<T>* buffer) const {
    if (!in_place_) scatter(loop_, buffer, begin, n, data_);
  }

 private:
  T* data_;
  bool in_place_;
  Loop loop_;
};

template <class Out, class... In, class... Inputs>
void map_blocks(Tensor& y, FunctionRef<void(int64_t, Compute<Out>*, const Compute<In>*...)> body,
                const Inputs&... inputs) {
  const int64_t n = y.numel();
  if (lies_like<Out>(y.shape(), y) && (lies_like<In>(y.shape(), inputs) && ...)) {
    if constexpr (std::is_same_v<Out, Compute<Out>> && (std::is_same_v<In, Compute<In>> && ...) &&
                  (std::is_same_v<Inputs, Tensor> && ...)) {
      Out* out = y.data<Out>();
      std::tuple<const In*...> in{inputs.template data<In>()...};
      parallel_for(n, kElementGrain, [&](int64_t begin, int64_t end) {
        std::apply([&](const In*... x) { body(end - begin, out + begin, (x + begin)...); }, in);
      });
      return;
    }
  }
  const Target<Out> target(y);
  const std::tuple<Source<In>...> sources{Source<In>(y.shape(), inputs)...};
  parallel_for(n, kElementGrain, [&](int64_t begin, int64_t end) {
    Block<Out> out;
    std::tuple<Block<In>...> in;
    [&]<size_t... K>(std::index_sequence<K...>) {
      for (int64_t at = begin; at < end; at += kBlock) {
        const int64_t length = std::min(kBlock, end - at);
        body(length, target.block(at, out.values),
             std::get<K>(sources).block(at, length, std::get<K>(in).values)...);
        target.store(at, length, out.values);
      }
    }
    (std::index_sequence_for<In...>{});
  });
}

// Not inlined, so that it is compiled once for all dtypes computed in the same type.
template <class F, class Out, class... In>
[[gnu::noinline]] void compute(int64_t n, F& f, Out* out, const In*... in) {
#pragma omp simd
  for (int64_t i = 0; i < n; i++) out[i] = Out(f(in[i]...));
}

}  // namespace detail

// y = f(inputs...), each a tensor of dtype In that broadcasts to y, or a double. y may be one of the inputs.
template <class Out, class... In, class F, class... Inputs>
void map(Tensor& y, F f, const Inputs&... inputs) {
  static_assert(sizeof...(In) == sizeof...(Inputs));
  if (y.numel() == 0) return;
  detail::map_blocks<Out, In...>(
      y, [&f](int64_t n, Compute<Out>* out, const Compute<In>*... in) { detail::compute(n, f, out, in...); },
      inputs...);
}

}  // namespace lockstep::cpu
