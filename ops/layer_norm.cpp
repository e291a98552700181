#include "lockstep/ops/layer_norm.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "lockstep/runtime/autograd.h"
#include "lockstep/runtime/parallel.h"

namespace lockstep {
namespace {

void check_parameter(const char* name, const Tensor& parameter, const Shape& shape, const Tensor& x) {
  if (!parameter.defined()) return;
  LOCKSTEP_CHECK(parameter.shape() == shape && is_floating(parameter.dtype()), "[layer_norm] ", name, " is ",
                 parameter.dtype(), " ", parameter.shape(), ", expected floating ", shape);
  check_same_device("layer_norm", {&x, &parameter});
}

}  // namespace

Tensor layer_norm(const Tensor& input, const Shape& shape, const Tensor& weight, const Tensor& bias,
                  double eps) {
  LOCKSTEP_CHECK(is_floating(input.dtype()), "[layer_norm] expected a floating-point dtype, got ",
                 input.dtype());
  LOCKSTEP_CHECK(shape.size() > 0 && shape.size() <= input.ndim() && shape.numel() > 0 &&
                     std::equal(shape.begin(), shape.end(), input.shape().end() - shape.size()),
                 "[layer_norm] got x of shape ", input.shape(), ", expected it to end in ", shape);
  LOCKSTEP_CHECK(eps >= 0, "[layer_norm] got eps ", eps, ", expected eps >= 0");
  check_parameter("weight", weight, shape, input);
  check_parameter("bias", bias, shape, input);
  const Tensor x = input.contiguous();
  Tensor y = empty_like(x), mean = empty({x.numel() / shape.numel()}, DType::float64, x.device());
  Tensor rstd = empty_like(mean);
  LOCKSTEP_DISPATCH(current_stream(x.device()), layer_norm_forward, x, weight, bias, eps, mean, rstd, y);

  auto wants = [](const Tensor& tensor) { return tensor.defined() && tensor.requires_grad(); };
  return record(
      "layer_norm", y, {x, weight, bias},
      [x = Saved(x), weight = weight.defined() ? Saved(weight) : Saved(), mean, rstd, shape,
       dx_wanted = wants(x), dweight_wanted = wants(weight), dbias_wanted = wants(bias),
       dbias_dtype = bias.defined() ? bias.dtype() : DType::float32](const Tensor& grad) -> Tensors {
        const Tensor dy = grad.contiguous(), gamma = weight.defined() ? weight.get() : Tensor();
        Tensor dx, dweight, dbias;
        if (dx_wanted) dx = empty_like(dy);
        if (dweight_wanted) dweight = empty_like(gamma);
        if (dbias_wanted) dbias = empty(shape, dbias_dtype, dy.device());
        LOCKSTEP_DISPATCH(current_stream(dy.device()), layer_norm_backward, x.get(), dy, gamma, mean, rstd,
                          dx, dweight, dbias);
        return {dx, dweight, dbias};
      });
}

namespace cpu {
namespace {

struct RowSums {
  double a = 0, b = 0;
};

// Sums what add(j, a, b) adds to a and b for j in [0, n), in one pass. 32 sums run side by side, and each
// takes 16 terms in C before they go into double.
template <class C, class F>
RowSums row_sums(int64_t n, F&& add) {
  constexpr int kLanes = 32, kQuarter = kLanes / 4, kBlock = 16 * kLanes;
  double totals_a[kQuarter] = {}, totals_b[kQuarter] = {};
  for (int64_t begin = 0; begin < n; begin += kBlock) {
    const int64_t end = std::min(n, begin + kBlock);
    C a[kLanes] = {}, b[kLanes] = {};
    int64_t j = begin;
    for (; j + kLanes <= end; j += kLanes)
#pragma omp simd
      for (int l = 0; l < kLanes; l++) add(j + l, a[l], b[l]);
    for (int l = 0; j + l < end; l++) add(j + l, a[l], b[l]);
    auto fold = [](const C* x, int l) {
      return double((x[l] + x[l + kQuarter]) + (x[l + 2 * kQuarter] + x[l + 3 * kQuarter]));
    };
#pragma omp simd
    for (int l = 0; l < kQuarter; l++) totals_a[l] += fold(a, l), totals_b[l] += fold(b, l);
  }
  RowSums total;
  for (int l = 0; l < kQuarter; l++) total.a += totals_a[l], total.b += totals_b[l];
  return total;
}

template <class C>
std::vector<C> parameter_values(const Tensor& parameter, double otherwise, int64_t length) {
  if (!parameter.defined()) return std::vector<C>(size_t(length), C(otherwise));
  const std::vector<double> values = parameter.to_vector<double>();
  return std::vector<C>(values.begin(), values.end());
}

// xhat = (x - high) * scale - shift: mean = high + low, as in Note [Centred values] of batch norm.
template <class C>
struct RowNormalizer {
  C high, scale, shift;

  RowNormalizer() = default;
  RowNormalizer(double mean, double rstd)
      : high(C(mean)), scale(C(rstd)), shift(C((mean - double(C(mean))) * rstd)) {}
  C operator()(C x) const { return (x - high) * scale - shift; }
};

struct Rows {
  int64_t length, count;
  int64_t per_chunk;  // at most 64 chunks, whose partial sums are kept

