// Backward CPU kernel of batch_norm.h.
#include "lockstep/ops/batch_norm.h"
#include "lockstep/ops/batch_norm_lines.h"

namespace lockstep::cpu {
namespace {

using namespace batch_norm_detail;

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
