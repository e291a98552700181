#include "lockstep/ops/gather.h"

#include <gtest/gtest.h>

#include "lockstep/ops/embedding.h"
#include "lockstep/runtime/autograd.h"
#include "lockstep/runtime/parallel.h"
#include "tests/ops/op_harness.h"

namespace lockstep {
namespace {

Tensor naive_gather(const Tensor& x, int axis, const Tensor& index) {
  const std::vector<double> in = x.to_vector<double>();
  const std::vector<int64_t> picked = index.to_vector<int64_t>();
  const Strides from = contiguous_strides(x.shape()), to = contiguous_strides(index.shape());
  std::vector<double> y;
  for (int64_t i = 0; i < index.numel(); i++) {
    int64_t at = 0;
    for (int d = 0; d < x.ndim(); d++)
      at += from[d] * (d == axis ? picked[size_t(i)] : i / to[d] % index.shape()[d]);
    y.push_back(in[size_t(at)]);
  }
  return from_vector(y, index.shape());
}

test::OpRow gather_row(const Shape& shape, int axis, const Shape& index_shape) {
  return {
      .name = "gather",
      .inputs = {{.shape = shape},
                 {.shape = index_shape, .low = 0, .high = double(shape[axis]), .role = test::Role::index}},
      .op = [=](const Tensors& x) { return gather(x[0], axis, x[1]); },
      .reference = [=](const Tensors& x) { return naive_gather(x[0], axis, x[1]); },
      .length = index_shape[axis],
      .bad = {{"index 3 at position 1",
               [] {
                 gather(ones({3}), 0, from_vector<int64_t>({0, 3}));
               }},
              {"index -1 at position 0",
               [] {
                 gather(ones({3}), 0, from_vector<int32_t>({-1, 5}));
               }},
              {"index 0 at position 0", [] { gather(ones({0}), 0, zeros({1}, DType::int64)); }},
              {"index of dtype float32", [] { gather(ones({3}), 0, ones({3})); }},
              {"index of shape [3], expected",
               [] {
                 gather(ones({3, 3}), 0, arange(3));
               }},
              {"index of shape [1, 4]",
               [] {
                 gather(ones({3, 3}), 0, zeros({1, 4}, DType::int64));
               }},
              {"axis 2",
               [] {
                 gather(ones({3, 3}), 2, arange(3));
               }}},
      .empty_shapes = {shape, Shape(index_shape.size(), 0)}};
}

TEST(Gather, LastAxis) { test::check_op(gather_row({4, 5}, 1, {3, 7})); }
TEST(Gather, FirstAxis) { test::check_op(gather_row({4, 5}, 0, {6, 5})); }
TEST(Gather, MiddleAxisOfASmallerIndex) { test::check_op(gather_row({3, 4, 5}, 1, {2, 6, 3})); }

// Printed by PyTorch 2.13.
TEST(Gather, ValuesOfPyTorch) {
  Tensor x = from_vector<double>({0.5, -1.2, 2.0, 0.3, 1.5, 0.1, -0.7, 0.9, -2.0, 0.4, 0.8, -0.1}, {3, 4});
  x.set_requires_grad();
  Tensor y = gather(x, 1, from_vector<int64_t>({0, 0, 3, 2, 1, 1}, {2, 3}));
  EXPECT_EQ(y.to_vector<double>(), (std::vector<double>{0.5, 0.5, 0.3, -0.7, 0.1, 0.1}));
  y.backward(arange(6, DType::float64).reshape({2, 3}));
  EXPECT_EQ(x.grad().to_vector<double>(), (std::vector<double>{1, 0, 0, 2, 0, 9, 3, 0, 0, 0, 0, 0}));
}

TEST(Gather, EveryDtype) {
  for (DType dtype : {DType::float64, DType::float32, DType::float16, DType::bfloat16, DType::int64,
                      DType::int32, DType::uint8, DType::boolean})
    for (DType index : {DType::int64, DType::int32, DType::uint8}) {
      Tensor y = gather(arange(2, dtype), 0, from_vector<int64_t>({1, 0, 1}).to(index));
      EXPECT_EQ(y.dtype(), dtype);
      EXPECT_EQ(y.to_vector<double>(), (std::vector<double>{1, 0, 1}));
    }
}

// C60: many contributions to one place are not a running float32 (or 16-bit) total.
TEST(Gather, ManyContributionsToOnePlace) {
  constexpr int64_t n = 1000000;
  Tensor x = zeros({2}).set_requires_grad();
  gather(x, 0, zeros({n}, DType::int64)).backward(full({n}, 0.1));
  EXPECT_NEAR(x.grad().to_vector<float>()[0], n * double(0.1f), 0.01);
  Tensor half = zeros({2}, DType::bfloat16).set_requires_grad();
  gather(half, 0, zeros({1024}, DType::int64)).backward(ones({1024}, DType::bfloat16));
  EXPECT_EQ(half.grad().to_vector<float>()[0], 1024);
}

test::OpRow embedding_row(int64_t padding_idx) {
  return {.name = "embedding",
          .inputs = {{.shape = {7, 3}}, {.shape = {4, 5}, .low = 0, .high = 7, .role = test::Role::index}},
          .op = [=](const Tensors& x) { return embedding(x[0], x[1], padding_idx); },
          .reference =
              [](const Tensors& x) {
                const std::vector<double> w = x[0].to_vector<double>();
                std::vector<double> y;
                for (int64_t i : x[1].to_vector<int64_t>())
                  y.insert(y.end(), w.begin() + 3 * i, w.begin() + 3 * i + 3);
                return from_vector(y, {4, 5, 3});
              },
          .length = 20,
          .bad = {{"index 7 at position 1",
                   [] {
                     embedding(ones({7, 3}), from_vector<int64_t>({0, 7}));
                   }},
                  {"index -1 at position 2",
                   [] {
                     embedding(ones({7, 3}), from_vector<int64_t>({0, 1, -1}));
                   }},
                  {"indices of dtype float32",
                   [] {
                     embedding(ones({7, 3}), ones({2}));
                   }},
                  {"weight of shape [7]", [] { embedding(ones({7}), arange(2)); }},
                  {"dtype int64, expected [rows, features] of a floating",
                   [] {
                     embedding(ones({7, 3}, DType::int64), arange(2));
                   }},
                  {"padding_idx 7",
                   [] {
                     embedding(ones({7, 3}), arange(2), 7);
                   }},
                  {"padding_idx -2",
                   [] {
                     embedding(ones({7, 3}), arange(2), -2);
                   }}},
          .gradcheck = padding_idx < 0};
}

TEST(Embedding, Row) { test::check_op(embedding_row(-1)); }
TEST(Embedding, RowWithPadding) { test::check_op(embedding_row(2)); }

TEST(Embedding, PaddingGetsNoGradient) {
  Tensor w = ones({3, 2}).set_requires_grad();
  embedding(w, from_vector<int32_t>({1, 0, 1, 2}), 1).backward(arange(8, DType::float32).reshape({4, 2}));
  EXPECT_EQ(w.grad().to_vector<float>(), (std::vector<float>{2, 3, 0, 0, 6, 7}));
}

TEST(Embedding, EmptyIndicesAndScalarIndex) {
  Tensor w = ones({3, 2}).set_requires_grad();
  Tensor y = embedding(w, zeros({0}, DType::int64));
  EXPECT_EQ(y.shape(), (Shape{0, 2}));
  y.backward(empty_like(y));
  EXPECT_EQ(w.grad().to_vector<float>(), std::vector<float>(6, 0));
  EXPECT_EQ(embedding(w, scalar<int64_t>(1)).shape(), Shape{2});
}

TEST(Embedding, ManyContributionsToOneRow) {
  constexpr int64_t n = 200000;
  Tensor w = zeros({5, 600}).set_requires_grad();  // wider than one block of columns
  embedding(w, full({n / 600}, 3, DType::int64)).backward(full({n / 600, 600}, 0.1));
  for (float g : w.grad().select(0, 3).to_vector<float>()) EXPECT_FLOAT_EQ(g, float(n / 600 * double(0.1f)));
}

// C61: repeated indices, more work than one chunk, and gradients whose order of summation shows in the bits.
TEST(Cases, C61_scatter_backward_is_the_same_for_any_number_of_threads) {
  std::vector<int64_t> numbers;
  for (double v : test::draw(1, 4000, 0, 97)) numbers.push_back(int64_t(v));
  Tensor dy = test::drawn(2, {4000, 33}, -1, 1, DType::float32), first_w, first_x;
  for (int threads : {1, 2, 7}) {
    const int before = num_threads();
    set_num_threads(threads);
    Tensor w = zeros({97, 33}).set_requires_grad(), x = zeros({97, 33}).set_requires_grad();
    embedding(w, from_vector(numbers)).backward(dy);
    gather(x, 0, from_vector(numbers, {4000, 1}).expand({4000, 33})).backward(dy);
    set_num_threads(before);
    if (threads == 1) first_w = w.grad(), first_x = x.grad();
    test::expect_same_bits(w.grad(), first_w, "embedding");
    test::expect_same_bits(x.grad(), first_x, "gather");
    test::expect_same_bits(w.grad(), x.grad(), "the two of them");
  }
}

}  // namespace
}  // namespace lockstep
