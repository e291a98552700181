// Every plan for every direction, forced, on many geometries: values against patches in double, what
// surrounds the results, and the number of threads.
#include "lockstep/ops/conv2d_plans.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "tests/ops/op_harness.h"

namespace lockstep {
namespace {

using cpu::ConvDirection;
using cpu::ConvGeometry;
using cpu::ConvPlan;

constexpr ConvPlan kPlans[] = {ConvPlan::im2col, ConvPlan::onednn, ConvPlan::direct, ConvPlan::direct_avx512};
constexpr const char* kPlanNames[] = {"im2col", "onednn", "direct", "direct_avx512"};

// Square things; `pad` on all sides.
ConvGeometry square(int64_t N, int64_t size, int64_t C, int64_t K, int64_t kernel, int64_t stride = 1,
                    int64_t pad = 0, int64_t groups = 1) {
  const int64_t out = (size + 2 * pad - kernel) / stride + 1;
  return {.N = N,
          .H = size,
          .W = size,
          .C = C,
          .K = K,
          .R = kernel,
          .S = kernel,
          .P = out,
          .Q = out,
          .stride_h = stride,
          .stride_w = stride,
          .top = pad,
          .bottom = pad,
          .left = pad,
          .right = pad,
          .dilation_h = 1,
          .dilation_w = 1,
          .groups = groups};
}

std::vector<ConvGeometry> geometries() {
  std::vector<ConvGeometry> all = {
      square(5, 28, 1, 6, 5, 1, 2),       // LeNet 1
      square(18, 14, 6, 16, 5),           // LeNet 2
      square(3, 28, 1, 32, 3),            // MNIST CNN 1
      square(3, 26, 32, 64, 3),           // MNIST CNN 2
      square(33, 8, 16, 24, 3, 1, 1),     // chunks of 3 samples
      square(2, 32, 3, 64, 3, 1, 1),      // CIFAR
      square(1, 30, 3, 64, 7, 2, 3),      // ImageNet's first
      square(4, 9, 64, 32, 1),            // 1x1
      square(4, 9, 64, 32, 1, 2),         // 1x1, stride 2
      square(4, 9, 6, 32, 1, 2),          // the hazard: fewer than 8 channels
      square(4, 9, 3, 5, 1, 2),           //
      square(4, 9, 12, 32, 1, 2),         //
      square(3, 7, 24, 24, 3, 1, 1, 24),  // depthwise
      square(3, 7, 24, 24, 3, 2, 1, 24), square(2, 7, 16, 32, 3, 1, 1, 2),  // groups
      square(2, 7, 6, 4, 3, 1, 1, 2),    square(2, 9, 8, 8, 9, 1, 4),       // a large kernel, 8 channels
      square(2, 11, 5, 7, 11, 1, 5),     square(2, 5, 4, 3, 5),             // one pixel
      square(2, 3, 2, 3, 2, 1, 4),                                          // padding beyond the kernel
      square(70, 4, 2, 40, 2),           square(2, 6, 7, 130, 2, 1, 1),
  };
  ConvGeometry odd = square(3, 10, 3, 20, 3);  // everything different along the two axes
  odd.W = 13, odd.R = 4, odd.S = 2, odd.top = 2, odd.bottom = 1, odd.left = 0, odd.right = 3;
  odd.P = odd.H + 3 - odd.R + 1, odd.Q = odd.W + 3 - odd.S + 1;
  all.push_back(odd);
  odd.C = 17;
  all.push_back(odd);
  odd.dilation_h = 2, odd.dilation_w = 3;
  odd.P = odd.H + 3 - 2 * (odd.R - 1), odd.Q = odd.W + 3 - 3 * (odd.S - 1);
  all.push_back(odd);
  return all;
}

std::string describe(const ConvGeometry& g) {
  return concat("x [", g.N, ", ", g.H, ", ", g.W, ", ", g.C, "], w [", g.K, ", ", g.R, ", ", g.S, ", ",
                g.group_channels(), "], stride ", g.stride_h, ", padding ", g.top, " ", g.bottom, " ", g.left,
                " ", g.right, ", dilation ", g.dilation_h, ", groups ", g.groups);
}

// `count` values with a pattern on both sides.
class Guarded {
 public:
  explicit Guarded(int64_t count) : values_(size_t(count + 2 * kBorder), kPattern) {}
  Guarded(uint64_t seed, int64_t count) : Guarded(count) {
    const std::vector<double> drawn = test::draw(seed, count);
    std::copy(drawn.begin(), drawn.end(), data());
  }
  float* data() { return values_.data() + kBorder; }
  int64_t size() const { return int64_t(values_.size()) - 2 * kBorder; }
  std::vector<double> doubles() { return {data(), data() + size()}; }
  bool surroundings_intact() const {
    for (int64_t i = 0; i < kBorder; i++)
      if (values_[size_t(i)] != kPattern || values_[values_.size() - 1 - size_t(i)] != kPattern) return false;
    return true;
  }
  bool operator==(const Guarded& other) const {
    return std::memcmp(values_.data(), other.values_.data(), values_.size() * sizeof(float)) == 0;
  }

