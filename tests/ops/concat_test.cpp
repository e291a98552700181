#include "lockstep/ops/concat.h"

#include <gtest/gtest.h>

#include "lockstep/ops/pad.h"
#include "lockstep/runtime/autograd.h"
#include "tests/ops/op_harness.h"

namespace lockstep {
namespace {

// y[outer, :, inner] = all of x0[outer, :, inner], then of x1, ...
Tensor naive_concat(const Tensors& xs, int axis) {
  Shape shape = xs[0].shape();
  int64_t outer = 1, inner = 1;
  for (int d = 0; d < axis; d++) outer *= shape[d];
  for (int d = axis + 1; d < shape.size(); d++) inner *= shape[d];
  shape[axis] = 0;
  for (const Tensor& x : xs) shape[axis] += x.shape()[axis];
  std::vector<double> y;
  for (int64_t o = 0; o < outer; o++)
    for (const Tensor& x : xs) {
      const std::vector<double> values = x.to_vector<double>();
      const int64_t length = x.shape()[axis] * inner;
      y.insert(y.end(), values.begin() + o * length, values.begin() + (o + 1) * length);
    }
  return from_vector(y, shape);
}

test::OpRow concat_row(const std::vector<Shape>& shapes, int64_t axis) {
  const int a = normalize_axis("test", axis, shapes[0]);
  test::OpRow row{
      .name = "concat",
      .op = [=](const Tensors& x) { return concat(x, axis); },
      .reference = [=](const Tensors& x) { return naive_concat(x, a); },
      .bad = {{"got no tensors", [] { concat(Tensors{}, 0); }},
              {"tensor 1 of shape [2, 4] after one of shape [3, 3], expected equal sizes except along axis 1",
               [] {
                 concat({ones({3, 3}), ones({2, 4})}, 1);
               }},
              {"tensor 1 of shape [3]",
               [] {
                 concat({ones({3, 3}), ones({3})}, 0);
               }},
              {"tensor 1 is float64, expected float32",
               [] {
                 concat({ones({2}), ones({2}, DType::float64)});
               }},
              {"different devices",
               [] {
                 concat({ones({2}), ones({2}, DType::float32, "meta")});
               }},
              {"axis 2",
               [] {
                 concat({ones({2, 2})}, 2);
               }},
              {"axis 0", [] { concat({scalar(1.0f)}, 0); }}}};
  for (const Shape& shape : shapes) row.inputs.push_back({.shape = shape});
  return row;
}

TEST(Concat, LastAxis) { test::check_op(concat_row({{3, 2}, {3, 5}, {3, 1}}, -1)); }
TEST(Concat, FirstAxis) { test::check_op(concat_row({{3, 2}, {1, 2}}, 0)); }
TEST(Concat, MiddleAxisWithAnEmptyPart) { test::check_op(concat_row({{2, 3, 4}, {2, 0, 4}, {2, 1, 4}}, 1)); }

TEST(Stack, Row) {
  test::check_op({.name = "stack",
                  .inputs = {{.shape = {2, 3}}, {.shape = {2, 3}}},
                  .op = [](const Tensors& x) { return stack(x, -1); },
                  .reference =
                      [](const Tensors& x) {
                        std::vector<double> y;
                        const std::vector<double> a = x[0].to_vector<double>(), b = x[1].to_vector<double>();
                        for (size_t i = 0; i < a.size(); i++) y.insert(y.end(), {a[i], b[i]});
                        return from_vector(y, {x[0].size(0), 3, 2});
                      },
                  .bad = {{"got no tensors", [] { stack(Tensors{}); }},
                          {"tensor 1 of shape [3, 2]",
                           [] {
                             stack({ones({2, 3}), ones({3, 2})});
                           }},
                          {"axis 3",
                           [] {
                             stack({ones({2, 3})}, 3);
                           }},
                          {"axis -4",
                           [] {
                             stack({ones({2, 3})}, -4);
                           }}},
                  .empty_shapes = {{0, 3}, {0, 3}}});
}

TEST(Stack, ScalarsAndPositions) {
  EXPECT_EQ(stack({scalar(1.0f), scalar(2.0f)}).to_vector<float>(), (std::vector<float>{1, 2}));
  Tensor a = arange(2), b = full({2}, 7, DType::int64);
  EXPECT_EQ(stack({a, b}, 0).to_vector<int64_t>(), (std::vector<int64_t>{0, 1, 7, 7}));
  EXPECT_EQ(stack({a, b}, 1).to_vector<int64_t>(), (std::vector<int64_t>{0, 7, 1, 7}));
}

TEST(Concat, EveryDtype) {
  for (DType dtype : {DType::float64, DType::float32, DType::float16, DType::bfloat16, DType::int64,
                      DType::int32, DType::uint8, DType::boolean}) {
    Tensor y = concat({arange(2, dtype), ones({1}, dtype)});
    EXPECT_EQ(y.dtype(), dtype);
    EXPECT_EQ(y.to_vector<double>(), (std::vector<double>{0, 1, 1}));
    EXPECT_EQ(pad(y, {{1, 0}}, 1).to_vector<double>(), (std::vector<double>{1, 0, 1, 1}));
  }
}

TEST(Concat, SameTensorTwiceAndPartsWithoutGradient) {
  Tensor x = ones({2}).set_requires_grad(), constant = ones({1});
  concat({x, constant, x}).backward(from_vector<float>({1, 2, 3, 10, 20}));
  EXPECT_EQ(x.grad().to_vector<float>(), (std::vector<float>{11, 22}));
  EXPECT_FALSE(constant.grad().defined());
}

// A gradient that is a slice of a larger one must not keep that alive, nor share its memory.
TEST(Concat, GradientsOwnTheirMemory) {
  Tensor a = ones({4}).set_requires_grad(), b = ones({4}).set_requires_grad();
  concat({a, b}).backward(arange(8, DType::float32));
  EXPECT_EQ(a.grad().storage()->bytes, a.bytes());
  EXPECT_EQ(b.grad().storage()->bytes, b.bytes());
  EXPECT_EQ(b.grad().to_vector<float>(), (std::vector<float>{4, 5, 6, 7}));
}

TEST(Pad, Row) {
  test::check_op({.name = "pad",
                  .inputs = {{.shape = {2, 3}}},
                  .op =
                      [](const Tensors& x) {
                        return pad(x[0], {{1, 0}, {2, 1}}, -0.5);
                      },
                  .reference =
                      [](const Tensors& x) {
                        std::vector<double> y(3 * 6, -0.5), in = x[0].to_vector<double>();
                        for (size_t i = 0; i < 2; i++)
                          for (size_t j = 0; j < 3; j++) y[(i + 1) * 6 + j + 2] = in[i * 3 + j];
                        return from_vector(y, {3, 6});
                      },
                  .bad = {{"got 1 pairs for shape [2, 2]",
                           [] {
                             pad(ones({2, 2}), {{1, 1}});
                           }},
                          {"amounts -1 and 0 on axis 0",
                           [] {
                             pad(ones({2}), {{-1, 0}});
                           }},
                          {"overflow", [] {
                             pad(ones({2}), {{INT64_MAX, 1}});
                           }}}});
}

TEST(Pad, NothingAndEmpty) {
  EXPECT_EQ(pad(arange(3), {{0, 0}}).to_vector<int64_t>(), (std::vector<int64_t>{0, 1, 2}));
  EXPECT_EQ(pad(arange(0), {{1, 1}}, 4).to_vector<int64_t>(), (std::vector<int64_t>{4, 4}));
  EXPECT_EQ(pad(scalar(2.0f), {}).item(), 2);
}

}  // namespace
}  // namespace lockstep
