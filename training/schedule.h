// Learning-rate schedules over optimizer steps.
//
//   Schedule schedule(optimizer, LinearWarmup(500).then(500, CosineLR(total_steps - 500)));
//   for (...) { ...; optimizer.step(); schedule.step(); }
//
// A Curve is a pure function of the step: curve(step, base) is the rate at which step `step` (0 is the first)
// is taken in a group whose base_lr is `base`. So the state of a schedule is its step count, and resuming
// anywhere repeats nothing. Beyond its end a curve stays at its last value.
#pragma once

#include <cstdint>
#include <functional>

#include "lockstep/training/optimizer.h"

namespace lockstep {

class Curve {
 public:
  using Function = std::function<double(int64_t step, double base)>;
  Curve(Function f) : f_(std::move(f)) {}
  double operator()(int64_t step, double base) const { return f_(step, base); }

  // This curve for steps before `milestone`, then `next`, whose step 0 is at the milestone.
  Curve then(int64_t milestone, Curve next) const;
  // Both at once: the second scales what the first gives.
  friend Curve operator*(Curve first, Curve second);

 private:
  Function f_;
};

// base
struct ConstantLR : Curve {
  ConstantLR();
};
// base * gamma^(step / period), rounded down
struct StepLR : Curve {
  explicit StepLR(int64_t period, double gamma = 0.1);
};
// base * gamma^(number of milestones <= step); milestones in rising order
struct MultiStepLR : Curve {
  explicit MultiStepLR(std::vector<int64_t> milestones, double gamma = 0.1);
};
// min + (base - min) (1 + cos(pi step / steps)) / 2; min from step `steps` on (Loshchilov & Hutter 2017, no
// restarts)
struct CosineLR : Curve {
  explicit CosineLR(int64_t steps, double min = 0);
};
// base * (step + 1) / steps: the first step already moves, step steps - 1 is the first with the whole base
// (Goyal et al. 2017). With steps = 0: base at once.
struct LinearWarmup : Curve {
  explicit LinearWarmup(int64_t steps);
};

struct OneCycleOptions {
  double rise = 0.3;            // part of the steps in which the rate rises
  double initial_divisor = 25;  // first rate: base / initial_divisor
  double final_divisor = 1e4;   // last rate: first rate / final_divisor
};
// Rises along a half cosine from the first rate to base, the peak, then falls to the last (Smith & Topin
// 2018; PyTorch's two-phase form; momentum is left alone).
struct OneCycleLR : Curve {
  explicit OneCycleLR(int64_t steps, const OneCycleOptions& options = {});
};

// Sets the lr of all groups of an optimizer, which must outlive it: at once for step 0, then at each step().
class Schedule {
 public:
  Schedule(Optimizer& optimizer, Curve curve);
  void step();  // after an optimizer step that was taken
  int64_t step_count() const { return step_count_; }

  StateDict state_dict() const;
  // Sets the rates of the saved step. The optimizer's own state may be loaded before or after.
  void load_state_dict(const StateDict& state);

 private:
  void apply() const;

  Optimizer& optimizer_;
  Curve curve_;
  int64_t step_count_ = 0;
};

}  // namespace lockstep
