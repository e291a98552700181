#include "lockstep/ops/cross_entropy.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "lockstep/runtime/autograd.h"
#include "tests/ops/op_harness.h"

namespace lockstep {
namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();

// By the formula of the header, term by term.
Tensor naive_cross_entropy(const Tensor& logits, const Tensor& labels, const CrossEntropyOptions& options) {
  const std::vector<double> x = logits.to_vector<double>();
  const std::vector<int64_t> y = labels.to_vector<int64_t>();
  const size_t classes = size_t(logits.size(-1));
  std::vector<double> w(classes, 1), losses;
  if (options.weight.defined()) w = options.weight.to_vector<double>();
  double total = 0, total_weight = 0;
  for (size_t r = 0; r < y.size(); r++) {
    double sum = 0, loss = 0;
    for (size_t c = 0; c < classes; c++) sum += std::exp(x[r * classes + c]);
    if (y[r] != options.ignore_index) {
      for (size_t c = 0; c < classes; c++) {
        const double share = options.label_smoothing / double(classes) +
                             (int64_t(c) == y[r] ? 1 - options.label_smoothing : 0);
        loss -= share * w[c] * std::log(std::exp(x[r * classes + c]) / sum);
      }
      total_weight += w[size_t(y[r])];
    }
    total += loss;
    losses.push_back(loss);
  }
  if (options.reduction == Reduction::none) return from_vector(losses, labels.shape());
  return scalar(options.reduction == Reduction::sum ? total : total_weight == 0 ? 0 : total / total_weight);
}

// Classes 2, 0, ignored, 4, 1, 2.
const std::vector<double> kLabels{2, 0, 3, 4, 1, 2};

test::OpRow row(const char* name, CrossEntropyOptions options, bool weighted, const Shape& rows = {6}) {
  options.ignore_index = 3;
  Shape shape = rows;
  shape.push_back(5);
  auto with_weight = [options, weighted](DType dtype) {
    CrossEntropyOptions o = options;
    if (weighted) o.weight = from_vector<double>({0.5, 2, 1, 0.25, 1.5}).to(dtype);
    return o;
  };
  Tensor x = ones({2, 5}), y = arange(2);
  return {.name = name,
          .inputs = {{.shape = shape, .low = -2, .high = 2},
                     {.shape = rows, .role = test::Role::index, .values = kLabels}},
          .op =
              [=](const Tensors& x) {
                CrossEntropyOptions o = with_weight(x[0].dtype());
                if (o.weight.defined() && x[0].device().is_meta())
                  o.weight = empty({5}, x[0].dtype(), "meta");
                return cross_entropy(x[0], x[1], o);
              },
          .reference =
              [=](const Tensors& x) { return naive_cross_entropy(x[0], x[1], with_weight(DType::float64)); },
          .length = 30,
          .bad = {{"labels of shape [3], expected [2]", [=] { cross_entropy(x, arange(3)); }},
                  {"labels of dtype float32", [=] { cross_entropy(x, ones({2})); }},
                  {"logits of dtype int64", [=] { cross_entropy(arange(2), y); }},
                  {"at least one class",
                   [=] {
                     cross_entropy(ones({2, 0}), y);
                   }},
                  {"label 5 in row 1",
                   [=] {
                     cross_entropy(x, from_vector<int64_t>({0, 5}));
                   }},
                  {"label smoothing 1.5", [=] { cross_entropy(x, y, {.label_smoothing = 1.5}); }},
                  {"weight of shape [4]", [=] { cross_entropy(x, y, {.weight = ones({4})}); }},
                  {"weight of dtype float64",
                   [=] { cross_entropy(x, y, {.weight = ones({5}, DType::float64)}); }},
                  {"weight requires a gradient",
                   [=] { cross_entropy(x, y, {.weight = ones({5}).set_requires_grad()}); }},
                  {"different devices", [=] { cross_entropy(x, empty({2}, DType::int64, "meta")); }}},
          .empty_shapes = {{0, 5}, {0}}};
}

TEST(CrossEntropy, Mean) { test::check_op(row("mean", {}, false)); }
TEST(CrossEntropy, Sum) { test::check_op(row("sum", {.reduction = Reduction::sum}, false)); }
TEST(CrossEntropy, None) { test::check_op(row("none", {.reduction = Reduction::none}, false)); }
TEST(CrossEntropy, WeightedMean) { test::check_op(row("weighted", {}, true)); }
TEST(CrossEntropy, Smoothing) { test::check_op(row("smoothed", {.label_smoothing = 0.1}, false)); }
TEST(CrossEntropy, WeightedSmoothingOfPixels) {
  test::check_op(row("pixels", {.label_smoothing = 0.3, .reduction = Reduction::none}, true, {2, 3}));
}
TEST(CrossEntropy, WeightedSmoothingMean) { test::check_op(row("both", {.label_smoothing = 0.3}, true)); }

// Printed by PyTorch 2.13 in float64.
TEST(CrossEntropy, ValuesOfPyTorch) {
  const Tensor w = from_vector<double>({0.5, 2, 1, 0.25}), y = from_vector<int32_t>({2, -100, 1});
  Tensor x = from_vector<double>({0.5, -1.2, 2.0, 0.3, 1.5, 0.1, -0.7, 0.9, -2.0, 0.4, 0.8, -0.1}, {3, 4});
  x.set_requires_grad();
  EXPECT_NEAR(cross_entropy(x, y).item(), 0.7644648418660258, 1e-14);
  EXPECT_NEAR(cross_entropy(x, y, {.weight = w}).item(), 0.896220020031695, 1e-14);
  EXPECT_NEAR(cross_entropy(x, y, {.label_smoothing = 0.1}).item(), 0.8757148418660258, 1e-14);
  Tensor loss = cross_entropy(x, y, {.weight = w, .label_smoothing = 0.1});
  EXPECT_NEAR(loss.item(), 0.9252104039784854, 1e-14);
  loss.backward();
  test::expect_close(x.grad(),
                     from_vector<double>({0.046927690810964935, -0.007332569383442733, -0.07934430986988585,
                                          0.0397491884423636, 0, 0, 0, 0, 0.013790182372463673,
                                          -0.4187251524677783, 0.2869607062370786, 0.11797426385823605},
                                         {3, 4}),
                     1e-13, "gradient");
  EXPECT_NEAR(cross_entropy(x, y, {.weight = w, .label_smoothing = 0.1, .reduction = Reduction::sum}).item(),
              2.7756312119354565, 1e-14);
}

TEST(Cases, C33_log_softmax_extreme) {
  auto run = [](const std::vector<double>& logits, int64_t label, DType dtype) {
    Tensor x = from_vector(logits, {1, int64_t(logits.size())}).to(dtype).set_requires_grad();
    Tensor loss = cross_entropy(x, from_vector<int64_t>({label}));
    loss.backward();
    return std::pair(loss.item(), x.grad().to_vector<double>());
  };
  using Values = std::vector<double>;
  for (DType dtype : {DType::float64, DType::float32}) {
    auto [far, d_far] = run({1000, 0}, 1, dtype);
    EXPECT_EQ(far, 1000);
    EXPECT_EQ(d_far, (Values{1, -1}));
    auto [masked, d_masked] = run({0, -kInf, 0}, 0, dtype);
    EXPECT_NEAR(masked, 0.693147, 1e-6);
    EXPECT_EQ(d_masked, (Values{-0.5, 0, 0.5}));
    EXPECT_NEAR(run({0, 50, -50}, 1, dtype).first, 0, 1e-15);
    EXPECT_EQ(run({0, 50, -50}, 2, dtype).first, 100);
  }
  Tensor x =
      from_vector<float>({1, 2, 3, -INFINITY, -INFINITY, -INFINITY, 0, 0, 0}, {3, 3}).set_requires_grad();
  Tensor losses = cross_entropy(x, from_vector<int64_t>({2, 1, 0}), {.reduction = Reduction::none});
  losses.backward(ones({3}));
  const std::vector<double> loss = losses.to_vector<double>(), dx = x.grad().to_vector<double>();
  EXPECT_NEAR(loss[0], 0.407606, 1e-6);
  EXPECT_NEAR(loss[2], 1.098612, 1e-6);
  EXPECT_NEAR(dx[2], -0.334759, 1e-6);
  EXPECT_NEAR(dx[6], -0.666667, 1e-6);
  EXPECT_NEAR(dx[8], 0.333333, 1e-6);
}

TEST(Cases, C34_cross_entropy_labels) {
  // Two classes: with logits [0, z] and label 0 the loss is log(1 + exp(z)).
  auto logit = [](double loss) { return std::log(std::expm1(loss)); };
  Tensor x = from_vector<double>({0, logit(1), 9, 9, 0, logit(3), 9, 9, 9, 9}, {5, 2}).set_requires_grad();
  Tensor loss = cross_entropy(x, from_vector<int64_t>({0, -100, 0, -100, -100}));
  EXPECT_NEAR(loss.item(), 2.0, 1e-12);
  loss.backward();
  for (int64_t r : {1, 3, 4})
    for (double g : x.grad().select(0, r).to_vector<double>()) EXPECT_EQ(g, 0);

  for (Reduction reduction : {Reduction::mean, Reduction::sum}) {
    x.set_grad({});
    Tensor nothing =
        cross_entropy(x, full({5}, -100, DType::int64), {.label_smoothing = 0.1, .reduction = reduction});
    nothing.backward();
    EXPECT_EQ(nothing.item(), 0);
    for (double g : x.grad().to_vector<double>()) EXPECT_EQ(g, 0);
  }

  Tensor logits = test::drawn(1, {4, 5}, -1, 1, DType::float32).set_requires_grad();
  const Tensor good = from_vector<int64_t>({0, 4, 2, 1});
  const double before = cross_entropy(logits, good).item();
  const size_t held = memory_stats("cpu").current_bytes;
  test::expect_error("label 5 in row 3, expected 0 to 4", [&] {
    cross_entropy(logits, from_vector<int64_t>({0, 4, 2, 5}));
  });
  test::expect_error("label -2 in row 1", [&] {
    cross_entropy(logits, from_vector<int32_t>({0, -2, 2, 9}));
  });
  test::expect_error("label 255 in row 0", [&] { cross_entropy(logits, full({4}, 255, DType::uint8)); });
  EXPECT_EQ(memory_stats("cpu").current_bytes, held);
  EXPECT_EQ(cross_entropy(logits, good).item(), before);
}

// The label of the first bad row is named for any number of threads.
TEST(CrossEntropy, FirstBadLabelOfALargeBatch) {
  std::vector<int64_t> labels(20000, 1);
  labels[17000] = 11;
  labels[9001] = 10;
  test::expect_error("label 10 in row 9001", [&] { cross_entropy(zeros({20000, 10}), from_vector(labels)); });
}

TEST(CrossEntropy, MeanOfALargeBatchIsSummedInDouble) {
  constexpr int64_t n = 1 << 20;
  Tensor x = from_vector<float>({0, 0.2f}, {1, 2}).expand({n, 2});
  EXPECT_NEAR(cross_entropy(x, zeros({n}, DType::int64)).item(), std::log1p(std::exp(double(0.2f))), 1e-7);
}

TEST(CrossEntropy, LabelsAreNotReadOnMeta) {
  Tensor x = empty({3, 5}, DType::float32, "meta").set_requires_grad();
  Tensor loss = cross_entropy(x, empty({3}, DType::int64, "meta"));
  loss.backward();
  EXPECT_EQ(x.grad().shape(), x.shape());
}

TEST(CrossEntropy, ChangedLabelsAreCaught) {
  Tensor x = ones({2, 3}).set_requires_grad(), labels = arange(2);
  Tensor loss = cross_entropy(x, labels);
  labels.fill_(2);
  test::expect_error("modified in place", [&] { loss.backward(); });
}

}  // namespace
}  // namespace lockstep
