#include "lockstep/runtime/primitives.h"

#include <cstring>

#include "lockstep/runtime/elementwise.h"
#include "lockstep/runtime/reduction.h"

namespace lockstep {

Tensor sum_to_shape(const Tensor& x, const Shape& shape) {
  if (x.shape() == shape) return x;
  Tensor y = empty(shape, x.dtype(), x.device());
  LOCKSTEP_DISPATCH(current_stream(x.device()), sum_to, x, 1.0, y);
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

void sum_to(const Tensor& x, double divisor, Tensor& y, Stream) {
  const int lead = x.ndim() - y.ndim();
  std::array<bool, Shape::kMaxDims> reduced{};
  for (int i = 0; i < x.ndim(); i++) reduced[size_t(i)] = i < lead || y.shape()[i - lead] != x.shape()[i];
  const ReductionPlan plan = plan_reduction(x, reduced);
  dispatch_all(x.dtype(), [&]<class T>() {
    T* out = y.data<T>();
    reduce<T>(x, plan, SumPolicy<T>(), [=](int64_t i, auto sum) {
      if constexpr (std::is_same_v<decltype(sum), double>) out[i] = T(Compute<T>(sum / divisor));
      else out[i] = T(sum);
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