 private:
  static constexpr int64_t kBorder = 128;
  static constexpr float kPattern = 12345.75f;
  std::vector<float> values_;
};

void expect_close(Guarded& got, const std::vector<double>& want, int64_t length) {
  double squares = 0;
  for (double v : want) squares += v * v;
  const double rms = std::sqrt(squares / double(want.size()));
  const double allowed = 2 * test::tolerance(DType::float32, length);
  for (size_t i = 0; i < want.size(); i++)
    if (!(std::abs(double(got.data()[i]) - want[i]) <= allowed * (std::abs(want[i]) + rms))) {
      ADD_FAILURE() << "element " << i << " is " << got.data()[i] << ", expected " << want[i];
      return;
    }
}

struct Results {
  Guarded y, relu_y, dx, dw, dbias;
  explicit Results(const ConvGeometry& g)
      : y(g.N * g.y_sample()), relu_y(y.size()), dx(g.N * g.x_sample()), dw(g.weights()), dbias(g.K) {}
};

// Runs what `plan` supports; true if that is anything.
bool run(ConvPlan plan, const ConvGeometry& g, Guarded& x, Guarded& w, Guarded& bias, Guarded& dy,
         Results& out) {
  bool any = false;
  if (plan_supports(plan, ConvDirection::forward, g, false))
    any = true, conv_forward<float>(plan, g, x.data(), w.data(), nullptr, false, out.y.data());
  if (plan_supports(plan, ConvDirection::forward, g, true))
    any = true, conv_forward<float>(plan, g, x.data(), w.data(), bias.data(), true, out.relu_y.data());
  if (plan_supports(plan, ConvDirection::backward_input, g))
    any = true, conv_backward_input<float>(plan, g, dy.data(), w.data(), out.dx.data());
  if (plan_supports(plan, ConvDirection::backward_weight, g))
    any = true, conv_backward_weight<float>(plan, g, x.data(), dy.data(), out.dw.data(), out.dbias.data());
  return any;
}

TEST(ConvPlans, AgreeWithPatchesInDoubleAndWriteNothingElse) {
  for (const ConvGeometry& g : geometries()) {
    Guarded x(1, g.N * g.x_sample()), w(2, g.weights()), bias(3, g.K), dy(4, g.N * g.y_sample());
    const Guarded before[] = {x, w, bias, dy};
    std::vector<double> xd = x.doubles(), wd = w.doubles(), bd = bias.doubles(), dyd = dy.doubles();
    std::vector<double> y(dyd.size()), relu_y(dyd.size()), dx(xd.size()), dw(wd.size()), dbias(bd.size());
    cpu::im2col_forward<double>(g, xd.data(), wd.data(), nullptr, false, y.data());
    cpu::im2col_forward<double>(g, xd.data(), wd.data(), bd.data(), true, relu_y.data());
    cpu::im2col_backward_input<double>(g, dyd.data(), wd.data(), dx.data());
    cpu::conv_backward_weight<double>(ConvPlan::im2col, g, xd.data(), dyd.data(), dw.data(), dbias.data());
    for (ConvPlan plan : kPlans) {
      SCOPED_TRACE(concat(kPlanNames[int(plan)], ": ", describe(g)));
      Results out(g);
      if (!run(plan, g, x, w, bias, dy, out)) continue;
      const int64_t depth = g.R * g.S * g.group_channels();
      if (plan_supports(plan, ConvDirection::forward, g, false)) expect_close(out.y, y, depth);
      if (plan_supports(plan, ConvDirection::forward, g, true)) expect_close(out.relu_y, relu_y, depth);
      if (plan_supports(plan, ConvDirection::backward_input, g))
        expect_close(out.dx, dx, g.R * g.S * g.K / g.groups);
      if (plan_supports(plan, ConvDirection::backward_weight, g)) {
        expect_close(out.dw, dw, g.N * g.P * g.Q);
        expect_close(out.dbias, dbias, 1);
      }
      for (const Guarded* result : {&out.y, &out.relu_y, &out.dx, &out.dw, &out.dbias})
        EXPECT_TRUE(result->surroundings_intact());
      EXPECT_TRUE(x == before[0] && w == before[1] && bias == before[2] && dy == before[3])
          << "an input was written";
    }
  }
}

TEST(ConvPlans, SameBitsForAnyNumberOfThreads) {
  const int threads_before = num_threads();
  for (const ConvGeometry& g : geometries()) {
    Guarded x(1, g.N * g.x_sample()), w(2, g.weights()), bias(3, g.K), dy(4, g.N * g.y_sample());
    for (ConvPlan plan : kPlans) {
      SCOPED_TRACE(concat(kPlanNames[int(plan)], ": ", describe(g)));
      Results one(g);
      set_num_threads(1);
      if (!run(plan, g, x, w, bias, dy, one)) continue;
      for (int threads : {2, 7, 8}) {
        set_num_threads(threads);
        Results many(g);
        run(plan, g, x, w, bias, dy, many);
        EXPECT_TRUE(many.y == one.y && many.relu_y == one.relu_y) << threads << " threads, forward";
        EXPECT_TRUE(many.dx == one.dx) << threads << " threads, backward of the input";
        EXPECT_TRUE(many.dw == one.dw && many.dbias == one.dbias)
            << threads << " threads, backward of the weight";
      }
    }
  }
  set_num_threads(threads_before);
}

TEST(ConvPlans, ReluKeepsNaN) {
  const ConvGeometry g = square(2, 6, 8, 20, 3);
  Guarded x(1, g.N * g.x_sample()), w(2, g.weights());
  std::fill_n(x.data(), x.size(), NAN);
  for (ConvPlan plan : kPlans) {
    if (!plan_supports(plan, ConvDirection::forward, g, false)) continue;
    Guarded y(g.N * g.y_sample());
    conv_forward<float>(plan, g, x.data(), w.data(), nullptr, true, y.data());
    for (int64_t i = 0; i < y.size(); i++) ASSERT_TRUE(std::isnan(y.data()[i])) << kPlanNames[int(plan)];
  }
}

// The primitives of oneDNN are kept, but not all: shapes that come back after many others are made anew.
TEST(ConvPlans, MoreShapesThanAreKept) {
  auto convolve = [](int64_t filters) {
    const ConvGeometry g = square(1, 4, 16, filters, 3);
    Guarded x(1, g.N * g.x_sample()), w(2, g.weights()), y(g.N * g.y_sample());
    conv_forward<float>(choose_plan(ConvDirection::forward, g), g, x.data(), w.data(), nullptr, false,
                        y.data());
    return y;
  };
  const Guarded first = convolve(1);
  for (int64_t filters = 2; filters < 300; filters++) convolve(filters);
  EXPECT_TRUE(convolve(1) == first);
}

TEST(ConvPlans, TheHazardOfOneDnnIsNeverChosen) {
  for (int64_t channels : {1, 3, 6, 7, 12}) {
    const ConvGeometry g = square(4, 9, channels, 32, 1, 2);
    for (ConvDirection direction :
         {ConvDirection::forward, ConvDirection::backward_input, ConvDirection::backward_weight}) {
      EXPECT_FALSE(plan_supports(ConvPlan::onednn, direction, g));
      EXPECT_NE(choose_plan(direction, g), ConvPlan::onednn);
    }
  }
}

#ifdef LOCKSTEP_ONEDNN
TEST(ConvPlans, OneDnnTakesTheOrdinaryConvolutions) {
  for (const ConvGeometry& g : {square(16, 14, 64, 64, 3, 1, 1), square(16, 14, 64, 64, 3, 1, 1, 64),
                                square(2, 30, 3, 64, 7, 2, 3), square(17, 8, 24, 40, 3, 2, 1)})
    for (ConvDirection direction :
         {ConvDirection::forward, ConvDirection::backward_input, ConvDirection::backward_weight})
      EXPECT_EQ(choose_plan(direction, g), ConvPlan::onednn)
          << describe(g) << ", direction " << int(direction);
}
#endif

}  // namespace
}  // namespace lockstep
