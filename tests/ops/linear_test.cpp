#include "lockstep/ops/linear.h"

#include <gtest/gtest.h>

#include "lockstep/runtime/autograd.h"
#include "tests/ops/op_harness.h"

namespace lockstep {
namespace {

using test::check_op;

Tensor reference(const Tensors& x) {
  const int64_t out = x[1].shape()[0], in = x[1].shape()[1], rows = x[0].numel() / in;
  std::vector<double> xv = x[0].to_vector<double>(), wv = x[1].to_vector<double>(), y(size_t(rows * out));
  std::vector<double> bias = x.size() > 2 ? x[2].to_vector<double>() : std::vector<double>(size_t(out));
  for (int64_t i = 0; i < rows; i++)
    for (int64_t j = 0; j < out; j++) {
      double sum = bias[size_t(j)];
      for (int64_t k = 0; k < in; k++) sum += xv[size_t(i * in + k)] * wv[size_t(j * in + k)];
      y[size_t(i * out + j)] = sum;
    }
  Shape shape = x[0].shape();
  shape[shape.size() - 1] = out;
  return from_vector(y, shape);
}

Tensor op(const Tensors& x) { return x.size() > 2 ? linear(x[0], x[1], x[2]) : linear(x[0], x[1]); }

TEST(OpLinear, WithBias) {
  check_op({.name = "linear",
            .inputs = {{.shape = {5, 7}}, {.shape = {3, 7}}, {.shape = {3}}},
            .op = op,
            .reference = reference,
            .length = 8,
            .bad = {{"expected [..., 7]",
                     [] {
                       linear(zeros({5, 6}), zeros({3, 7}));
                     }},
                    {"expected [..., 7]",
                     [] {
                       linear(zeros({}), zeros({3, 7}));
                     }},
                    {"expected [out, in]",
                     [] {
                       linear(zeros({5, 7}), zeros({7}));
                     }},
                    {"expected [3]",
                     [] {
                       linear(zeros({5, 7}), zeros({3, 7}), zeros({7}));
                     }},
                    {"floating-point",
                     [] {
                       linear(zeros({5, 7}, DType::int32), zeros({3, 7}));
                     }},
                    {"one dtype",
                     [] {
                       linear(zeros({5, 7}, DType::float64), zeros({3, 7}));
                     }},
                    {"one dtype",
                     [] {
                       linear(zeros({5, 7}), zeros({3, 7}), zeros({3}, DType::float16));
                     }},
                    {"device",
                     [] {
                       linear(zeros({5, 7}, DType::float32, "meta"), zeros({3, 7}));
                     }}},
            .empty_shapes = {{0, 7}, {3, 7}, {3}}});
}

TEST(OpLinear, WithoutBias) {
  check_op({.name = "linear",
            .inputs = {{.shape = {5, 7}}, {.shape = {3, 7}}},
            .op = op,
            .reference = reference,
            .length = 8});
}

TEST(OpLinear, AnyLeadingAxes) {
  for (const Shape& shape : {Shape{7}, Shape{2, 3, 7}, Shape{2, 1, 3, 7}})
    check_op({.name = concat("linear ", shape),
              .inputs = {{.shape = shape}, {.shape = {4, 7}}, {.shape = {4}}},
              .op = op,
              .reference = reference,
              .length = 8});
}

TEST(OpLinear, FrozenInputsAndParametersGetNoGradient) {
  for (int wanted = 0; wanted < 8; wanted++)
    check_op({.name = concat("linear, gradients wanted ", wanted),
              .inputs = {{.shape = {5, 7}, .differentiable = bool(wanted & 1)},
                         {.shape = {3, 7}, .differentiable = bool(wanted & 2)},
                         {.shape = {3}, .differentiable = bool(wanted & 4)}},
              .op = op,
              .reference = reference,
              .length = 8});
}

// A long reduction over `in`, and long columns behind the bias.
TEST(OpLinear, Large) {
  check_op({.name = "linear",
            .inputs = {{.shape = {12, 2100}}, {.shape = {8, 2100}}, {.shape = {8}}},
            .op = op,
            .reference = reference,
            .length = 2101,
            .gradcheck = false});
}

TEST(OpLinear, GradientsOfMicroBatchesAddUpInPlace) {
  for (DType dtype : {DType::float64, DType::float32, DType::bfloat16}) {
    Tensor w = full({2, 3}, 1, dtype).set_requires_grad(), b = zeros({2}, dtype).set_requires_grad();
    auto step = [&](double value) { linear(full({4, 3}, value, dtype), w, b).backward(ones({4, 2}, dtype)); };
    step(1);
    const Tensor grad = w.grad();
    step(2);
    EXPECT_TRUE(w.grad().same_as(grad));
    EXPECT_EQ(w.grad().to_vector<double>(), std::vector<double>(6, 4 + 8)) << dtype;
    EXPECT_EQ(b.grad().to_vector<double>(), std::vector<double>(2, 8)) << dtype;
    w.set_grad(full({3, 2}, 1, dtype).transpose(0, 1));  // other strides
    step(1);
    EXPECT_EQ(w.grad().to_vector<double>(), std::vector<double>(6, 1 + 4)) << dtype;
  }
}

TEST(OpLinear, TheBiasGradientOfManyRowsIsExact) {
  Tensor bias = zeros({10}).set_requires_grad();
  Tensor y = linear(zeros({1 << 19, 1}), zeros({10, 1}), bias);
  y.backward(full(y.shape(), 0.1));
  for (float v : bias.grad().to_vector<float>()) EXPECT_FLOAT_EQ(v, float(double(0.1f) * (1 << 19)));
}

}  // namespace
}  // namespace lockstep
