#include "simgpu/gemm.h"

#include <vector>

namespace simgpu {
namespace {

void add_ranges(std::vector<Range>& ranges, const Matrix& x, int64_t rows, int64_t columns, int64_t batch,
                bool write) {
  if (x.transposed) std::swap(rows, columns);
  const size_t element = size_of(x.type);
  if (rows == 0 || columns == 0) return;
  for (int64_t i = 0; i < (x.stride == 0 ? 1 : batch); ++i)
    ranges.push_back({static_cast<const char*>(x.data) + static_cast<size_t>(i * x.stride) * element,
                      static_cast<size_t>(rows) * element, write, static_cast<size_t>(columns),
                      static_cast<size_t>(x.ld) * element});
}

// op(x) as float, column-major and dense.
std::vector<float> gather(const Matrix& x, int64_t item, int64_t rows, int64_t columns) {
  std::vector<float> dense(static_cast<size_t>(rows * columns));
  const auto* base =
      static_cast<const char*>(x.data) + static_cast<size_t>(item * x.stride) * size_of(x.type);
  for (int64_t j = 0; j < columns; ++j)
    for (int64_t i = 0; i < rows; ++i)
      dense[static_cast<size_t>(j * rows + i)] = static_cast<float>(
          load(x.type, base, static_cast<size_t>(x.transposed ? i * x.ld + j : j * x.ld + i)));
  return dense;
}

}  // namespace

std::vector<Range> gemm_ranges(const Gemm& g, bool reads_c, bool reads_ab) {
  std::vector<Range> ranges;
  if (reads_ab) {
    add_ranges(ranges, g.a, g.m, g.k, g.batch, false);
    add_ranges(ranges, g.b, g.k, g.n, g.batch, false);
  }
  if (reads_c) add_ranges(ranges, g.c, g.m, g.n, g.batch, false);
  add_ranges(ranges, g.c, g.m, g.n, g.batch, true);
  return ranges;
}

void run_gemm(const Gemm& g, double alpha, double beta) {
  const bool doubles = g.c.type == Type::f64;
  std::vector<float> column(static_cast<size_t>(g.m));
  for (int64_t item = 0; item < g.batch; ++item) {
    auto* c = static_cast<char*>(const_cast<void*>(g.c.data)) +
              static_cast<size_t>(item * g.c.stride) * size_of(g.c.type);
    const auto finish = [&](int64_t i, int64_t j, double sum) {
      const auto at = static_cast<size_t>(j * g.c.ld + i);
      // beta = 0 does not read C, which may then hold NaN.
      store(g.c.type, c, at, alpha * sum + (beta == 0 ? 0 : beta * load(g.c.type, c, at)));
    };
    if (doubles) {
      const auto at = [&](const Matrix& x, int64_t row, int64_t col) {
        return load(
            x.type, x.data,
            static_cast<size_t>(item * x.stride + (x.transposed ? row * x.ld + col : col * x.ld + row)));
      };
      for (int64_t j = 0; j < g.n; ++j)
        for (int64_t i = 0; i < g.m; ++i) {
          double sum = 0;
          for (int64_t p = 0; p < g.k; ++p) sum += at(g.a, i, p) * at(g.b, p, j);
          finish(i, j, sum);
        }
      continue;
    }
    const std::vector<float> a = gather(g.a, item, g.m, g.k), b = gather(g.b, item, g.k, g.n);
    for (int64_t j = 0; j < g.n; ++j) {
      std::fill(column.begin(), column.end(), 0.0f);
      for (int64_t p = 0; p < g.k; ++p) {
        const float factor = b[static_cast<size_t>(j * g.k + p)];
        const float* from = a.data() + p * g.m;
        for (int64_t i = 0; i < g.m; ++i) column[static_cast<size_t>(i)] += from[i] * factor;
      }
      for (int64_t i = 0; i < g.m; ++i) finish(i, j, static_cast<double>(column[static_cast<size_t>(i)]));
    }
  }
}

}  // namespace simgpu
