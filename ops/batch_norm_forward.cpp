// Forward CPU kernels of batch_norm.h.
#include <cmath>
#include <limits>

#include "lockstep/ops/batch_norm.h"
#include "lockstep/ops/batch_norm_lines.h"

namespace lockstep::cpu {
namespace {

using namespace batch_norm_detail;

// Adds `rows` lines to the sums of x - centre and of its square. Four lines are summed in C before they go
// into double.
template <class T, class Rows>
inline void add_moments(const T* x, Rows rows, int64_t length, const Compute<T>* centre, double* sum,
                        double* square) {
  using C = Compute<T>;
#pragma omp simd
  for (int64_t j = 0; j < length; j++) {
    C s = 0, q = 0;
    for (int r = 0; r < rows; r++) {
      const C d = C(x[r * length + j]) - centre[j];
      s += d;
      q += d * d;
    }
    sum[j] += double(s);
    square[j] += double(q);
  }
}

// Mean and sum of squared deviations of a set of values, of which sets are merged exactly (Chan et al.).
struct Moments {
  double count = 0, mean = 0, squares = 0;
  void merge(double other_count, double other_mean, double other_squares) {
    if (other_count == 0) return;
    const double total = count + other_count, delta = other_mean - mean;
    squares += other_squares + delta * delta * count * other_count / total;
    mean += delta * other_count / total;
    count = total;
  }
};

template <class T>
std::vector<Moments> channel_moments(const Tensor& x, const Lines& lines) {
  using C = Compute<T>;
  const T* in = x.data<T>();
  const size_t length = size_t(lines.length);
  struct Partial {
    std::vector<C> centre;
    std::vector<double> sum, square;
  };
  std::vector<Partial> partials(size_t(lines.chunks()));
  parallel_chunks(lines.chunks(), [&](int64_t chunk) {
    Partial& p = partials[size_t(chunk)];
    p = {std::vector<C>(length), std::vector<double>(length), std::vector<double>(length)};
    // Any centre gives the right moments; one near the mean keeps squares from cancelling.
    const int64_t begin = chunk * lines.per_chunk * lines.length,
                  first_lines = std::min<int64_t>(8, lines.per_chunk);
    const int64_t first_end = std::min(lines.elements(), begin + first_lines * lines.length);
    for (int64_t i = begin; i < first_end; i += lines.length)
      for (int64_t j = 0; j < std::min(lines.length, first_end - i); j++)
        p.centre[size_t(j)] += C(in[i + j]) / C(first_lines);
    lines.for_groups(chunk, [&](int64_t at, auto rows, int64_t n) {
      add_moments(in + at, rows, n, p.centre.data(), p.sum.data(), p.square.data());
    });
  });
  std::vector<Moments> moments(size_t(lines.channels));
  for (int64_t chunk = 0; chunk < lines.chunks(); chunk++) {
    const Partial& p = partials[size_t(chunk)];
    const int64_t elements =
        std::min(lines.elements() - chunk * lines.per_chunk * lines.length, lines.per_chunk * lines.length);
    for (int64_t j = 0; j < lines.length; j++) {
      const double n = double((elements - j + lines.length - 1) / lines.length), s = p.sum[size_t(j)];
      if (n > 0)
        moments[size_t(j % lines.channels)].merge(n, double(p.centre[size_t(j)]) + s / n,
                                                  p.square[size_t(j)] - s * s / n);
    }
  }
  return moments;
}

void set_statistics(const std::vector<double>& means, const std::vector<double>& vars, double eps,
                    Tensor& mean, Tensor& rstd) {
  std::copy(means.begin(), means.end(), mean.data<double>());
  for (size_t c = 0; c < vars.size(); c++) rstd.data<double>()[c] = 1 / std::sqrt(vars[c] + eps);
}

void update_running(Tensor& running, const std::vector<double>& batch, double momentum) {
  std::vector<double> values = running.to_vector<double>();
  for (size_t c = 0; c < values.size(); c++) values[c] = (1 - momentum) * values[c] + momentum * batch[c];
  store_channels(values, running);
}

}  // namespace

void batch_norm_statistics(const Tensor& x, Tensor& mean, Tensor& rstd, Tensor& running_mean,
                           Tensor& running_var, double momentum, double eps, Stream) {
  const Lines lines(x);
  std::vector<Moments> moments;
  dispatch_float(x.dtype(), [&]<class T>() { moments = channel_moments<T>(x, lines); });
  std::vector<double> means, biased, unbiased;
  for (const Moments& m : moments) {
    const double squares = std::max(m.squares, 0.0);
    means.push_back(m.mean);
    biased.push_back(squares / m.count);
    unbiased.push_back(squares / (m.count - 1));
  }
  set_statistics(means, biased, eps, mean, rstd);
  if (!running_mean.defined()) return;
  update_running(running_mean, means, momentum);
  update_running(running_var, unbiased, momentum);
}

void batch_norm_running_statistics(const Tensor& running_mean, const Tensor& running_var, Tensor& mean,
                                   Tensor& rstd, double eps, Stream) {
  set_statistics(running_mean.to_vector<double>(), running_var.to_vector<double>(), eps, mean, rstd);
}

void batch_norm_forward(const Tensor& x, const Tensor& residual, const Tensor& weight, const Tensor& bias,
                        const Tensor& mean, const Tensor& rstd, Activation activation, Tensor& y, Stream) {
  const Lines lines(x);
  dispatch_float(x.dtype(), [&]<class T>() {
    using C = Compute<T>;
    const Normalizer<C> normalizer(lines, weight, bias, mean, rstd);
    const C *high = normalizer.high.data(), *scale = normalizer.scale.data(),
            *shift = normalizer.shift.data();
    const T *in = x.data<T>(), *added = residual.defined() ? residual.data<T>() : nullptr;
    T* out = y.data<T>();
    const C floor = activation == Activation::relu ? C(0) : -std::numeric_limits<C>::infinity();
    parallel_chunks(lines.chunks(), [&](int64_t chunk) {
      lines.for_groups(chunk, [&](int64_t at, auto rows, int64_t length) {
        for (int64_t i = at; i < at + rows * length; i += length)
          if (added) {
#pragma omp simd
            for (int64_t j = 0; j < length; j++) {
              const C z = (C(in[i + j]) - high[j]) * scale[j] + shift[j] + C(added[i + j]);
              store(out + i + j, z < floor ? floor : z);
            }
          } else {
#pragma omp simd
            for (int64_t j = 0; j < length; j++) {
              const C z = (C(in[i + j]) - high[j]) * scale[j] + shift[j];
              store(out + i + j, z < floor ? floor : z);
            }
          }
      });
    });
  });
}

}  // namespace lockstep::cpu
