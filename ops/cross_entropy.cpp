#include "lockstep/ops/cross_entropy.h"

#include <cmath>
#include <vector>

#include "lockstep/ops/softmax_rows.h"
#include "lockstep/runtime/autograd.h"

namespace lockstep {
namespace {

void check(const Tensor& logits, const Tensor& labels, const CrossEntropyOptions& options) {
  constexpr const char* op = "[cross_entropy] ";
  LOCKSTEP_CHECK(is_floating(logits.dtype()), op, "logits of dtype ", logits.dtype(),
                 ", expected a floating dtype");
  LOCKSTEP_CHECK(
      labels.dtype() == DType::int64 || labels.dtype() == DType::int32 || labels.dtype() == DType::uint8, op,
      "labels of dtype ", labels.dtype(), ", expected int64, int32 or uint8");
  LOCKSTEP_CHECK(logits.ndim() >= 1 && logits.shape().back() >= 1, op, "logits of shape ", logits.shape(),
                 ", expected [..., classes] with at least one class");
  Shape rows = logits.shape();
  rows.erase(rows.size() - 1);
  LOCKSTEP_CHECK(labels.shape() == rows, op, "labels of shape ", labels.shape(), ", expected ", rows,
                 " for logits of shape ", logits.shape());
  LOCKSTEP_CHECK(options.label_smoothing >= 0 && options.label_smoothing <= 1, op, "label smoothing ",
                 options.label_smoothing, ", expected 0 to 1");
  check_same_device("cross_entropy", {&logits, &labels});
  if (!options.weight.defined()) return;
  check_same_device("cross_entropy", {&logits, &options.weight});
  LOCKSTEP_CHECK(options.weight.shape() == Shape{logits.shape().back()}, op, "weight of shape ",
                 options.weight.shape(), ", expected one per class for logits of shape ", logits.shape());
  LOCKSTEP_CHECK(options.weight.dtype() == logits.dtype(), op, "weight of dtype ", options.weight.dtype(),
                 ", expected that of the logits, ", logits.dtype());
  LOCKSTEP_CHECK(!needs_grad({options.weight}), op, "weight requires a gradient, expected a constant");
}

}  // namespace

Tensor cross_entropy(const Tensor& logits, const Tensor& labels, const CrossEntropyOptions& options) {
  check(logits, labels, options);
  const Device device = logits.device();
  const int64_t rows = labels.numel();
  Tensor x = logits.detach().contiguous(), y = labels.contiguous();
  CrossEntropyOptions o = options;
  if (o.weight.defined()) o.weight = o.weight.detach().contiguous();
  Tensor loss = empty(o.reduction == Reduction::none ? labels.shape() : Shape{}, x.dtype(), device);
  Tensor statistics = empty({rows, 2}, compute_dtype(x.dtype()), device);
  Tensor total_weight = empty({}, DType::float64, device);
  LOCKSTEP_DISPATCH(current_stream(device), cross_entropy_forward, x, y, o, loss, statistics, total_weight);
  const Saved weight = o.weight.defined() ? Saved(o.weight) : Saved();
  o.weight = {};  // kept by `weight`, which checks it
  return record(
      "cross_entropy", loss, {logits},
      [x = Saved(x), y = Saved(y), weight, o, statistics, total_weight](const Tensor& dy) -> Tensors {
        CrossEntropyOptions options = o;
        if (weight.defined()) options.weight = weight.get();
        Tensor dx = empty_like(x);
        LOCKSTEP_DISPATCH(current_stream(dy.device()), cross_entropy_backward, dy.contiguous(), x, y, options,
                          statistics, total_weight, dx);
        return {dx};
      });
}

namespace cpu {
namespace {

// Calls f.operator()<T, L>() with the types of the logits and the labels.
template <class F>
void dispatch(const Tensor& logits, const Tensor& labels, F&& f) {
  dispatch_float(logits.dtype(), [&]<class T>() {
    dispatch_index(labels.dtype(), [&]<class L>() { f.template operator()<T, L>(); });
  });
}

template <class T>
double weight_sum(const T* weight, int64_t classes) {
  if (!weight) return double(classes);
  double sum = 0;
  for (int64_t c = 0; c < classes; c++) sum += double(weight[c]);
  return sum;
}

// sum_c w_c (-log p_c), with log p_c = x_c - max - log_sum.
template <class T>
double smooth_loss(const T* __restrict x, const T* __restrict weight, double weights, int64_t classes,
                   double max, double log_sum) {
  double sum = 0;
  if (weight) {
#pragma omp simd reduction(+ : sum)
    for (int64_t c = 0; c < classes; c++) sum += double(weight[c]) * (max - double(x[c]));
  } else {
#pragma omp simd reduction(+ : sum)
    for (int64_t c = 0; c < classes; c++) sum += max - double(x[c]);
  }
  return sum + weights * log_sum;
}

}  // namespace

void cross_entropy_forward(const Tensor& logits, const Tensor& labels, const CrossEntropyOptions& options,
                           Tensor& loss, Tensor& statistics, Tensor& total_weight, Stream) {
  dispatch(logits, labels, [&]<class T, class L>() {
    using C = Compute<T>;
    const int64_t classes = logits.shape().back(), rows = labels.numel(), grain = softmax_grain(classes);
    const T *all_x = logits.data<T>(),
            *weight = options.weight.defined() ? options.weight.data<T>() : nullptr;
    const L* label = labels.data<L>();
    C* statistic = statistics.data<C>();
    T* y = loss.data<T>();
    const double smoothing = options.label_smoothing, weights = weight_sum(weight, classes);
    struct Partial {
      double loss = 0, weight = 0;
    };
    std::vector<Partial> partials(size_t((rows + grain - 1) / grain));
    parallel_for(rows, grain, [&](int64_t begin, int64_t end) {
      Partial sum;
      for (int64_t r = begin; r < end; r++) {
        const int64_t k = int64_t(label[r]);
        const bool ignored = k == options.ignore_index;
        LOCKSTEP_CHECK(ignored || (0 <= k && k < classes), "[cross_entropy] label ", k, " in row ", r,
                       ", expected 0 to ", classes - 1, " (or ignore_index, ", options.ignore_index,
                       ") for logits of shape ", logits.shape());
        double row_loss = 0;
        if (!ignored) {
          const T* x = all_x + r * classes;
          const C max = row_max(x, classes);
          const double sum_exp = row_sum_exp(x, classes, max), log_sum = std::log(sum_exp);
          statistic[2 * r] = max;
          statistic[2 * r + 1] = C(1 / sum_exp);
          const double w = weight ? double(weight[k]) : 1;
          row_loss = (1 - smoothing) * w * (log_sum - (double(x[k]) - double(max)));
          if (smoothing != 0)
            row_loss +=
                smoothing / double(classes) * smooth_loss(x, weight, weights, classes, double(max), log_sum);
          sum.weight += w;
        }
        sum.loss += row_loss;
        if (options.reduction == Reduction::none) y[r] = T(C(row_loss));
      }
      partials[size_t(begin / grain)] = sum;
    });
    Partial total;
    for (const Partial& partial : partials) {
      total.loss += partial.loss;
      total.weight += partial.weight;
    }
    *total_weight.data<double>() = total.weight;
    if (options.reduction == Reduction::sum) *y = T(C(total.loss));
    if (options.reduction == Reduction::mean) *y = T(C(total.weight == 0 ? 0 : total.loss / total.weight));
  });
}

void cross_entropy_backward(const Tensor& dy, const Tensor& logits, const Tensor& labels,
                            const CrossEntropyOptions& options, const Tensor& statistics,
                            const Tensor& total_weight, Tensor& dx, Stream) {
  dispatch(logits, labels, [&]<class T, class L>() {
    using C = Compute<T>;
    const int64_t classes = logits.shape().back(), rows = labels.numel();
    const T *all_x = logits.data<T>(), *g = dy.data<T>();
    const T* __restrict weight = options.weight.defined() ? options.weight.data<T>() : nullptr;
    const L* label = labels.data<L>();
    const C* statistic = statistics.data<C>();
    T* all_dx = dx.data<T>();
    const double smoothing = options.label_smoothing, weights = weight_sum(weight, classes);
    const double total = options.reduction == Reduction::mean ? *total_weight.data<double>() : 1;
    parallel_for(rows, softmax_grain(classes), [&](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; r++) {
        const T* __restrict x = all_x + r * classes;
        T* __restrict dx = all_dx + r * classes;
        const int64_t k = int64_t(label[r]);
        if (k == options.ignore_index || total == 0) {
          std::fill_n(dx, classes, T(0));
          continue;
        }
        const double scale = double(C(g[options.reduction == Reduction::none ? r : 0])) / total;
        const double hit = (1 - smoothing) * (weight ? double(weight[k]) : 1);  // on the label's class
        const double spread = smoothing / double(classes);                      // on every class
        const C max = statistic[2 * r], inverse = statistic[2 * r + 1];
        const C slope = C(scale * (hit + spread * weights)), shift = C(scale * spread);
        const C p_label = math::exp(C(x[k]) - max) * inverse;
        if (weight) {
#pragma omp simd
          for (int64_t c = 0; c < classes; c++)
            dx[c] = T(slope * (math::exp(C(x[c]) - max) * inverse) - shift * C(weight[c]));
        } else {
#pragma omp simd
          for (int64_t c = 0; c < classes; c++)
            dx[c] = T(slope * (math::exp(C(x[c]) - max) * inverse) - shift);
        }
        // The difference p - 1 before it is scaled, and in one rounding of T.
        const double others = spread * (double(p_label) * weights - (weight ? double(weight[k]) : 1));
        dx[k] = T(C(scale * (hit * (double(p_label) - 1) + others)));
      }
    });
  });
}

}  // namespace cpu
}  // namespace lockstep