  Rows(const Tensor& x, const Tensor& mean)
      : length(mean.numel() > 0 ? x.numel() / mean.numel() : 0), count(mean.numel()) {
    per_chunk = std::max<int64_t>({1, kElementGrain / std::max<int64_t>(1, length), (count + 63) / 64});
  }
  int64_t chunks() const { return (count + per_chunk - 1) / per_chunk; }
};

void store_sums(const std::vector<std::vector<double>>& partials, Tensor& out) {
  std::vector<double> sums(size_t(out.numel()));
  for (const std::vector<double>& partial : partials)
    for (size_t j = 0; j < sums.size(); j++) sums[j] += partial[j];
  dispatch_float(out.dtype(), [&]<class T>() {
    for (size_t j = 0; j < sums.size(); j++) store(out.data<T>() + j, Compute<T>(sums[j]));
  });
}

template <class T>
void input_gradient(const T* x, const T* dy, const Compute<T>* w, const RowNormalizer<Compute<T>>& xhat,
                    int64_t length, T* dx) {
  using C = Compute<T>;
  const RowSums sums = row_sums<C>(length, [&](int64_t j, C& a, C& b) {
    const C g = C(dy[j]) * w[j];
    a += g;
    b += g * xhat(C(x[j]));
  });
  const C offset = C(sums.a / double(length)), slope = C(sums.b / double(length));
#pragma omp simd
  for (int64_t j = 0; j < length; j++)
    store(dx + j, xhat.scale * (C(dy[j]) * w[j] - offset - xhat(C(x[j])) * slope));
}

// Adds what kRows rows give to the parameters' gradients; they are summed in C before they go into double.
template <int kRows, class T>
void add_parameter_gradients(const T* x, const T* dy, const RowNormalizer<Compute<T>>* xhat, int64_t length,
                             double* dweight, double* dbias) {
  using C = Compute<T>;
#pragma omp simd
  for (int64_t j = 0; j < length; j++) {
    C w = 0, b = 0;
    for (int r = 0; r < kRows; r++) {
      const C g = C(dy[r * length + j]);
      w += g * xhat[r](C(x[r * length + j]));
      b += g;
    }
    dweight[j] += double(w);
    dbias[j] += double(b);
  }
}

}  // namespace

void layer_norm_forward(const Tensor& x, const Tensor& weight, const Tensor& bias, double eps, Tensor& mean,
                        Tensor& rstd, Tensor& y, Stream) {
  const Rows rows(x, mean);
  const int64_t length = rows.length;
  double *means = mean.data<double>(), *rstds = rstd.data<double>();
  dispatch_float(x.dtype(), [&]<class T>() {
    using C = Compute<T>;
    const std::vector<C> weights = parameter_values<C>(weight, 1, length),
                         biases = parameter_values<C>(bias, 0, length);
    const C *w = weights.data(), *b = biases.data();
    parallel_for(rows.count, rows.per_chunk, [&](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; row++) {
        const T* in = x.data<T>() + row * length;
        T* out = y.data<T>() + row * length;
        const double n = double(length);
        const C high = C(row_sums<C>(length, [&](int64_t j, C& a, C&) { a += C(in[j]); }).a / n);
        const RowSums sums = row_sums<C>(length, [&](int64_t j, C& a, C& b) {
          const C centred = C(in[j]) - high;
          a += centred;
          b += centred * centred;
        });
        const double low = sums.a / n;
        means[row] = double(high) + low;
        rstds[row] = 1 / std::sqrt(std::max(sums.b / n - low * low, 0.0) + eps);
        const RowNormalizer<C> xhat(means[row], rstds[row]);
#pragma omp simd
        for (int64_t j = 0; j < length; j++) store(out + j, xhat(C(in[j])) * w[j] + b[j]);
      }
    });
  });
}

void layer_norm_backward(const Tensor& x, const Tensor& dy, const Tensor& weight, const Tensor& mean,
                         const Tensor& rstd, Tensor& dx, Tensor& dweight, Tensor& dbias, Stream) {
  constexpr int kGroup = 4;
  const Rows rows(x, mean);
  const int64_t length = rows.length;
  const bool parameters = dweight.defined() || dbias.defined();
  std::vector<std::vector<double>> dweights(size_t(rows.chunks())), dbiases(dweights);
  dispatch_float(x.dtype(), [&]<class T>() {
    using C = Compute<T>;
    const std::vector<C> weights = parameter_values<C>(weight, 1, length);
    const T *in = x.data<T>(), *grad = dy.data<T>();
    T* out = dx.defined() ? dx.data<T>() : nullptr;
    parallel_chunks(rows.chunks(), [&](int64_t chunk) {
      std::vector<double>&chunk_dweight = dweights[size_t(chunk)], &chunk_dbias = dbiases[size_t(chunk)];
      if (parameters) {
        chunk_dweight.resize(size_t(length));
        chunk_dbias.resize(size_t(length));
      }
      const int64_t end = std::min(rows.count, (chunk + 1) * rows.per_chunk);
      for (int64_t row = chunk * rows.per_chunk; row < end; row += kGroup) {
        const int64_t group = std::min<int64_t>(kGroup, end - row), at = row * length;
        RowNormalizer<C> xhat[kGroup];
        for (int64_t r = 0; r < group; r++) {
          xhat[r] = RowNormalizer<C>(mean.data<double>()[row + r], rstd.data<double>()[row + r]);
          const int64_t i = at + r * length;
          if (out) input_gradient(in + i, grad + i, weights.data(), xhat[r], length, out + i);
        }
        if (!parameters) continue;
        double *dw = chunk_dweight.data(), *db = chunk_dbias.data();
        if (group == kGroup) {
          add_parameter_gradients<kGroup>(in + at, grad + at, xhat, length, dw, db);
        } else {
          for (int64_t r = 0; r < group; r++)
            add_parameter_gradients<1>(in + at + r * length, grad + at + r * length, xhat + r, length, dw,
                                       db);
        }
      }
    });
  });
  if (dweight.defined()) store_sums(dweights, dweight);
  if (dbias.defined()) store_sums(dbiases, dbias);
}

}  // namespace cpu
}  // namespace lockstep
