#include "lockstep/training/schedule.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace lockstep {

namespace {

// From `from` at part 0 to `to` at part 1 along a half cosine.
double half_cosine(double from, double to, double part) {
  return to + (from - to) * (1 + std::cos(std::numbers::pi * part)) / 2;
}

void check_gamma(const char* op, double gamma) {
  LOCKSTEP_CHECK(std::isfinite(gamma) && gamma >= 0, "[", op, "] gamma ", gamma, ", expected 0 or more");
}

}  // namespace

Curve Curve::then(int64_t milestone, Curve next) const {
  LOCKSTEP_CHECK(milestone >= 0, "[Curve::then] milestone ", milestone, ", expected 0 or more");
  return Curve([first = *this, milestone, next = std::move(next)](int64_t step, double base) {
    return step < milestone ? first(step, base) : next(step - milestone, base);
  });
}

Curve operator*(Curve first, Curve second) {
  return Curve([first = std::move(first), second = std::move(second)](int64_t step, double base) {
    return second(step, first(step, base));
  });
}

ConstantLR::ConstantLR() : Curve([](int64_t, double base) { return base; }) {}

StepLR::StepLR(int64_t period, double gamma)
    : Curve([=](int64_t step, double base) { return base * std::pow(gamma, double(step / period)); }) {
  LOCKSTEP_CHECK(period >= 1, "[StepLR] period ", period, ", expected 1 or more");
  check_gamma("StepLR", gamma);
}

MultiStepLR::MultiStepLR(std::vector<int64_t> milestones, double gamma)
    : Curve([milestones, gamma](int64_t step, double base) {
        auto passed = std::upper_bound(milestones.begin(), milestones.end(), step) - milestones.begin();
        return base * std::pow(gamma, double(passed));
      }) {
  LOCKSTEP_CHECK(std::is_sorted(milestones.begin(), milestones.end()),
                 "[MultiStepLR] milestones, expected rising ones");
  check_gamma("MultiStepLR", gamma);
}

CosineLR::CosineLR(int64_t steps, double min)
    : Curve([=](int64_t step, double base) {
        return step >= steps ? min : half_cosine(base, min, double(step) / double(steps));
      }) {
  LOCKSTEP_CHECK(steps >= 0, "[CosineLR] ", steps, " steps, expected 0 or more");
  LOCKSTEP_CHECK(std::isfinite(min) && min >= 0, "[CosineLR] min ", min, ", expected 0 or more");
}

LinearWarmup::LinearWarmup(int64_t steps)
    : Curve([=](int64_t step, double base) {
        return step + 1 >= steps ? base : base * double(step + 1) / double(steps);
      }) {
  LOCKSTEP_CHECK(steps >= 0, "[LinearWarmup] ", steps, " steps, expected 0 or more");
}

OneCycleLR::OneCycleLR(int64_t steps, const OneCycleOptions& options)
    : Curve([=](int64_t step, double base) {
        const double first = base / options.initial_divisor, last = first / options.final_divisor;
        const double end = double(steps - 1), peak = std::max(options.rise * double(steps) - 1, 0.0),
                     at = double(step);
        if (at >= end) return last;
        return at < peak ? half_cosine(first, base, at / peak)
                         : half_cosine(base, last, (at - peak) / (end - peak));
      }) {
  LOCKSTEP_CHECK(steps >= 1, "[OneCycleLR] ", steps, " steps, expected 1 or more");
  LOCKSTEP_CHECK(0 <= options.rise && options.rise <= 1, "[OneCycleLR] rise ", options.rise,
                 ", expected one in [0, 1]");
  LOCKSTEP_CHECK(options.initial_divisor > 0 && options.final_divisor > 0, "[OneCycleLR] divisors ",
                 options.initial_divisor, " and ", options.final_divisor, ", expected positive ones");
}

Schedule::Schedule(Optimizer& optimizer, Curve curve) : optimizer_(optimizer), curve_(std::move(curve)) {
  apply();
}

void Schedule::step() {
  step_count_++;
  apply();
}

void Schedule::apply() const {
  for (ParameterGroup& group : optimizer_.groups()) group.lr = curve_(step_count_, group.base_lr);
}

StateDict Schedule::state_dict() const { return {{"step", scalar(step_count_)}}; }

void Schedule::load_state_dict(const StateDict& state) {
  LOCKSTEP_CHECK(state.size() == 1 && state[0].first == "step" && state[0].second.defined() &&
                     state[0].second.dtype() == DType::int64 && state[0].second.numel() == 1,
                 "[Schedule] state of ", state.size(), " entries, expected \"step\", one int64");
  const int64_t step = state[0].second.item<int64_t>();
  LOCKSTEP_CHECK(step >= 0, "[Schedule] state \"step\" is ", step, ", expected 0 or more");
  step_count_ = step;
  apply();
}

}  // namespace lockstep
