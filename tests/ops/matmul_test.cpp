#include "lockstep/ops/matmul.h"

#include <gtest/gtest.h>

#include "lockstep/runtime/allocator.h"
#include "lockstep/runtime/autograd.h"
#include "tests/ops/op_harness.h"

namespace lockstep {
namespace {

using test::check_op;

// Products by the definition, over broadcast leading axes.
Tensor reference(const Tensors& x) {
  const bool row = x[0].ndim() == 1, column = x[1].ndim() == 1;
  Tensor a = row ? x[0].unsqueeze(0) : x[0], b = column ? x[1].unsqueeze(1) : x[1];
  const int64_t M = a.shape()[a.ndim() - 2], K = a.shape().back(), N = b.shape().back();
  Shape batch = broadcast_shapes("reference", std::span(a.shape().begin(), size_t(a.ndim() - 2)),
                                 std::span(b.shape().begin(), size_t(b.ndim() - 2)));
  auto expanded = [&](const Tensor& t) {
    Shape shape = batch;
    shape.push_back(t.shape()[t.ndim() - 2]);
    shape.push_back(t.shape().back());
    return t.expand(shape).to_vector<double>();
  };
  std::vector<double> av = expanded(a), bv = expanded(b), y(size_t(batch.numel() * M * N));
  for (int64_t n = 0; n < batch.numel(); n++)
    for (int64_t i = 0; i < M; i++)
      for (int64_t j = 0; j < N; j++)
        for (int64_t k = 0; k < K; k++)
          y[size_t((n * M + i) * N + j)] += av[size_t((n * M + i) * K + k)] * bv[size_t((n * K + k) * N + j)];
  if (!row) batch.push_back(M);
  if (!column) batch.push_back(N);
  return from_vector(y, batch);
}

Tensor op(const Tensors& x) { return matmul(x[0], x[1]); }

TEST(OpMatmul, Matrices) {
  check_op({.name = "matmul",
            .inputs = {{.shape = {5, 7}}, {.shape = {7, 3}}},
            .op = op,
            .reference = reference,
            .length = 7,
            .bad = {{"inner sizes 3 and 4",
                     [] {
                       matmul(zeros({2, 3}), zeros({4, 5}));
                     }},
                    {"inner sizes 3 and 4", [] { matmul(zeros({3}), zeros({4})); }},
                    {"at least one axis", [] { matmul(zeros({}), zeros({4})); }},
                    {"do not broadcast",
                     [] {
                       matmul(zeros({2, 3, 3}), zeros({4, 3, 3}));
                     }},
                    {"floating-point",
                     [] {
                       matmul(zeros({2, 2}, DType::int64), zeros({2, 2}, DType::int64));
                     }},
                    {"dtypes float32 and float64",
                     [] {
                       matmul(zeros({2, 2}), zeros({2, 2}, DType::float64));
                     }},
                    {"device",
                     [] {
                       matmul(zeros({2, 2}), zeros({2, 2}, DType::float32, "meta"));
                     }}},
            .empty_shapes = {{0, 7}, {7, 3}}});
}

TEST(OpMatmul, AnEmptyInnerAxisGivesZeros) {
  check_op({.name = "matmul, K = 0",
            .inputs = {{.shape = {2, 3}}, {.shape = {3, 4}}},
            .op = op,
            .reference = reference,
            .length = 3,
            .empty_shapes = {{2, 0}, {0, 4}}});
}

TEST(OpMatmul, EveryRankBroadcast) {
  const std::pair<Shape, Shape> shapes[] = {{{4}, {4}},
                                            {{4}, {4, 3}},
                                            {{3, 4}, {4}},
                                            {{4}, {2, 4, 3}},
                                            {{2, 3, 4}, {4}},
                                            {{2, 3, 4}, {4, 5}},
                                            {{3, 4}, {2, 4, 5}},
                                            {{2, 3, 4}, {2, 4, 5}},
                                            {{2, 1, 3, 4}, {5, 4, 2}},
                                            {{1, 3, 4}, {6, 4, 2}},
                                            {{1, 1}, {1, 1}}};
  for (const auto& [a, b] : shapes)
    check_op({.name = concat("matmul ", a, " by ", b),
              .inputs = {{.shape = a}, {.shape = b}},
              .op = op,
              .reference = reference,
              .length = 6});
}

TEST(OpMatmul, TransposedViews) {
  check_op({.name = "a transposed",
            .inputs = {{.shape = {7, 5}}, {.shape = {7, 3}}},
            .op = [](const Tensors& x) { return matmul(x[0].transpose(0, 1), x[1]); },
            .reference =
                [](const Tensors& x) {
                  return reference({x[0].transpose(0, 1), x[1]});
                },
            .length = 7});
  check_op({.name = "batched b transposed",
            .inputs = {{.shape = {2, 3, 5, 7}}, {.shape = {3, 4, 7}}},
            .op = [](const Tensors& x) { return matmul(x[0], x[1].transpose(1, 2)); },
            .reference =
                [](const Tensors& x) {
                  return reference({x[0], x[1].transpose(1, 2)});
                },
            .length = 10});
  check_op({.name = "heads of attention",
            .inputs = {{.shape = {2, 6, 3, 4}}, {.shape = {2, 6, 3, 4}}},
            .op =
                [](const Tensors& x) {
                  return matmul(x[0].permute({0, 2, 1, 3}), x[1].permute({0, 2, 3, 1}));
                },
            .reference =
                [](const Tensors& x) {
                  return reference(
                      {x[0].permute({0, 2, 1, 3}).contiguous(), x[1].permute({0, 2, 3, 1}).contiguous()});
                },
            .length = 6});
}

TEST(OpMatmul, TransposedViewsAreNotCopied) {
  Tensor a = ones({300, 200}), b = ones({100, 200});
  NoGradGuard no_grad;
  matmul(a, b.transpose(0, 1));
  const int64_t before = memory_stats("cpu").allocations;
  Tensor y = matmul(a, b.transpose(0, 1));
  EXPECT_EQ(memory_stats("cpu").allocations - before, 1);  // y
  EXPECT_EQ(y.to_vector<float>(), std::vector<float>(300 * 100, 200.0f));
}

TEST(OpMatmul, LargeBatches) {
  check_op({.name = "many small",
            .inputs = {{.shape = {70, 8, 9}}, {.shape = {70, 9, 5}}},
            .op = op,
            .reference = reference,
            .length = 9,
            .gradcheck = false});
  check_op({.name = "few large",
            .inputs = {{.shape = {2, 70, 120}}, {.shape = {2, 120, 190}}},
            .op = op,
            .reference = reference,
            .length = 190,
            .gradcheck = false});
}

TEST(OpMatmul, KeepsOnlyWhatItsBackwardNeeds) {
  Tensor a = ones({2, 2}).set_requires_grad(), b = ones({2, 2});
  Tensor y = matmul(a, b);
  b.fill_(3);  // saved: a needs it
  EXPECT_THROW(y.backward(ones({2, 2})), Error);
  y = matmul(a, b);
  NoGradGuard no_grad;
  a.fill_(3);  // not saved: b needs no gradient
  y.backward(ones({2, 2}));
  EXPECT_EQ(a.grad().to_vector<float>(), std::vector<float>(4, 6.0f));
}

}  // namespace
}  // namespace lockstep
