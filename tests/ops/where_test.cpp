#include "lockstep/ops/where.h"

#include <gtest/gtest.h>

#include <cmath>

#include "lockstep/ops/binary.h"
#include "lockstep/ops/compare.h"
#include "lockstep/ops/unary.h"
#include "tests/ops/op_harness.h"

namespace lockstep {
namespace {

using namespace test;

TEST(OpWhere, Row) {
  struct {
    Shape condition, a, b;
  } rows[] = {{{4, 5}, {4, 5}, {4, 5}},
              {{5}, {4, 1}, {}},
              {{4, 1}, {1, 5}, {4, 5}},
              {{2, 1, 1}, {3, 1}, {4}},
              {{3, 7001}, {7001}, {3, 7001}}};
  for (auto& [condition, a, b] : rows) {
    SCOPED_TRACE(concat(condition, a, b));
    check_op(
        {.name = "where",
         .inputs = {{.shape = condition, .role = Role::boolean}, {.shape = a}, {.shape = b}},
         .op = [](const Tensors& x) { return where(x[0], x[1], x[2]); },
         .reference =
             [](const Tensors& x) {
               Shape shape = broadcast_shapes("reference", x[0].shape(),
                                              broadcast_shapes("reference", x[1].shape(), x[2].shape()));
               std::vector<double> c = x[0].expand(shape).to_vector<double>();
               std::vector<double> y = x[1].expand(shape).to_vector<double>();
               std::vector<double> other = x[2].expand(shape).to_vector<double>();
               for (size_t i = 0; i < y.size(); i++)
                 if (c[i] == 0) y[i] = other[i];
               return from_vector(y, shape);
             },
         .length = 7001,
         .bad = {{"[where] condition is float32", [] { where(ones({2}), ones({2}), ones({2})); }},
                 {"[where]", [] { where(ones({2}, DType::boolean), ones({3}), ones({2})); }},
                 {"meta",
                  [] { where(ones({2}, DType::boolean), ones({2}), zeros({2}, DType::float32, "meta")); }}},
         .empty_shapes = {{0, 5}, {5}, {}},
         .gradcheck = b != Shape{3, 7001}});
  }
}

TEST(OpWhere, OtherDTypes) {
  Tensor condition = gt(from_vector<float>({-1, 1}), 0);
  Tensor a = from_vector<int64_t>({1, 2}), b = from_vector<int64_t>({3, 4});
  EXPECT_EQ(where(condition, a, b).to_vector<int64_t>(), (std::vector<int64_t>{3, 2}));
  EXPECT_EQ(where(condition, condition, condition).dtype(), DType::boolean);
  EXPECT_EQ(where(condition, a, ones({2})).dtype(), DType::float32);
}

TEST(OpWhere, NaNOfTheBranchNotTakenDoesNotLeak) {
  Tensor x = from_vector<float>({-1, 4}).set_requires_grad();
  Tensor y = where(gt(x, 0), log(maximum(x, 0)), x * 2);  // log is -inf, its gradient NaN, at -1
  EXPECT_EQ(y.to_vector<float>()[0], -2);
  Tensor a = full({2}, NAN).set_requires_grad(), b = ones({2}).set_requires_grad();
  Tensor z = where(zeros({2}, DType::boolean), a, b);
  z.backward(ones({2}));
  EXPECT_EQ(z.to_vector<float>(), (std::vector<float>{1, 1}));
  EXPECT_EQ(a.grad().to_vector<float>(), (std::vector<float>{0, 0}));
  EXPECT_EQ(b.grad().to_vector<float>(), (std::vector<float>{1, 1}));
}

}  // namespace
}  // namespace lockstep
