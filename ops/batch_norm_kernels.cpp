// CPU kernels of batch_norm.h. x is a matrix of rows [rows, C].
//
// Note [Lines]. Loops run over lines: as many rows as make at least 64 elements, with the values per channel repeated
// over the line. So the inner loops are long vector loops for any C, 1 and 6 included. The last line may be shorter.
//
// Note [Centred values]. (x - mean) * scale with mean rounded to float would lose what float cannot hold of the mean. So
// mean = high + low with high a float: x - high is nearly exact where x is near the mean, and low goes into the shift.
#include <algorithm>
#include <cmath>
#include <vector>

#include "lockstep/ops/batch_norm.h"
#include "lockstep/runtime/parallel.h"

namespace lockstep::cpu {
namespace {

struct Lines {
  int64_t channels, rows;
  int64_t length;  // of a line, in elements
  int64_t count;
  int64_t per_chunk;  // at most 64 chunks, whose partial sums are kept

  explicit Lines(const Tensor& x) {
    channels = x.shape().back();
    rows = x.numel() / channels;
    length = channels * std::max<int64_t>(1, (64 + channels - 1) / channels);
    count = (x.numel() + length - 1) / length;
    per_chunk = std::max<int64_t>({1, kElementGrain / length, (count + 63) / 64});
  }
  int64_t elements() const { return rows * channels; }
  int64_t chunks() const { return (count + per_chunk - 1) / per_chunk; }

  // Calls body(offset, rows, length) for the lines of a chunk, kGroup full ones together where there are, where rows is
  // a compile-time constant.
  static constexpr int kGroup = 4;
  template <class F>
  void for_groups(int64_t chunk, F&& body) const {
    const int64_t end = std::min(elements(), (chunk + 1) * per_chunk * length);
    int64_t at = chunk * per_chunk * length;
    for (; at + kGroup * length <= end; at += kGroup * length)
      body(at, std::integral_constant<int, kGroup>(), length);
    for (; at < end; at += length) body(at, std::integral_constant<int, 1>(), std::min(length, end - at));
  }
};

// `parameter` as numbers, or `otherwise` for each channel if it is undefined.
std::vector<double> channel_values(const Tensor& parameter, double otherwise, int64_t channels) {
  return parameter.defined() ? parameter.to_vector<double>()
                             : std::vector<double>(size_t(channels), otherwise);
}

void store_channels(const std::vector<double>& values, Tensor& out) {
  dispatch_float(out.dtype(), [&]<class T>() {
    T* y = out.data<T>();
    for (size_t c = 0; c < values.size(); c++) store(y + c, Compute<T>(values[c]));
  });
}

// values(c) repeated over a line.
template <class C, class F>
std::vector<C> line_of(const Lines& lines, F&& values) {
  std::vector<C> line(size_t(lines.length));
  for (int64_t j = 0; j < lines.length; j++) line[size_t(j)] = C(values(size_t(j % lines.channels)));
  return line;
}

// What the forward pass does to an element, for a line: (x - high) * scale + shift. See Note [Centred values].
template <class C>
struct Normalizer {
  std::vector<C> high, scale, shift;

  Normalizer(const Lines& lines, const Tensor& weight, const Tensor& bias, const Tensor& mean,
             const Tensor& rstd) {
    const std::vector<double> w = channel_values(weight, 1, lines.channels),
                              b = channel_values(bias, 0, lines.channels);
    const double *m = mean.data<double>(), *r = rstd.data<double>();
    high = line_of<C>(lines, [&](size_t c) { return m[c]; });
    scale = line_of<C>(lines, [&](size_t c) { return r[c] * w[c]; });
    shift = line_of<C>(lines, [&](size_t c) { return b[c] - (m[c] - double(C(m[c]))) * r[c] * w[c]; });
  }
};

// Adds kRows lines to the sums of x - centre and of its square. Four lines are summed in C before they go into double.
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

namespace {

enum class Mask { none, from_x, from_y };  // how the backward pass knows where relu let through

// dz, the gradient before the activation, of element i = line start + j.
template <class T, Mask kMask>
struct MaskedGradient {
  using C = Compute<T>;
  const T *x, *y, *dy;
  const C *high, *scale, *shift;

