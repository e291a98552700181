#include "lockstep/runtime/tensor.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <numeric>

#include "tests/ops/op_harness.h"

namespace lockstep {
namespace {

using test::expect_error;
using Ints = std::vector<int64_t>;

constexpr DType kAllDTypes[] = {DType::float64, DType::float32, DType::float16, DType::bfloat16,
                                DType::int64,   DType::int32,   DType::uint8,   DType::boolean};

Tensor numbered(const Shape& shape) { return arange(shape.numel()).reshape(shape); }

TEST(Tensor, Construction) {
  Tensor x = zeros({2, 3});
  EXPECT_EQ(x.shape(), (Shape{2, 3}));
  EXPECT_EQ(x.strides(), (Strides{3, 1}));
  EXPECT_EQ(x.ndim(), 2);
  EXPECT_EQ(x.size(-1), 3);
  EXPECT_EQ(x.numel(), 6);
  EXPECT_EQ(x.bytes(), 24u);
  EXPECT_EQ(x.dtype(), DType::float32);
  EXPECT_EQ(x.device(), Device("cpu"));
  EXPECT_EQ(reinterpret_cast<uintptr_t>(x.raw_data()) % 64, 0u);
  EXPECT_EQ(full({2}, 2.5, DType::float64).to_vector<double>(), (std::vector<double>{2.5, 2.5}));
  EXPECT_EQ(ones({}).item(), 1);
  EXPECT_EQ(arange(3, DType::float16).to_vector<float>(), (std::vector<float>{0, 1, 2}));
  EXPECT_EQ(arange(0).numel(), 0);
  EXPECT_EQ(empty_like(x.transpose(0, 1)).strides(), (Strides{2, 1}));
  EXPECT_FALSE(Tensor().defined());
}

TEST(Tensor, WhatConstructionRefuses) {
  expect_error("got 3 values, expected 4", [] { from_vector<float>({1, 2, 3}, {2, 2}); });
  expect_error("arange", [] { arange(-1); });
  EXPECT_THROW(zeros({2, -1}), Error);
  EXPECT_THROW(zeros({int64_t(1) << 40, int64_t(1) << 40}), Error);
  EXPECT_THROW((Shape{1, 1, 1, 1, 1, 1, 1, 1, 1}), Error);
  EXPECT_THROW(Tensor().shape(), Error);
  EXPECT_THROW(zeros({2}, DType::float32, "cuda:0"), Error);
  EXPECT_THROW(Device("gpu"), Error);
}

TEST(Tensor, ConversionsBetweenAllDTypes) {
  for (DType from : kAllDTypes)
    for (DType to : kAllDTypes) {
      Tensor x = from_vector<double>({0, 1, 1, 0}, {2, 2}).to(from).to(to);
      EXPECT_EQ(x.dtype(), to);
      EXPECT_EQ(x.to_vector<double>(), (std::vector<double>{0, 1, 1, 0})) << from << " to " << to;
    }
  EXPECT_EQ(from_vector<double>({-2.7, 2.7, 300}).to(DType::int32).to_vector<int32_t>(),
            (std::vector<int32_t>{-2, 2, 300}));
  EXPECT_EQ(from_vector<double>({-0.5, 0, 7}).to(DType::boolean).to_vector<bool>(),
            (std::vector<bool>{true, false, true}));
  const int64_t big = (int64_t(1) << 60) + 1;
  EXPECT_EQ(from_vector<int64_t>({big}).to_vector<int64_t>(), Ints{big});
  Tensor x = ones({2});
  EXPECT_TRUE(x.to(DType::float32).same_as(x));
}

TEST(Tensor, SixteenBitRounding) {
  auto rounded = [](double value, DType dtype) { return full({}, value, DType::float64).to(dtype).item(); };
  EXPECT_EQ(rounded(1 + 0x1p-11, DType::float16), 1);  // ties to even
  EXPECT_EQ(rounded(1 + 3 * 0x1p-11, DType::float16), 1 + 0x1p-9);
  EXPECT_EQ(rounded(65504, DType::float16), 65504);
  EXPECT_EQ(rounded(65520, DType::float16), std::numeric_limits<double>::infinity());
  EXPECT_EQ(rounded(0x1p-24, DType::float16), 0x1p-24);  // smallest subnormal
  EXPECT_EQ(rounded(1 + 0x1p-8, DType::bfloat16), 1);
  EXPECT_EQ(rounded(3e38, DType::bfloat16), double(float(bfloat16(3e38f))));
  EXPECT_TRUE(std::isnan(rounded(NAN, DType::bfloat16)));
  EXPECT_TRUE(std::isnan(rounded(NAN, DType::float16)));
}

TEST(Tensor, ItemAndDataErrors) {
  expect_error("shape [2] has 2 elements, expected 1", [] { ones({2}).item(); });
  expect_error("has 0 elements", [] { ones({0}).item(); });
  EXPECT_EQ(full({1, 1}, 3).item<int64_t>(), 3);
  expect_error("the tensor is float32, asked as float64", [] { ones({2}).data<double>(); });
  EXPECT_THROW(ones({2}, DType::float32, "meta").to_vector<float>(), Error);
  EXPECT_THROW(ones({2}, DType::float32, "meta").raw_data(), Error);
  EXPECT_THROW(ones({1}, DType::float32, "meta").item(), Error);
  EXPECT_THROW(ones({1}, DType::float32, "meta").to(Device("cpu")), Error);
  EXPECT_EQ(ones({2}).to(Device("meta")).device(), Device("meta"));
}

TEST(Tensor, ViewsShareStorageAndVersion) {
  Tensor x = numbered({2, 3, 4});
  const Tensor views[] = {
      x.reshape({6, 4}), x.flatten(),    x.transpose(0, 2),         x.permute({1, 2, 0}),   x.slice(1, 0, 2),
      x.select(0, 1),    x.unsqueeze(1), x.unsqueeze(1).squeeze(1), x.expand({5, 2, 3, 4}), x.detach()};
  for (const Tensor& view : views) {
    EXPECT_EQ(view.storage(), x.storage());
    EXPECT_EQ(view.version(), x.version());
  }
  x.fill_(7);
  for (const Tensor& view : views) {
    for (int64_t value : view.to_vector<int64_t>()) EXPECT_EQ(value, 7);
    EXPECT_EQ(view.version(), x.version());
  }
}

TEST(Tensor, ViewValues) {
  Tensor x = numbered({2, 3});
  EXPECT_EQ(x.transpose(0, 1).to_vector<int64_t>(), (Ints{0, 3, 1, 4, 2, 5}));
  EXPECT_EQ(x.transpose(0, 1).strides(), (Strides{1, 3}));
  EXPECT_EQ(x.slice(1, 1, 3).to_vector<int64_t>(), (Ints{1, 2, 4, 5}));
  EXPECT_EQ(x.slice(1, 0, 3, 2).to_vector<int64_t>(), (Ints{0, 2, 3, 5}));
  EXPECT_EQ(x.slice(0, -1, 100).to_vector<int64_t>(), (Ints{3, 4, 5}));  // clamped as in Python
  EXPECT_EQ(x.slice(1, 2, 1).shape(), (Shape{2, 0}));
  EXPECT_EQ(x.select(1, -1).to_vector<int64_t>(), (Ints{2, 5}));
  EXPECT_EQ(x.select(0, 1).select(0, 0).item<int64_t>(), 3);
  EXPECT_EQ(x.select(0, 1).expand({2, 3}).to_vector<int64_t>(), (Ints{3, 4, 5, 3, 4, 5}));
  EXPECT_EQ(numbered({2, 3, 4}).permute({2, 0, 1}).select(0, 1).to_vector<int64_t>(),
            (Ints{1, 5, 9, 13, 17, 21}));
  EXPECT_EQ(x.unsqueeze(-1).shape(), (Shape{2, 3, 1}));
  EXPECT_EQ(x.unsqueeze(0).squeeze(0).shape(), x.shape());
  EXPECT_EQ(scalar(5.0f).unsqueeze(0).shape(), Shape{1});
  EXPECT_EQ(scalar(5.0f).flatten().shape(), Shape{1});
}

TEST(Tensor, ReshapeIsAViewWhereStridesPermit) {
  Tensor x = numbered({4, 6});
  EXPECT_EQ(x.reshape({2, -1}).shape(), (Shape{2, 12}));
  Tensor rows = x.slice(0, 1, 3);  // contiguous rows in the middle
  EXPECT_EQ(rows.reshape({12}).storage(), x.storage());
  EXPECT_EQ(rows.reshape({12}).to_vector<int64_t>()[0], 6);
  Tensor columns = x.slice(1, 0, 4);  // rows with gaps: axes can be split, not merged
  EXPECT_EQ(columns.reshape({2, 2, 2, 2}).storage(), x.storage());
  EXPECT_EQ(columns.reshape({2, 2, 2, 2}).to_vector<int64_t>(), columns.to_vector<int64_t>());
  EXPECT_NE(columns.reshape({16}).storage(), x.storage());
  EXPECT_EQ(columns.reshape({16}).to_vector<int64_t>(), columns.to_vector<int64_t>());
  Tensor turned = x.transpose(0, 1);
  EXPECT_EQ(turned.reshape({2, 3, 4}).storage(), x.storage());
  EXPECT_EQ(turned.reshape({2, 3, 4}).to_vector<int64_t>(), turned.to_vector<int64_t>());
  EXPECT_EQ(turned.reshape({6, 1, 4, 1}).storage(), x.storage());
  EXPECT_EQ(turned.reshape({24}).to_vector<int64_t>(), turned.to_vector<int64_t>());
  EXPECT_EQ(x.slice(1, 2, 3).reshape({2, 2}).to_vector<int64_t>(), (Ints{2, 8, 14, 20}));
  EXPECT_EQ(x.slice(0, 0, 0).transpose(0, 1).reshape({3, 0, 2}).numel(), 0);
}

TEST(Tensor, WhatViewsRefuse) {
  Tensor x = numbered({2, 3});
  expect_error("[reshape] [2, 3] to [4]", [&] { x.reshape({4}); });
  expect_error("more than one -1", [&] { x.reshape({-1, -1}); });
  expect_error("[reshape]", [&] { x.reshape({4, -1}); });
  expect_error("[reshape]", [&] { x.reshape({-2, 3}); });
  expect_error("[reshape]", [&] { zeros({0}).reshape({0, -1}); });
  expect_error("transpose", [&] { x.transpose(0, 2); });
  expect_error("[permute]", [&] { x.permute({0}); });
  expect_error("axis 0 twice", [&] { x.permute({0, 0}); });
  expect_error("step 0", [&] { x.slice(0, 0, 1, 0); });
  expect_error("[select] index 2", [&] { x.select(0, 2); });
  expect_error("[select] index -4", [&] { x.select(1, -4); });
  expect_error("[expand] [2, 3] to [2, 4]", [&] { x.expand({2, 4}); });
  expect_error("[expand]", [&] { x.expand({3}); });
  expect_error("has size 2, expected 1", [&] { x.squeeze(0); });
  expect_error("[unsqueeze] axis 4", [&] { x.unsqueeze(4); });
}

TEST(Tensor, CopiesAreIndependent) {
  Tensor x = numbered({2, 3}), handle = x, copy = x.clone();
  x.fill_(9);
  EXPECT_EQ(handle.to_vector<int64_t>()[0], 9);
  EXPECT_EQ(copy.to_vector<int64_t>()[0], 0);
  EXPECT_TRUE(x.contiguous().same_as(x));
  Tensor turned = copy.transpose(0, 1).contiguous();
  EXPECT_TRUE(turned.is_contiguous());
  EXPECT_EQ(turned.to_vector<int64_t>(), (Ints{0, 3, 1, 4, 2, 5}));
  EXPECT_TRUE(zeros({1, 5}).transpose(0, 1).is_contiguous());  // strides of size-1 axes do not matter
}

TEST(Tensor, InPlaceArithmetic) {
  Tensor x = from_vector<float>({1, 2, 3, 4}, {2, 2});
  uint64_t version = x.version();
  x.add_(from_vector<float>({10, 20}), 2).mul_(0.5);
  EXPECT_EQ(x.to_vector<float>(), (std::vector<float>{10.5, 21, 11.5, 22}));
  EXPECT_EQ(x.version(), version + 2);
  x.transpose(0, 1).select(0, 0).zero_();
  EXPECT_EQ(x.to_vector<float>(), (std::vector<float>{0, 21, 0, 22}));
  x.slice(1, 1, 2).copy_(from_vector<int64_t>({5}));  // broadcast and converted
  EXPECT_EQ(x.to_vector<float>(), (std::vector<float>{0, 5, 0, 5}));
  expect_error("[add_]", [&] { x.add_(ones({3})); });
  expect_error("[add_]", [&] { x.add_(ones({2, 2, 2})); });
  expect_error("[copy_]", [&] { x.copy_(ones({3})); });
  expect_error("different devices", [&] { x.add_(ones({2}, DType::float32, "meta")); });
  EXPECT_EQ(x.to_vector<float>(), (std::vector<float>{0, 5, 0, 5}));
  for (DType dtype : kAllDTypes)
    EXPECT_EQ(zeros({3}, dtype).fill_(1).to_vector<double>(), std::vector<double>(3, 1));
}

TEST(Tensor, CopyBetweenOverlappingShapesOfOneStorage) {
  Tensor x = numbered({6});
  x.slice(0, 0, 3).copy_(x.slice(0, 3, 6));
  EXPECT_EQ(x.to_vector<int64_t>(), (Ints{3, 4, 5, 3, 4, 5}));
}

TEST(Tensor, Wrap) {
  bool alive = true;
  {
    std::shared_ptr<void> owner(nullptr, [&](void*) { alive = false; });
    float values[] = {1, 2, 3, 4, 5, 6};
    const size_t held = memory_stats("cpu").current_bytes;
    Tensor x = Tensor::wrap(values, {2, 3}, DType::float32, std::move(owner));
    EXPECT_EQ(memory_stats("cpu").current_bytes, held);
    EXPECT_EQ(x.raw_data(), values);
    x.mul_(2);
    EXPECT_EQ(values[5], 12);
    values[0] = 100;
    Tensor view = x.select(0, 0);
    x = {};
    EXPECT_TRUE(alive);
    EXPECT_EQ(view.to_vector<float>(), (std::vector<float>{100, 4, 6}));
  }
  EXPECT_FALSE(alive);
}

TEST(Tensor, SetDataReachesEveryHandle) {
  Tensor w = ones({2}).set_requires_grad(), other = w;
  w.set_data(full({3}, 5, DType::float64));
  EXPECT_EQ(other.shape(), Shape{3});
  EXPECT_EQ(other.dtype(), DType::float64);
  EXPECT_EQ(other.to_vector<double>(), std::vector<double>(3, 5));
  EXPECT_TRUE(other.requires_grad());
  Tensor result = w.clone();
  expect_error("[set_data]", [&] { result.set_data(w); });
}

TEST(Tensor, Printing) {
  EXPECT_EQ(from_vector<float>({1, 2.5, -3, 0.001f, 1e6, 0}, {2, 3}).to_string(),
            "tensor([[1, 2.5, -3],\n        [0.001, 1e+06, 0]], shape=[2, 3], float32, cpu)");
  EXPECT_EQ(scalar(2.0).set_requires_grad().to_string(), "tensor(2, shape=[], float64, cpu, requires_grad)");
  EXPECT_EQ(from_vector<bool>({true, false}).to_string(), "tensor([true, false], shape=[2], bool, cpu)");
  EXPECT_EQ(from_vector<int64_t>({INT64_MAX}).to_string(),
            "tensor([9223372036854775807], shape=[1], int64, cpu)");
  EXPECT_EQ(ones({2, 2}, DType::float16, "meta").to_string(), "tensor(shape=[2, 2], float16, meta)");
  EXPECT_EQ(zeros({0, 3}).to_string(), "tensor([], shape=[0, 3], float32, cpu)");
  EXPECT_EQ(from_vector<double>({NAN, INFINITY, -INFINITY}).to_string(),
            "tensor([nan, inf, -inf], shape=[3], float64, cpu)");
  EXPECT_EQ(Tensor().to_string(), "tensor(undefined)");
  EXPECT_EQ(arange(2000).to_string(), "tensor([0, 1, 2, ..., 1997, 1998, 1999], shape=[2000], int64, cpu)");
  EXPECT_LT(zeros({500, 500}).to_string().size(), 500u);
  std::ostringstream out;
  out << zeros({1});
  EXPECT_EQ(out.str(), "tensor([0], shape=[1], float32, cpu)");
}

TEST(Tensor, MetaKnowsShapesOnly) {
  Tensor x = empty({4, 1 << 20}, DType::float32, "meta");
  EXPECT_EQ(x.transpose(0, 1).reshape({-1}).shape(), Shape{4 << 20});
  EXPECT_EQ(x.clone().add_(x).mul_(2).device(), Device("meta"));
  EXPECT_EQ(x.to(DType::float16).bytes(), size_t(8) << 20);
}

TEST(Tensor, in_place_changes_of_a_broadcast_view_are_refused) {
  Tensor one = zeros({1}), many = from_vector<float>({1, 2, 3, 4}), view = one.expand({4});
  EXPECT_THROW(view.add_(many), Error);
  EXPECT_THROW(view.copy_(many), Error);
  EXPECT_THROW(view.fill_(1), Error);
  EXPECT_THROW(view.mul_(2), Error);
  EXPECT_EQ(one.item(), 0);
  EXPECT_EQ(one.expand({1, 1}).add_(ones({1, 1})).item(), 1);
}

TEST(Tensor, wrapped_memory_must_exist) {
  EXPECT_THROW(Tensor::wrap(nullptr, {4}, DType::float32), Error);
  EXPECT_EQ(Tensor::wrap(nullptr, {0}, DType::float32).numel(), 0);
}

}  // namespace
}  // namespace lockstep
