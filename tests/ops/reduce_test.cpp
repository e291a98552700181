#include "lockstep/ops/reduce.h"

#include <gtest/gtest.h>

#include <cmath>

#include "lockstep/ops/unary.h"
#include "lockstep/runtime/autograd.h"
#include "lockstep/runtime/primitives.h"
#include "tests/ops/op_harness.h"

namespace lockstep {
namespace {

using namespace test;

// The values of x in groups, one a result, in the row-major order of the kept axes.
std::vector<std::vector<double>> groups(const Tensor& x, const Shape& axes) {
  Shape order, kept;
  for (int i = 0; i < x.ndim(); i++) {
    bool reduced = axes.empty();
    for (int64_t axis : axes) reduced |= (axis + x.ndim()) % x.ndim() == i;
    if (!reduced) order.push_back(i), kept.push_back(x.shape()[i]);
  }
  const int64_t outputs = kept.numel();
  for (int i = 0; i < x.ndim(); i++)
    if (std::find(order.begin(), order.end(), i) == order.end()) order.push_back(i);
  std::vector<double> values = x.permute(order).to_vector<double>();
  const size_t terms = outputs ? values.size() / size_t(outputs) : 0;
  std::vector<std::vector<double>> result;
  for (size_t i = 0; i < size_t(outputs); i++)
    result.emplace_back(values.begin() + i * terms, values.begin() + (i + 1) * terms);
  return result;
}

struct Reducer {
  const char* name;
  Tensor (*op)(const Tensor&, const Shape&, bool);
  double (*reference)(const std::vector<double>&);
};

double sum_of(const std::vector<double>& values) {
  long double sum = 0;
  for (double v : values) sum += v;
  return double(sum);
}
double mean_of(const std::vector<double>& values) { return sum_of(values) / double(values.size()); }
double squares_of(const std::vector<double>& values) {
  long double mean = mean_of(values), sum = 0;
  for (double v : values) sum += (v - mean) * (v - mean);
  return double(sum);
}

const Reducer kSum{"sum", sum, sum_of};
const Reducer kMean{"mean", mean, mean_of};
const Reducer kMax{"max", max,
                   [](const std::vector<double>& v) { return *std::max_element(v.begin(), v.end()); }};
const Reducer kMin{"min", min,
                   [](const std::vector<double>& v) { return *std::min_element(v.begin(), v.end()); }};
const Reducer kVar{
    "var", [](const Tensor& x, const Shape& axes, bool keepdim) { return var(x, axes, true, keepdim); },
    [](const std::vector<double>& v) { return squares_of(v) / double(v.size() - 1); }};
const Reducer kBiasedVar{
    "var", [](const Tensor& x, const Shape& axes, bool keepdim) { return var(x, axes, false, keepdim); },
    [](const std::vector<double>& v) { return squares_of(v) / double(v.size()); }};

// Every layout of kept and reduced axes: rows, columns, middle, both ends; short, and cut into parts.
void check_reducer(const Reducer& reducer, bool empty_allowed) {
  struct {
    Shape shape, axes;
  } rows[] = {{{2, 3, 4}, {}},     {{2, 3, 4}, {0}},       {{2, 3, 4}, {1}},
              {{2, 3, 4}, {-1}},   {{2, 3, 4}, {0, 2}},    {{2, 3, 4}, {-1, 0, 1}},
              {{5}, {0}},          {{40, 1000}, {1}},      {{1000, 40}, {0}},
              {{9, 50, 600}, {1}}, {{9, 50, 600}, {0, 2}}, {{100003}, {}},
              {{40001, 3}, {0}},   {{3, 40001}, {-1}},     {{7, 3, 5000}, {0, -1}}};
  for (auto& [shape, axes] : rows)
    for (bool keepdim : {false, true}) {
      SCOPED_TRACE(concat(shape, " over ", axes, keepdim ? " keepdim" : ""));
      const bool small = shape.numel() < 30;
      if (keepdim && !small) continue;
      OpRow row{.name = reducer.name,
                .inputs = {{.shape = shape}},
                .op = [&](const Tensors& x) { return reducer.op(x[0], axes, keepdim); },
                .reference =
                    [&](const Tensors& x) {
                      std::vector<double> y;
                      for (auto& group : groups(x[0], axes)) y.push_back(reducer.reference(group));
                      Shape result;
                      for (int i = 0; i < x[0].ndim(); i++) {
                        bool reduced = axes.empty();
                        for (int64_t axis : axes) reduced |= (axis + x[0].ndim()) % x[0].ndim() == i;
                        if (!reduced) result.push_back(x[0].shape()[i]);
                        if (reduced && keepdim) result.push_back(1);
                      }
                      return from_vector(y, result);
                    },
                .length = shape.numel(),
                .gradcheck = small};
      if (small)
        row.bad = {{"axis 3 for shape",
                    [&] {
                      reducer.op(zeros({2, 3, 4}), {3}, false);
                    }},
                   {"axis -1 is given twice", [&] {
                      reducer.op(zeros({2, 3, 4}), {2, -1}, false);
                    }}};
      if (empty_allowed) row.empty_shapes = {Shape(shape.size(), 0)};
      check_op(row);
    }
}

TEST(OpReduce, Sum) { check_reducer(kSum, true); }
TEST(OpReduce, Mean) { check_reducer(kMean, false); }
TEST(OpReduce, Max) { check_reducer(kMax, false); }
TEST(OpReduce, Min) { check_reducer(kMin, false); }
TEST(OpReduce, Var) { check_reducer(kVar, false); }
TEST(OpReduce, BiasedVar) { check_reducer(kBiasedVar, false); }

TEST(OpReduce, Integers) {
  Tensor x = from_vector<uint8_t>({200, 100, 7, 0}, {2, 2});
  EXPECT_EQ(sum(x).dtype(), DType::int64);
  EXPECT_EQ(sum(x).item<int64_t>(), 307);
  EXPECT_EQ(sum(ones({3, 5}, DType::boolean), {1}).to_vector<int64_t>(), (std::vector<int64_t>{5, 5, 5}));
  EXPECT_EQ(max(x, {0}).to_vector<int>(), (std::vector<int>{200, 100}));
  EXPECT_EQ(min(arange(5)).item<int64_t>(), 0);
  EXPECT_EQ(max(neg(arange(5))).item<int64_t>(), 0);
  expect_error("[mean] expected a floating-point dtype, got int64", [] { mean(arange(3)); });
  expect_error("[var] expected a floating-point dtype, got int64", [] { var(arange(3)); });
}

TEST(OpReduce, NoElements) {
  EXPECT_EQ(sum(zeros({0, 3}), {0}).to_vector<float>(), (std::vector<float>{0, 0, 0}));
  EXPECT_TRUE(std::isnan(mean(zeros({0})).item()));
  EXPECT_EQ(max(zeros({0, 3}), {1}).shape(), Shape({0}));
  expect_error("[max] no elements, for shape [0, 3]", [] { max(zeros({0, 3}), {0}); });
  expect_error("[min] no elements, for shape [0]", [] { min(zeros({0})); });
  expect_error("[argmax] no elements along axis 0", [] { argmax(zeros({0, 3}), 0); });
  expect_error("[var] 1 elements have no unbiased variance", [] { var(zeros({3, 1}), {1}); });
  EXPECT_EQ(var(zeros({3, 1}), {1}, false).to_vector<float>(), (std::vector<float>{0, 0, 0}));
}

TEST(OpReduce, TiesShareTheGradientAndNaNWins) {
  Tensor x = from_vector<float>({1, 3, 3, 2, 2, 2}, {2, 3}).set_requires_grad();
  max(x, {1}).backward(ones({2}));
  const float third = 1.0f / 3;
  EXPECT_EQ(x.grad().to_vector<float>(), (std::vector<float>{0, 0.5, 0.5, third, third, third}));
  for (int64_t n : {3, 1000}) {
    std::vector<float> values(size_t(n), 1);
    values[1] = NAN;
    EXPECT_TRUE(std::isnan(max(from_vector(values)).item()));
    EXPECT_TRUE(std::isnan(min(from_vector(values)).item()));
    EXPECT_TRUE(std::isnan(max(from_vector(values, {n, 1}).expand({n, 40}), {0}).to_vector<float>()[39]));
  }
  EXPECT_EQ(max(full({3}, -INFINITY)).item(), -INFINITY);
}

TEST(OpReduce, Argmax) {
  Tensor x = from_vector<float>({1, 3, 3, 5, 2, 5}, {2, 3});
  EXPECT_EQ(argmax(x, -1).to_vector<int64_t>(), (std::vector<int64_t>{1, 0}));
  EXPECT_EQ(argmax(x, 0).to_vector<int64_t>(), (std::vector<int64_t>{1, 0, 1}));
  EXPECT_EQ(argmax(x.transpose(0, 1), 0).to_vector<int64_t>(), (std::vector<int64_t>{1, 0}));
  EXPECT_EQ(argmax(x, 1, true).shape(), Shape({2, 1}));
  EXPECT_EQ(argmax(x, 1).dtype(), DType::int64);
  EXPECT_EQ(argmax(from_vector<double>({1, NAN, 7, NAN}), 0).item<int64_t>(), 1);
  EXPECT_EQ(argmax(empty({4, 5}, DType::float32, "meta"), 1).shape(), Shape({4}));
  expect_error("[argmax] axis 2 for shape [2, 3]", [&] { argmax(x, 2); });
  std::vector<double> values = draw(3, 20 * 30 * 50);
  Tensor big = from_vector(values, {20, 30, 50});
  std::vector<int64_t> middle = argmax(big, 1).to_vector<int64_t>();
  for (int64_t i : {0, 7, 19})
    for (int64_t j : {0, 31, 49})
      for (int64_t t = 0; t < 30; t++)
        EXPECT_LE(values[size_t((i * 30 + t) * 50 + j)],
                  values[size_t((i * 30 + middle[size_t(i * 50 + j)]) * 50 + j)]);
}

TEST(OpReduce, VarianceOfALargeMean) {
  // 4 values around 10^6: one pass in float32 loses all digits.
  Tensor x = from_vector<float>({1000000, 1000001, 1000002, 1000003});
  EXPECT_NEAR(var(x).item(), 5.0 / 3, 1e-6);
  EXPECT_NEAR(var(x, {}, false).item(), 1.25, 1e-6);
}

TEST(OpReduce, MeanOfFloat16DoesNotOverflow) {
  EXPECT_EQ(mean(full({100000}, 3, DType::float16)).item(), 3);
  EXPECT_EQ(mean(full({100000, 2}, 3, DType::float16), {0}).to_vector<float>(), (std::vector<float>{3, 3}));
}

// Longest sums: on every axis layout, as gradients of a broadcast, and for 1, 2 and 7 threads.
TEST(Cases, C60_long_sums) {
  const float tenth = 0.1f;
  EXPECT_NEAR(sum(full({1000000}, tenth)).item(), 100000, 1);
  EXPECT_NEAR(sum(full({1000000, 2}, tenth), {0}).to_vector<double>()[1], 100000, 1);
  EXPECT_NEAR(sum(full({2, 1000000}, tenth), {1}).to_vector<double>()[1], 100000, 1);
  EXPECT_NEAR(sum(full({2, 500000, 2}, tenth), {0, 1}).to_vector<double>()[1], 100000, 1);
  EXPECT_NEAR(sum(full({2, 1000000}, tenth).transpose(0, 1), {0}).to_vector<double>()[1], 100000, 1);

  EXPECT_EQ(mean(ones({20000000})).item(), 1.0);
  EXPECT_EQ(mean(ones({1}).expand({20000000})).item(), 1.0);
  Tensor tall = ones({1}).expand({20000000, 2});
  EXPECT_EQ(mean(tall, {0}).to_vector<double>(), (std::vector<double>{1, 1}));
  EXPECT_EQ(mean(ones({5000000, 4}), {0}).to_vector<double>(), (std::vector<double>{1, 1, 1, 1}));
  EXPECT_EQ(mean(ones({5000000, 4}).transpose(0, 1), {1}).to_vector<double>(),
            (std::vector<double>{1, 1, 1, 1}));

  Tensor b = zeros({1}).set_requires_grad();
  b.expand({20000001}).backward(ones({20000001}));
  EXPECT_EQ(b.grad().item(), 20000000) << "2^24 + 1 and more ones, rounded once";
}

}  // namespace
}  // namespace lockstep