  C operator()(int64_t i, int64_t j) const {
    const C value = C(dy[i]);
    if constexpr (kMask == Mask::none) return value;
    const C z = kMask == Mask::from_x ? (C(x[i]) - high[j]) * scale[j] + shift[j] : C(y[i]);
    return z <= 0 ? C(0) : value;
  }
};

struct GradientSums {
  std::vector<double> dz, dz_x;  // per channel: sum of dz, sum of dz * (x - high)
};

// Also writes dz to `dresidual` where that is not null.
template <class T, class Gradient>
GradientSums gradient_sums(const Lines& lines, const Gradient& gradient, T* dresidual) {
  using C = Compute<T>;
  const size_t length = size_t(lines.length);
  std::vector<GradientSums> partials(size_t(lines.chunks()));
  parallel_chunks(lines.chunks(), [&](int64_t chunk) {
    GradientSums& p = partials[size_t(chunk)];
    p = {std::vector<double>(length), std::vector<double>(length)};
    double *sum = p.dz.data(), *product = p.dz_x.data();
    lines.for_groups(chunk, [&, g = gradient](int64_t at, auto rows, int64_t n) {
#pragma omp simd
      for (int64_t j = 0; j < n; j++) {
        C s = 0, t = 0;
        for (int r = 0; r < rows; r++) {
          const int64_t i = at + r * n + j;
          const C dz = g(i, j);
          s += dz;
          t += dz * (C(g.x[i]) - g.high[j]);
        }
        sum[j] += double(s);
        product[j] += double(t);
      }
      if (!dresidual) return;
      for (int64_t i = at; i < at + rows * n; i += n)
#pragma omp simd
        for (int64_t j = 0; j < n; j++) store(dresidual + i + j, g(i + j, j));
    });
  });
  GradientSums sums{std::vector<double>(size_t(lines.channels)), std::vector<double>(size_t(lines.channels))};
  for (const GradientSums& p : partials)
    for (size_t j = 0; j < length; j++) {
      sums.dz[j % size_t(lines.channels)] += p.dz[j];
      sums.dz_x[j % size_t(lines.channels)] += p.dz_x[j];
    }
  return sums;
}

// dx = slope * dz + curve * (x - high) + offset.
template <class T, class Gradient>
void input_gradient(const Lines& lines, const Gradient& g, const std::vector<Compute<T>>& slopes,
                    const std::vector<Compute<T>>& curves, const std::vector<Compute<T>>& offsets, T* dx) {
  const Compute<T>*slope = slopes.data(), *curve = curves.data(), *offset = offsets.data();
  parallel_chunks(lines.chunks(), [&](int64_t chunk) {
    lines.for_groups(chunk, [&, g = g](int64_t at, auto rows, int64_t length) {
      for (int64_t i = at; i < at + rows * length; i += length)
#pragma omp simd
        for (int64_t j = 0; j < length; j++)
          store(dx + i + j,
                slope[j] * g(i + j, j) + (curve[j] * (Compute<T>(g.x[i + j]) - g.high[j]) + offset[j]));
    });
  });
}

// With xhat = (x - mean) * rstd and means over the rows:
//   dbias = sum dz, dweight = sum dz * xhat, dx = weight * rstd * (dz - mean(dz) - xhat * mean(dz * xhat)),
// where the means drop out in inference, as the statistics do not depend on x.
template <class T, Mask kMask>
void backward(const Lines& lines, const MaskedGradient<T, kMask>& gradient, const Tensor& weight,
              const Tensor& mean, const Tensor& rstd, bool training, BatchNormGradients& out) {
  using C = Compute<T>;
  const double *m = mean.data<double>(), *r = rstd.data<double>();
  const size_t channels = size_t(lines.channels);
  std::vector<double> dweight(channels), dbias(channels);
  if (training || out.dweight.defined() || out.dbias.defined() || out.dresidual.defined()) {
    GradientSums sums =
        gradient_sums(lines, gradient, out.dresidual.defined() ? out.dresidual.data<T>() : nullptr);
    dbias = sums.dz;
    for (size_t c = 0; c < channels; c++)
      dweight[c] = (sums.dz_x[c] - (m[c] - double(C(m[c]))) * sums.dz[c]) * r[c];
    if (out.dweight.defined()) store_channels(dweight, out.dweight);
    if (out.dbias.defined()) store_channels(dbias, out.dbias);
  }
  if (!out.dx.defined()) return;
  const std::vector<double> w = channel_values(weight, 1, lines.channels);
  const double batch = training ? 1 / double(lines.rows) : 0;
  auto curve = [&](size_t c) { return -w[c] * r[c] * r[c] * dweight[c] * batch; };
  const std::vector<C> slopes = line_of<C>(lines, [&](size_t c) { return w[c] * r[c]; });
  const std::vector<C> curves = line_of<C>(lines, curve);
  const std::vector<C> offsets = line_of<C>(
      lines, [&](size_t c) { return -w[c] * r[c] * dbias[c] * batch - curve(c) * (m[c] - double(C(m[c]))); });
  T* dx = out.dx.data<T>();
  if (out.dresidual.defined()) {  // that is dz: one tensor to read instead of two
    MaskedGradient<T, Mask::none> dz{gradient.x,    nullptr, out.dresidual.data<T>(),
                                     gradient.high, nullptr, nullptr};
    input_gradient(lines, dz, slopes, curves, offsets, dx);
  } else {
    input_gradient(lines, gradient, slopes, curves, offsets, dx);
  }
}

}  // namespace

void batch_norm_backward(const Tensor& x, const Tensor& y, const Tensor& dy, const Tensor& weight,
                         const Tensor& bias, const Tensor& mean, const Tensor& rstd, bool training,
                         Activation activation, BatchNormGradients& gradients, Stream) {
  const Lines lines(x);
  dispatch_float(x.dtype(), [&]<class T>() {
    const Normalizer<Compute<T>> n(lines, weight, bias, mean, rstd);
    auto run = [&]<Mask kMask>() {
      MaskedGradient<T, kMask> gradient{x.data<T>(),    y.defined() ? y.data<T>() : nullptr,
                                        dy.data<T>(),   n.high.data(),
                                        n.scale.data(), n.shift.data()};
      backward(lines, gradient, weight, mean, rstd, training, gradients);
    };
    if (activation == Activation::none) run.template operator()<Mask::none>();
    else if (y.defined()) run.template operator()<Mask::from_y>();
    else run.template operator()<Mask::from_x>();
  });
}

}  // namespace lockstep::cpu
