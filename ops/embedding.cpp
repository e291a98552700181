#include "lockstep/ops/embedding.h"

#include <array>
#include <cstring>
#include <vector>

#include "lockstep/runtime/autograd.h"
#include "lockstep/runtime/parallel.h"

namespace lockstep {

Tensor embedding(const Tensor& weight, const Tensor& indices, int64_t padding_idx) {
  LOCKSTEP_CHECK(is_floating(weight.dtype()) && weight.ndim() == 2, "[embedding] weight of shape ",
                 weight.shape(), " and dtype ", weight.dtype(),
                 ", expected [rows, features] of a floating dtype");
  LOCKSTEP_CHECK(
      indices.dtype() == DType::int64 || indices.dtype() == DType::int32 || indices.dtype() == DType::uint8,
      "[embedding] indices of dtype ", indices.dtype(), ", expected int64, int32 or uint8");
  LOCKSTEP_CHECK(-1 <= padding_idx && padding_idx < weight.size(0), "[embedding] padding_idx ", padding_idx,
                 ", expected -1 (none) to ", weight.size(0) - 1, " for a weight of shape ", weight.shape());
  check_same_device("embedding", {&weight, &indices});
  Tensor i = indices.to(DType::int64).contiguous();
  Shape shape = indices.shape();
  shape.push_back(weight.size(1));
  Tensor y = empty(shape, weight.dtype(), weight.device());
  LOCKSTEP_DISPATCH(current_stream(weight.device()), embedding_forward, weight.detach().contiguous(), i, y);
  return record("embedding", y, {weight},
                [i = Saved(i), padding_idx, shape = weight.shape()](const Tensor& dy) -> Tensors {
                  Tensor dweight = empty(shape, dy.dtype(), dy.device());
                  LOCKSTEP_DISPATCH(current_stream(dy.device()), embedding_backward, dy.contiguous(), i,
                                    padding_idx, dweight);
                  return {dweight};
                });
}

namespace cpu {

void embedding_forward(const Tensor& weight, const Tensor& indices, Tensor& y, Stream) {
  const int64_t rows = weight.shape()[0], features = weight.shape()[1];
  const size_t row_bytes = size_t(features) * element_size(weight.dtype());
  const char* from = static_cast<const char*>(weight.raw_data());
  char* to = static_cast<char*>(y.raw_data());
  const int64_t* index = indices.data<int64_t>();
  const int64_t grain = std::max<int64_t>(1, kElementGrain / std::max<int64_t>(1, features));
  parallel_for(indices.numel(), grain, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; i++) {
      LOCKSTEP_CHECK(0 <= index[i] && index[i] < rows, "[embedding] index ", index[i], " at position ", i,
                     " of indices of shape ", indices.shape(), ", expected 0 to ", rows - 1,
                     " for a weight of shape ", weight.shape());
      if (row_bytes != 0)
        std::memcpy(to + size_t(i) * row_bytes, from + size_t(index[i]) * row_bytes, row_bytes);
    }
  });
}

void embedding_backward(const Tensor& dy, const Tensor& indices, int64_t padding_idx, Tensor& dweight,
                        Stream) {
  const int64_t rows = dweight.shape()[0], features = dweight.shape()[1], n = indices.numel();
  const int64_t* index = indices.data<int64_t>();
  // The positions at which each row was taken, by a counting sort: ends[v] is where those of row v end.
  std::vector<int64_t> ends(size_t(rows) + 1), positions(static_cast<size_t>(n));
  for (int64_t i = 0; i < n; i++) ends[size_t(index[i]) + 1]++;
  for (size_t v = 1; v < ends.size(); v++) ends[v] += ends[v - 1];
  for (int64_t i = 0; i < n; i++) positions[size_t(ends[size_t(index[i])]++)] = i;

  dispatch_float(dweight.dtype(), [&]<class T>() {
    const T* from = dy.data<T>();
    T* to = dweight.data<T>();
    const int64_t grain = std::max<int64_t>(1, kElementGrain / std::max<int64_t>(1, features));
    parallel_for(rows, grain, [&](int64_t begin, int64_t end) {
      constexpr int64_t kBlock = 512;  // columns added up at a time, in the first-level cache
      std::array<double, kBlock> sums;
      for (int64_t v = begin; v < end; v++) {
        const int64_t first = v == 0 ? 0 : ends[size_t(v - 1)],
                      last = v == padding_idx ? first : ends[size_t(v)];
        for (int64_t column = 0; column < features; column += kBlock) {
          const int64_t width = std::min(kBlock, features - column);
          std::fill_n(sums.begin(), width, 0.0);
          for (int64_t p = first; p < last; p++) {
            const T* row = from + positions[size_t(p)] * features + column;
#pragma omp simd
            for (int64_t j = 0; j < width; j++) sums[size_t(j)] += double(Compute<T>(row[j]));
          }
          T* out = to + v * features + column;
#pragma omp simd
          for (int64_t j = 0; j < width; j++) out[j] = T(Compute<T>(sums[size_t(j)]));
        }
      }
    });
  });
}

}  // namespace cpu
}  // namespace lockstep
