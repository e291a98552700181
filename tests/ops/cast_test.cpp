// Tensor::to(DType), the cast of the runtime.
#include <gtest/gtest.h>

#include <cfloat>
#include <cmath>

#include "lockstep/runtime/autograd.h"
#include "tests/ops/op_harness.h"

namespace lockstep {
namespace {

using namespace test;

TEST(OpCast, Rows) {
  for (DType dtype : {DType::float64, DType::float32, DType::float16, DType::bfloat16})
    check_op({.name = concat("cast to ", dtype),
              .inputs = {{.shape = {3, 7001}}},
              .op = [dtype](const Tensors& x) { return x[0].to(dtype); },
              .reference = [dtype](const Tensors& x) { return x[0].to(dtype).to(DType::float64); },
              .empty_shapes = {{0, 2}},
              .same_dtype = false,
              .gradcheck = false});
}

TEST(OpCast, EveryPairOfDTypes) {
  using enum DType;
  const std::vector<double> values{0, 1, 1, 0, 1};
  for (DType from : {float64, float32, float16, bfloat16, int64, int32, uint8, boolean})
    for (DType to : {float64, float32, float16, bfloat16, int64, int32, uint8, boolean}) {
      Tensor y = from_vector(values).to(from).to(to);
      EXPECT_EQ(y.dtype(), to);
      EXPECT_EQ(y.to_vector<double>(), values) << from << " to " << to;
    }
  EXPECT_EQ(from_vector<double>({-1.75, 2.5, 300}).to(int32).to_vector<int>(),
            (std::vector<int>{-1, 2, 300}));
  EXPECT_EQ(from_vector<double>({0.25, 0, -3}).to(boolean).to_vector<int>(), (std::vector<int>{1, 0, 1}));
}

TEST(OpCast, RoundsToNearestEven) {
  EXPECT_EQ(from_vector<float>({1 + 0x1p-8f, 1 + 0x3p-8f, FLT_MAX}).to(DType::bfloat16).to_vector<float>(),
            (std::vector<float>{1, 1 + 0x1p-6f, INFINITY}));
  EXPECT_EQ(
      from_vector<float>({1 + 0x1p-11f, 1 + 0x3p-11f, 65520, 0x1p-25f}).to(DType::float16).to_vector<float>(),
      (std::vector<float>{1, 1 + 0x1p-9f, INFINITY, 0}));
}

TEST(OpCast, GradientHasTheDTypeOfItsInput) {
  Tensor x = ones({2}).set_requires_grad();
  x.to(DType::float16).backward(full({2}, 0.5, DType::float16));
  EXPECT_EQ(x.grad().dtype(), DType::float32);
  EXPECT_EQ(x.grad().to_vector<float>(), (std::vector<float>{0.5, 0.5}));
  EXPECT_FALSE(x.to(DType::int64).requires_grad());
}

}  // namespace
}  // namespace lockstep
