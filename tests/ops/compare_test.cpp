#include "lockstep/ops/compare.h"

#include <gtest/gtest.h>

#include <cmath>

#include "tests/ops/op_harness.h"

namespace lockstep {
namespace {

using namespace test;

void check_compare(const char* name, Tensor (*op)(const Tensor&, const Tensor&),
                   Tensor (*scalar_op)(const Tensor&, double), bool (*f)(double, double)) {
  // Few values, so that many are equal.
  OpInput drawn{.shape = {3, 40}, .differentiable = false};
  for (double v : draw(1, 120, 0, 4)) drawn.values.push_back(std::floor(v));
  OpInput other{.shape = {40}, .differentiable = false};
  for (double v : draw(2, 40, 0, 4)) other.values.push_back(std::floor(v));
  auto reference = [f](const std::vector<double>& a, const std::vector<double>& b, const Shape& shape) {
    std::vector<double> y;
    for (size_t i = 0; i < a.size(); i++) y.push_back(f(a[i], b[i % b.size()]));
    return from_vector(y, shape);
  };
  OpRow row{.name = name,
            .inputs = {drawn, other},
            .op = [op](const Tensors& x) { return op(x[0], x[1]); },
            .reference =
                [=](const Tensors& x) {
                  return reference(x[0].to_vector<double>(), x[1].to_vector<double>(), x[0].shape());
                },
            .bad = {{concat("[", name, "]"),
                     [op] {
                       op(zeros({2, 3}), zeros({2, 4}));
                     }},
                    {"meta", [op] { op(zeros({2}), zeros({2}, DType::float32, "meta")); }}},
            .empty_shapes = {{0, 5}, {5}},
            .same_dtype = false};
  row.dtypes.insert(row.dtypes.end(), {DType::int64, DType::int32, DType::uint8, DType::boolean});
  check_op(row);
  check_op({.name = concat(name, " with a scalar"),
            .inputs = {drawn},
            .op = [scalar_op](const Tensors& x) { return scalar_op(x[0], 1.0); },
            .reference =
                [=](const Tensors& x) { return reference(x[0].to_vector<double>(), {1.0}, x[0].shape()); },
            .dtypes = row.dtypes,
            .same_dtype = false});
  EXPECT_EQ(op(zeros({2}), zeros({2})).dtype(), DType::boolean);
  EXPECT_EQ(op(ones({1}, DType::int64), full({1}, 1.5)).item<bool>(), f(1, 1.5));
  EXPECT_EQ(scalar_op(ones({1}, DType::int64), 1.5).item<bool>(), f(1, 1.5));
  EXPECT_EQ(op(full({1}, NAN), full({1}, NAN)).item<bool>(), f(NAN, NAN));
  EXPECT_EQ(scalar_op(full({1}, 0.1, DType::bfloat16), 0.1).item<bool>(), f(0.1, 0.1))
      << "the scalar is rounded too";
}

TEST(OpCompare, Eq) {
  check_compare("eq", eq, eq, [](double a, double b) { return a == b; });
}
TEST(OpCompare, Ne) {
  check_compare("ne", ne, ne, [](double a, double b) { return a != b; });
}
TEST(OpCompare, Lt) {
  check_compare("lt", lt, lt, [](double a, double b) { return a < b; });
}
TEST(OpCompare, Le) {
  check_compare("le", le, le, [](double a, double b) { return a <= b; });
}
TEST(OpCompare, Gt) {
  check_compare("gt", gt, gt, [](double a, double b) { return a > b; });
}
TEST(OpCompare, Ge) {
  check_compare("ge", ge, ge, [](double a, double b) { return a >= b; });
}

TEST(OpCompare, ResultTakesNoGradient) {
  Tensor x = ones({2}).set_requires_grad();
  EXPECT_FALSE(gt(x, 0).requires_grad());
  EXPECT_FALSE(gt(x, x.to(DType::float64)).requires_grad());
}

}  // namespace
}  // namespace lockstep
