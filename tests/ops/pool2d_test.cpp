#include "lockstep/ops/pool2d.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "tests/ops/op_harness.h"

namespace lockstep {
namespace {

using test::check_op;
using test::OpRow;

// Naive windows, straight from the definitions: calls element(oh, ow, h, w) for every element of every window
// in the padded plane, inside the input or not.
template <class F>
void for_fixed_windows(const Pool2dOptions& o, int64_t OH, int64_t OW, F&& element) {
  const int64_t sh = o.stride[0] ? o.stride[0] : o.kernel[0], sw = o.stride[1] ? o.stride[1] : o.kernel[1];
  for (int64_t oh = 0; oh < OH; oh++)
    for (int64_t ow = 0; ow < OW; ow++)
      for (int64_t i = 0; i < o.kernel[0]; i++)
        for (int64_t j = 0; j < o.kernel[1]; j++)
          element(oh, ow, oh * sh + i - o.padding.top, ow * sw + j - o.padding.left);
}

struct Plane {  // one channel of one image
  int64_t H, W, C;
  const double* x;
  double operator()(int64_t h, int64_t w) const { return x[(h * W + w) * C]; }
  bool contains(int64_t h, int64_t w) const { return h >= 0 && h < H && w >= 0 && w < W; }
};

// y[n, oh, ow, c] from plane(Plane, output [OH * OW]).
template <class F>
Tensor per_plane(const Tensor& x, int64_t OH, int64_t OW, F&& f) {
  const int64_t N = x.size(0), H = x.size(1), W = x.size(2), C = x.size(3);
  const std::vector<double> in = x.to_vector<double>();
  std::vector<double> y(size_t(N * OH * OW * C)), plane(size_t(OH * OW));
  for (int64_t n = 0; n < N; n++)
    for (int64_t c = 0; c < C; c++) {
      f(Plane{H, W, C, in.data() + n * H * W * C + c}, plane);
      for (int64_t i = 0; i < OH * OW; i++) y[size_t((n * OH * OW + i) * C + c)] = plane[size_t(i)];
    }
  return from_vector(y, {N, OH, OW, C});
}

Tensor naive_max(const Tensor& x, const Pool2dOptions& o, int64_t OH, int64_t OW) {
  return per_plane(x, OH, OW, [&](const Plane& in, std::vector<double>& y) {
    std::fill(y.begin(), y.end(), -std::numeric_limits<double>::infinity());
    for_fixed_windows(o, OH, OW, [&](int64_t oh, int64_t ow, int64_t h, int64_t w) {
      double& best = y[size_t(oh * OW + ow)];
      if (in.contains(h, w)) best = std::max(best, in(h, w));
    });
  });
}

Tensor naive_avg(const Tensor& x, const Pool2dOptions& o, int64_t OH, int64_t OW) {
  return per_plane(x, OH, OW, [&](const Plane& in, std::vector<double>& y) {
    std::fill(y.begin(), y.end(), 0);
    std::vector<double> count(y.size());
    for_fixed_windows(o, OH, OW, [&](int64_t oh, int64_t ow, int64_t h, int64_t w) {
      if (in.contains(h, w)) y[size_t(oh * OW + ow)] += in(h, w);
      const bool padded = h < in.H + o.padding.bottom && w < in.W + o.padding.right;
      count[size_t(oh * OW + ow)] += o.count_include_pad ? padded : in.contains(h, w);
    });
    for (size_t i = 0; i < y.size(); i++) y[i] /= count[i];
  });
}

template <class F>
Tensor naive_adaptive(const Tensor& x, int64_t OH, int64_t OW, double start, F&& combine) {
  return per_plane(x, OH, OW, [&](const Plane& in, std::vector<double>& y) {
    for (int64_t oh = 0; oh < OH; oh++)
      for (int64_t ow = 0; ow < OW; ow++) {
        const int64_t h0 = oh * in.H / OH, h1 = ((oh + 1) * in.H + OH - 1) / OH;
        const int64_t w0 = ow * in.W / OW, w1 = ((ow + 1) * in.W + OW - 1) / OW;
        double value = start;
        for (int64_t h = h0; h < h1; h++)
          for (int64_t w = w0; w < w1; w++) value = combine(value, in(h, w), double((h1 - h0) * (w1 - w0)));
        y[size_t(oh * OW + ow)] = value;
      }
  });
}

// Different values everywhere, so that every maximum is unique by more than gradcheck's step, in every dtype.
std::vector<double> distinct(int64_t count) {
  std::vector<double> values;
  for (int64_t i = 0; i < count; i++) values.push_back(double(i * 61 % 251 - 125) / 64);
  return values;
}

struct PoolCase {
  const char* name;
  Shape x;
  Pool2dOptions options;
  int64_t OH, OW;
};

// C = 1, 6 and 41 reach every kind of block of lanes; 251 values bound the size, so maxima stay unique.
const PoolCase kCases[] = {
    {"2x2", {1, 4, 6, 6}, {}, 2, 3},
    {"2x2 of one channel", {2, 6, 8, 1}, {}, 3, 4},
    {"2x2 of many channels", {1, 2, 2, 41}, {}, 1, 1},
    {"2x2 of twelve channels", {1, 2, 10, 12}, {}, 1, 5},
    {"2x2 with a rest", {1, 5, 7, 3}, {.kernel = {2, 2}}, 2, 3},
    {"2x2 with a rest in ceil mode", {1, 5, 7, 3}, {.ceil_mode = true}, 3, 4},
    {"2x3 side by side", {1, 4, 6, 9}, {.kernel = {2, 3}}, 2, 2},
    {"3x3 overlapping", {1, 7, 5, 6}, {.kernel = {3, 3}, .stride = {2, 1}, .padding = 1}, 4, 5},
    {"3x3 uncounted padding",
     {1, 5, 5, 7},
     {.kernel = {3, 3}, .stride = {2, 2}, .padding = 1, .count_include_pad = false},
     3,
     3},
    {"4x3 asymmetric", {1, 5, 6, 5}, {.kernel = {4, 3}, .stride = {2, 2}, .padding = {2, 0, 0, 1}}, 2, 3},
    {"ceil over padding",
     {1, 6, 6, 4},
     {.kernel = {3, 3}, .stride = {2, 2}, .padding = 1, .ceil_mode = true},
     4,
     4},
    {"gaps between windows", {1, 7, 7, 5}, {.kernel = {2, 2}, .stride = {3, 3}}, 2, 2},
};

TEST(OpPool2d, MaxRows) {
  for (const PoolCase& c : kCases) {
    SCOPED_TRACE(c.name);
    check_op({.name = "max_pool2d",
              .inputs = {{.shape = c.x, .values = distinct(c.x.numel())}},
              .op = [&](const Tensors& x) { return max_pool2d(x[0], c.options); },
              .reference = [&](const Tensors& x) { return naive_max(x[0], c.options, c.OH, c.OW); },
              .length = 9,
              .empty_shapes = {{0, c.x[1], c.x[2], c.x[3]}}});
  }
}

TEST(OpPool2d, AvgRows) {
  for (const PoolCase& c : kCases) {
    SCOPED_TRACE(c.name);
    check_op({.name = "avg_pool2d",
              .inputs = {{.shape = c.x}},
              .op = [&](const Tensors& x) { return avg_pool2d(x[0], c.options); },
              .reference = [&](const Tensors& x) { return naive_avg(x[0], c.options, c.OH, c.OW); },
              .length = 12,
              .empty_shapes = {{0, c.x[1], c.x[2], c.x[3]}}});
  }
}

TEST(OpPool2d, AdaptiveRows) {
  for (std::array<int64_t, 2> size : {std::array<int64_t, 2>{3, 4}, {1, 1}, {5, 7}, {8, 2}}) {
    SCOPED_TRACE(concat(size[0], " x ", size[1]));
    const Shape shape{1, 5, 7, 7};
    check_op({.name = "adaptive_avg_pool2d",
              .inputs = {{.shape = shape}},
              .op = [&](const Tensors& x) { return adaptive_avg_pool2d(x[0], size); },
              .reference =
                  [&](const Tensors& x) {
                    return naive_adaptive(x[0], size[0], size[1], 0,
                                          [](double sum, double v, double count) { return sum + v / count; });
                  },
              .length = 35,
              .empty_shapes = {{0, 5, 7, 7}}});
    check_op({.name = "adaptive_max_pool2d",
              .inputs = {{.shape = shape, .values = distinct(shape.numel())}},
              .op = [&](const Tensors& x) { return adaptive_max_pool2d(x[0], size); },
              .reference =
                  [&](const Tensors& x) {
                    return naive_adaptive(x[0], size[0], size[1], -std::numeric_limits<double>::infinity(),
                                          [](double best, double v, double) { return std::max(best, v); });
                  },
              .length = 4,
              .empty_shapes = {{0, 5, 7, 7}}});
  }
}

TEST(OpPool2d, GlobalAvgRow) {
  check_op({.name = "global_avg_pool2d",
            .inputs = {{.shape = {3, 4, 5, 9}}},
            .op = [](const Tensors& x) { return global_avg_pool2d(x[0]); },
            .reference =
                [](const Tensors& x) {
                  return naive_adaptive(x[0], 1, 1, 0,
                                        [](double sum, double v, double count) { return sum + v / count; })
                      .reshape({x[0].size(0), x[0].size(3)});
                },
            .length = 20,
            .empty_shapes = {{0, 4, 5, 9}}});
}

TEST(OpPool2d, BadInput) {
  const Tensor x = ones({1, 4, 4, 2});
  test::expect_error("expected [N, H, W, C]", [] { max_pool2d(ones({4, 4, 2})); });
  test::expect_error("expected a floating-point dtype", [] {
    avg_pool2d(zeros({1, 4, 4, 2}, DType::int32));
  });
  test::expect_error("half of the kernel 2", [&] { max_pool2d(x, {.padding = 2}); });
  test::expect_error("got padding -1", [&] { max_pool2d(x, {.padding = -1}); });
  test::expect_error("kernel 5 is larger than the 4 padded rows", [&] { avg_pool2d(x, {.kernel = {5, 1}}); });
  test::expect_error("got kernel 0", [&] { avg_pool2d(x, {.kernel = {2, 0}}); });
  test::expect_error("stride -1", [&] { avg_pool2d(x, {.stride = {-1, 1}}); });
  test::expect_error("got output size 0 x 2", [&] { adaptive_avg_pool2d(x, {0, 2}); });
  test::expect_error("with at least one pixel", [] { global_avg_pool2d(zeros({1, 0, 4, 2})); });
}

TEST(OpPool2d, NanWinsAndTiesGoToTheFirst) {
  const float nan = std::nanf(""), inf = std::numeric_limits<float>::infinity();
  for (float first : {1.0f, nan})
    for (float second : {nan, 1.0f}) {
      Tensor y = max_pool2d(from_vector<float>({first, 2, second, 3}, {1, 2, 2, 1}));
      EXPECT_EQ(std::isnan(y.item<float>()), std::isnan(first) || std::isnan(second));
      y = max_pool2d(from_vector<float>({first, 2, second}, {1, 1, 3, 1}), {.kernel = {1, 3}});
      EXPECT_EQ(std::isnan(y.item<float>()), std::isnan(first) || std::isnan(second));
    }
  for (float value : {0.0f, -inf}) {
    Tensor x = full({1, 2, 2, 1}, value).set_requires_grad();
    max_pool2d(x).backward(ones({1, 1, 1, 1}));
    EXPECT_EQ(x.grad().to_vector<float>(), (std::vector<float>{1, 0, 0, 0})) << value;
  }
}

// The place of a maximum does not fit in a byte.
TEST(OpPool2d, LargeWindow) {
  Tensor x = zeros({1, 20, 20, 1});
  x.data<float>()[399] = 1;
  x.set_requires_grad();
  Tensor y = max_pool2d(x, {.kernel = {20, 20}});
  EXPECT_EQ(y.item(), 1);
  y.backward(full({1, 1, 1, 1}, 3));
  for (int i = 0; i < 400; i++) EXPECT_EQ(x.grad().data<float>()[i], i == 399 ? 3 : 0);
}

// A running float sum of a million 0.1 is off by 1 %.
TEST(OpPool2d, LongSum) {
  Tensor y = global_avg_pool2d(full({1, 1000, 1000, 2}, 0.1));
  for (float mean : y.to_vector<float>()) EXPECT_NEAR(mean, 0.1f, 1e-6f);
}

std::vector<double> column(int count) {
  std::vector<double> values;
  for (int i = 0; i < count; i++) values.push_back(i);
  return values;
}

TEST(Cases, C38_pooling_windows) {
  // The ceil overhang does not count.
  Tensor y =
      avg_pool2d(from_vector<float>({1, 2, 3, 4, 5}, {1, 1, 5, 1}), {.kernel = {1, 2}, .ceil_mode = true});
  EXPECT_EQ(y.to_vector<float>(), (std::vector<float>{1.5, 3.5, 5.0}));

  Tensor square = from_vector<float>({1, 2, 3, 4}, {1, 2, 2, 1});
  Pool2dOptions padded{.kernel = {3, 3}, .stride = {1, 1}, .padding = 1};
  for (float v : avg_pool2d(square, padded).to_vector<float>()) EXPECT_FLOAT_EQ(v, 10.0f / 9);
  padded.count_include_pad = false;
  for (float v : avg_pool2d(square, padded).to_vector<float>()) EXPECT_EQ(v, 2.5f);

  for (Shape shape : {Shape{1, 1, 5, 1}, Shape{1, 5, 1, 1}}) {
    const bool rows = shape[1] == 5;
    Pool2dOptions options{.padding = rows ? PoolPadding(1, 0) : PoolPadding(0, 1), .ceil_mode = true};
    options.kernel = rows ? std::array<int64_t, 2>{2, 1} : std::array<int64_t, 2>{1, 2};
    y = max_pool2d(from_vector<float>({-1, -2, -3, -4, -5}, shape), options);
    EXPECT_EQ(y.to_vector<float>(), (std::vector<float>{-1, -2, -4})) << shape;
  }

  y = adaptive_avg_pool2d(from_vector(column(10), {1, 1, 10, 1}), {1, 3});
  EXPECT_EQ(y.to_vector<double>(), (std::vector<double>{1.5, 4.5, 7.5}));
  y = adaptive_avg_pool2d(from_vector(column(10), {1, 10, 1, 1}), {3, 1});
  EXPECT_EQ(y.to_vector<double>(), (std::vector<double>{1.5, 4.5, 7.5}));
}

}  // namespace
}  // namespace lockstep
