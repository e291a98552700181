#include "lockstep/training/schedule.h"

#include <gtest/gtest.h>

#include "lockstep/runtime/autograd.h"

namespace lockstep {
namespace {

Tensor parameter() { return zeros({2}).set_requires_grad(); }

std::vector<double> rates(const Curve& curve, double base, int64_t steps) {
  std::vector<double> values;
  for (int64_t step = 0; step < steps; step++) values.push_back(curve(step, base));
  return values;
}

void expect_rates(const Curve& curve, double base, const std::vector<double>& expected) {
  auto got = rates(curve, base, int64_t(expected.size()));
  for (size_t i = 0; i < expected.size(); i++) EXPECT_NEAR(got[i], expected[i], 1e-11) << "step " << i;
}

// The rates of `steps` optimizer steps; the schedule is saved after `save_at` of them and goes on in a new
// optimizer.
std::vector<double> run(const Curve& curve, double base, int64_t steps, int64_t save_at,
                        bool optimizer_first) {
  Tensor w = parameter();
  std::vector<double> values;
  auto go = [&](SGD& optimizer, Schedule& schedule, int64_t count) {
    for (int64_t i = 0; i < count; i++) {
      values.push_back(optimizer.lr());
      optimizer.step();
      schedule.step();
    }
  };
  SGD before(Tensors{w}, {.lr = base});
  Schedule first(before, curve);
  go(before, first, save_at);
  StateDict optimizer_state = before.state_dict(), schedule_state = first.state_dict();

  SGD after(Tensors{w}, {.lr = base});
  if (optimizer_first) after.load_state_dict(optimizer_state);
  Schedule second(after, curve);
  second.load_state_dict(schedule_state);
  if (!optimizer_first) after.load_state_dict(optimizer_state);
  go(after, second, steps - save_at);
  return values;
}

TEST(Cases, C69_schedule_edges_and_resuming) {
  // Warm-up 0: the first rate is the base.
  expect_rates(LinearWarmup(0), 0.1, {0.1, 0.1});
  expect_rates(LinearWarmup(4), 0.1, {0.025, 0.05, 0.075, 0.1, 0.1});
  // Warm-up = total: nothing is left for the decay.
  expect_rates(LinearWarmup(4).then(4, CosineLR(0)), 0.1, {0.025, 0.05, 0.075, 0.1, 0, 0});

  const std::vector<double> cosine{0.1, 0.0853553390593, 0.05, 0.0146446609407, 0, 0, 0};
  expect_rates(CosineLR(4), 0.1, cosine);
  for (bool optimizer_first : {true, false}) {
    auto milestone = run(MultiStepLR({3}, 0.1), 1.0, 8, 5, optimizer_first);
    for (size_t i = 0; i < milestone.size(); i++) EXPECT_NEAR(milestone[i], i < 3 ? 1.0 : 0.1, 1e-12) << i;
    auto resumed = run(CosineLR(4), 0.1, 7, 2, optimizer_first);
    for (size_t i = 0; i < cosine.size(); i++) EXPECT_NEAR(resumed[i], cosine[i], 1e-12) << i;
  }
}

// PyTorch 2.13: the schedulers of the same names, base 1.
TEST(Schedule, agrees_with_pytorch) {
  expect_rates(OneCycleLR(10), 1.0,
               {0.04, 0.52, 1.0, 0.950484632013, 0.81174565395, 0.611262021936, 0.388741978064, 0.18825834605,
                0.0495193679865, 4e-06, 4e-06});
  expect_rates(CosineLR(4, 0.1), 1.0, {1.0, 0.868198051534, 0.55, 0.231801948466, 0.1, 0.1});
  expect_rates(StepLR(2, 0.5), 1.0, {1.0, 1.0, 0.5, 0.5, 0.25, 0.25});
  expect_rates(MultiStepLR({2, 3}), 1.0, {1.0, 1.0, 0.1, 0.01, 0.01});
  expect_rates(LinearWarmup(4).then(4, CosineLR(4)), 1.0,
               {0.25, 0.5, 0.75, 1.0, 1.0, 0.853553390593, 0.5, 0.146446609407, 0.0});
}

TEST(Schedule, curves_multiply) {
  expect_rates(LinearWarmup(4) * StepLR(2, 0.5), 1.0, {0.25, 0.5, 0.375, 0.5, 0.25});
  expect_rates(ConstantLR().then(1, StepLR(1, 0.5)), 2.0, {2, 2, 1, 0.5});
}

TEST(Schedule, one_cycle_has_no_nan_at_its_edges) {
  for (double rise : {0.0, 0.3, 1.0})
    for (int64_t steps : {1, 2, 3, 10})
      for (double rate : rates(OneCycleLR(steps, {.rise = rise}), 1.0, steps + 2)) {
        EXPECT_GE(rate, 0) << rise << " " << steps;
        EXPECT_LE(rate, 1) << rise << " " << steps;
      }
}

TEST(Schedule, keeps_the_ratio_of_groups) {
  Tensor a = parameter(), b = parameter();
  SGD optimizer({{.parameters = {a}}, {.parameters = {b}, .lr = 0.01}}, {.lr = 0.1});
  Schedule schedule(optimizer, LinearWarmup(2));
  EXPECT_DOUBLE_EQ(optimizer.groups()[0].lr, 0.05);
  EXPECT_DOUBLE_EQ(optimizer.groups()[1].lr, 0.005);
  schedule.step();
  EXPECT_DOUBLE_EQ(optimizer.groups()[0].lr, 0.1);
  EXPECT_DOUBLE_EQ(optimizer.groups()[1].lr, 0.01);
  EXPECT_DOUBLE_EQ(optimizer.groups()[1].base_lr, 0.01);
}

TEST(Schedule, refuses_bad_arguments) {
  EXPECT_THROW(StepLR(0), Error);
  EXPECT_THROW(StepLR(1, -1), Error);
  EXPECT_THROW(MultiStepLR({3, 2}), Error);
  EXPECT_THROW(CosineLR(-1), Error);
  EXPECT_THROW(LinearWarmup(-1), Error);
  EXPECT_THROW(OneCycleLR(0), Error);
  EXPECT_THROW(OneCycleLR(5, {.rise = 1.5}), Error);
  EXPECT_THROW(ConstantLR().then(-1, ConstantLR()), Error);
  SGD optimizer(Tensors{parameter()}, {.lr = 1});
  Schedule schedule(optimizer, StepLR(1));
  schedule.step();
  EXPECT_THROW(schedule.load_state_dict({}), Error);
  EXPECT_THROW(schedule.load_state_dict({{"step", scalar(int64_t(-1))}}), Error);
  EXPECT_THROW(schedule.load_state_dict({{"step", scalar(1.0f)}}), Error);
  EXPECT_EQ(schedule.step_count(), 1);
  EXPECT_DOUBLE_EQ(optimizer.lr(), 0.1);
}

}  // namespace
}  // namespace lockstep
