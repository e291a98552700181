#include "lockstep/runtime/primitives.h"

#include <cstring>

#include "lockstep/runtime/elementwise.h"

namespace lockstep {

Tensor sum_to_shape(const Tensor& x, const Shape& shape) {
  if (x.shape() == shape) return x;
  Tensor y = empty(shape, x.dtype(), x.device());
  LOCKSTEP_DISPATCH(current_stream(x.device()), sum_to, x, y);
  return y;
}

namespace cpu {

void fill(Tensor& y, double value, Stream) {
  dispatch_all(y.dtype(), [&]<class T>() { map<T>(y, [v = Compute<T>(value)] { return v; }); });
}

void copy(const Tensor& x, Tensor& y, Stream) {
  if (x.dtype() == y.dtype() && x.shape() == y.shape() && x.is_contiguous() && y.is_contiguous()) {
    if (y.numel() == 0) return;
    const char* from = static_cast<const char*>(x.raw_data());
    char* to = static_cast<char*>(y.raw_data());
    parallel_for(int64_t(x.bytes()), 8 * kElementGrain, [&](int64_t begin, int64_t end) {
      std::memcpy(to + begin, from + begin, size_t(end - begin));
    });
    return;
  }
  dispatch_all(y.dtype(), [&]<class Out>() {
    dispatch_all(x.dtype(), [&]<class In>() {
      map<Out, In>(
          y, [](auto v) { return Compute<Out>(v); }, x);
    });
  });
}

void accumulate(const Tensor& x, double alpha, Tensor& y, Stream) {
  LOCKSTEP_CHECK(x.dtype() == y.dtype(), "[accumulate] ", x.dtype(), " onto ", y.dtype());
  dispatch_all(y.dtype(), [&]<class T>() {
    if constexpr (std::is_same_v<T, bool>) {
      throw_error("[accumulate] bool tensors cannot be added");
    } else {
      map<T, T, T>(
          y, [a = Compute<T>(alpha)](auto sum, auto term) { return sum + a * term; }, y, x);
    }
  });
}

void scale(Tensor& y, double factor, Stream) {
  dispatch_float(y.dtype(), [&]<class T>() {
    map<T, T>(
        y, [f = Compute<T>(factor)](auto v) { return v * f; }, y);
  });
}

void sum_to(const Tensor& x, Tensor& y, Stream) {
  const int lead = x.ndim() - y.ndim();
  Tensor rows = x;  // the summed axes moved to the end, the kept ones first
  Shape kept, summed, axes;
  for (int i = 0; i < x.ndim(); i++)
    if (i >= lead && y.shape()[i - lead] == x.shape()[i]) kept.push_back(i);
    else summed.push_back(i);
  for (int64_t axis : kept) axes.push_back(axis);
  for (int64_t axis : summed) axes.push_back(axis);
  rows = x.detach().permute(axes).reshape(
      {y.numel(), y.numel() ? x.numel() / std::max<int64_t>(y.numel(), 1) : 0});
  const int64_t length = rows.shape()[1];
  dispatch_all(x.dtype(), [&]<class T>() {
    using Sum = std::conditional_t<std::is_floating_point_v<Compute<T>>, double, int64_t>;
    const T* in = rows.data<T>();
    T* out = y.data<T>();
    const int64_t row_stride = rows.strides()[0], stride = rows.strides()[1];
    parallel_for(y.numel(), std::max<int64_t>(1, kElementGrain / std::max<int64_t>(length, 1)),
                 [&](int64_t begin, int64_t end) {
                   for (int64_t i = begin; i < end; i++) {
                     Sum sum = 0;
                     for (int64_t j = 0; j < length; j++)
                       sum += Sum(Compute<T>(in[i * row_stride + j * stride]));
                     out[i] = T(Compute<T>(sum));
                   }
                 });
  });
}

void has_nan(const Tensor& x, bool& found, Stream) {
  dispatch_float(x.dtype(), [&]<class T>() {
    Tensor values = x.detach().contiguous();
    const T* in = values.data<T>();
    std::atomic<bool> any{false};
    parallel_for(values.numel(), kElementGrain, [&](int64_t begin, int64_t end) {
      bool here = false;
      for (int64_t i = begin; i < end; i++) here |= Compute<T>(in[i]) != Compute<T>(in[i]);
      if (here) any.store(true, std::memory_order_relaxed);
    });
    found = any.load();
  });
}

}  // namespace cpu
}  // namespace lockstep
