#include "lockstep/ops/gather.h"

#include <vector>

#include "lockstep/runtime/autograd.h"
#include "lockstep/runtime/parallel.h"

namespace lockstep {

Tensor gather(const Tensor& x, int64_t axis, const Tensor& index) {
  const int a = normalize_axis("gather", axis, x.shape());
  LOCKSTEP_CHECK(
      index.dtype() == DType::int64 || index.dtype() == DType::int32 || index.dtype() == DType::uint8,
      "[gather] index of dtype ", index.dtype(), ", expected int64, int32 or uint8");
  bool fits = index.ndim() == x.ndim();
  for (int d = 0; fits && d < x.ndim(); d++) fits = d == a || index.shape()[d] <= x.shape()[d];
  LOCKSTEP_CHECK(fits, "[gather] index of shape ", index.shape(), ", expected no size above that of ",
                 x.shape(), " except along axis ", a);
  check_same_device("gather", {&x, &index});
  Tensor i = index.to(DType::int64).contiguous();
  Tensor y = empty(index.shape(), x.dtype(), x.device());
  LOCKSTEP_DISPATCH(current_stream(x.device()), gather_forward, x, i, a, y);
  if (!is_floating(x.dtype())) return y;
  return record("gather", y, {x}, [i = Saved(i), a, shape = x.shape()](const Tensor& dy) -> Tensors {
    Tensor dx = zeros(shape, dy.dtype(), dy.device());
    LOCKSTEP_DISPATCH(current_stream(dy.device()), gather_backward, dy.contiguous(), i, a, dx);
    return {dx};
  });
}

namespace cpu {
namespace {

// Offset in a tensor of `strides` of the row-major `number`-th place of `shape`, its axis `skipped` left out.
int64_t offset_of(int64_t number, const Shape& shape, const Strides& strides, int skipped) {
  int64_t offset = 0;
  for (int d = shape.size() - 1; d >= 0; d--) {
    if (d == skipped) continue;
    offset += number % shape[d] * strides[d];
    number /= shape[d];
  }
  return offset;
}

}  // namespace

void gather_forward(const Tensor& x, const Tensor& index, int axis, Tensor& y, Stream) {
  if (index.numel() == 0) return;
  dispatch_all(x.dtype(), [&]<class T>() {
    const int last = index.ndim() - 1;
    const int64_t n = index.shape()[last], size = x.shape()[axis], stride = x.strides()[axis];
    const int64_t step = axis == last ? 0 : x.strides()[last];
    Strides strides = x.strides();  // of the place along every axis but `axis`
    strides[axis] = 0;
    const T* from = x.data<T>();
    const int64_t* all_indices = index.data<int64_t>();
    T* to = y.data<T>();
    parallel_for(index.numel() / n, std::max<int64_t>(1, kElementGrain / n), [&](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; row++) {
        const T* place = from + offset_of(row, index.shape(), strides, last);
        const int64_t* indices = all_indices + row * n;
        for (int64_t j = 0; j < n; j++) {
          LOCKSTEP_CHECK(0 <= indices[j] && indices[j] < size, "[gather] index ", indices[j], " at position ",
                         row * n + j, " of an index of shape ", index.shape(), ", expected 0 to ", size - 1,
                         " along axis ", axis, " of shape ", x.shape());
          to[row * n + j] = place[j * step + indices[j] * stride];
        }
      }
    });
  });
}

// Columns are the lines along the axis; one adds up in a buffer of doubles, of which only what was touched is
// cleared.
void gather_backward(const Tensor& dy, const Tensor& index, int axis, Tensor& dx, Stream) {
  if (index.numel() == 0) return;
  dispatch_float(dx.dtype(), [&]<class T>() {
    const Strides strides = contiguous_strides(index.shape()), dx_strides = contiguous_strides(dx.shape());
    const int64_t n = index.shape()[axis], step = strides[axis], size = dx.shape()[axis],
                  dx_step = dx_strides[axis];
    const int64_t* indices = index.data<int64_t>();
    const T* from = dy.data<T>();
    T* to = dx.data<T>();
    const int64_t grain = std::max<int64_t>(1, std::max(kElementGrain, size) / n);
    parallel_for(index.numel() / n, grain, [&](int64_t begin, int64_t end) {
      std::vector<double> sums(static_cast<size_t>(size));
      for (int64_t column = begin; column < end; column++) {
        const int64_t at = offset_of(column, index.shape(), strides, axis);
        T* out = to + offset_of(column, index.shape(), dx_strides, axis);
        for (int64_t i = 0; i < n; i++)
          sums[size_t(indices[at + i * step])] += double(Compute<T>(from[at + i * step]));
        for (int64_t i = 0; i < n; i++) {
          const int64_t k = indices[at + i * step];
          out[k * dx_step] = T(Compute<T>(sums[size_t(k)]));
        }
        for (int64_t i = 0; i < n; i++) sums[size_t(indices[at + i * step])] = 0;
      }
    });
  });
}

}  // namespace cpu
}  // namespace lockstep
