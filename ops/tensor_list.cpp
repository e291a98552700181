#include "lockstep/ops/tensor_list.h"

#include <numeric>

#include "lockstep/ops/flat_chunks.h"

namespace lockstep::cpu {

void sum_of_squares(std::span<const Tensor> list, double factor, double& sum, Stream) {
  FlatChunks chunks(list, [](const Tensor& x) { return x.numel(); });
  std::vector<double> sums(size_t(chunks.count()));
  parallel_chunks(chunks.count(), [&](int64_t chunk) {
    double total = 0;
    chunks.for_pieces(chunk, [&](size_t i, int64_t begin, int64_t end) {
      dispatch_float(list[i].dtype(), [&]<class T>() {
        const T* __restrict x = list[i].data<T>();
        double piece = 0;
#pragma omp simd reduction(+ : piece)
        for (int64_t k = begin; k < end; k++) {
          double scaled = factor * double(x[k]);
          piece += scaled * scaled;
        }
        total += piece;
      });
    });
    sums[size_t(chunk)] = total;
  });
  sum = std::accumulate(sums.begin(), sums.end(), 0.0);
}

void scale_list(std::span<const Tensor> list, double factor, Stream) {
  FlatChunks chunks(list, [](const Tensor& x) { return x.numel(); });
  parallel_chunks(chunks.count(), [&](int64_t chunk) {
    chunks.for_pieces(chunk, [&](size_t i, int64_t begin, int64_t end) {
      dispatch_float(list[i].dtype(), [&]<class T>() {
        T* __restrict x = list[i].data<T>();
#pragma omp simd
        for (int64_t k = begin; k < end; k++) x[k] = T(Compute<T>(factor * double(x[k])));
      });
    });
  });
}

}  // namespace lockstep::cpu
