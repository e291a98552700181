// Optimizers: SGD, Adam, AdamW with PyTorch's formulas (ops/sgd.h, ops/adam.h).
//
//   AdamW optimizer(model.named_parameters(), {.lr = 1e-3});
//   SGD two_rates({{.parameters = head.parameters()}, {.parameters = body.parameters(), .lr = 0.01}},
//                 {.lr = 0.1, .momentum = 0.9});
//
// A step is one parallel pass over all parameters; those frozen or without a gradient are passed over.
// Everything is checked, and all state allocated, before the first weight changes. State (momentum, moments)
// is float32, or float64 for float64 parameters, and made when a parameter first has a gradient; step
// counters are int64. Updates of a 16-bit parameter are rounded to it at each step, so small ones vanish:
// train float32 parameters and cast copies of them.
#pragma once

#include <array>
#include <cstdint>
#include <initializer_list>
#include <limits>
#include <span>
#include <string>
#include <vector>

#include "lockstep/ops/parameter_update.h"
#include "lockstep/runtime/stream.h"
#include "lockstep/training/state_dict.h"

namespace lockstep {

inline constexpr double kFromOptions = -std::numeric_limits<double>::infinity();

struct ParameterGroup {
  Tensors parameters;
  double lr = kFromOptions;  // the optimizer's options say, unless set
  double weight_decay = kFromOptions;
  std::vector<std::string> names = {};  // of the parameters, for errors and the state dict; or none
  double base_lr = kFromOptions;        // from which schedules compute lr; lr, unless set
};

// What an optimizer is made of: tensors, named tensors, or groups.
struct ParameterGroups {
  ParameterGroups(const Tensors& parameters) : groups{{.parameters = parameters}} {}
  ParameterGroups(const StateDict& named_parameters);
  ParameterGroups(std::vector<ParameterGroup> groups) : groups(std::move(groups)) {}
  ParameterGroups(std::initializer_list<Tensor> parameters) : ParameterGroups(Tensors(parameters)) {}
  ParameterGroups(std::initializer_list<ParameterGroup> groups) : groups(groups) {}

  std::vector<ParameterGroup> groups;
};

class Optimizer {
 public:
  virtual ~Optimizer() = default;
  Optimizer(const Optimizer&) = delete;
  Optimizer& operator=(const Optimizer&) = delete;

  void step();
  void zero_grad();  // forgets the gradients
  int64_t step_count() const { return step_count_; }

  // lr, base_lr and weight_decay may be changed between steps; the list of parameters may not.
  std::vector<ParameterGroup>& groups() { return groups_; }
  const std::vector<ParameterGroup>& groups() const { return groups_; }
  double lr() const { return groups_[0].lr; }
  void set_lr(double lr);  // lr and base_lr of all groups

  // step, steps (of each parameter), groups (lr, base_lr, weight_decay), and "<parameter>.<state>" for each
  // parameter that has been updated; a parameter without a name goes by its place, "0", "1", ... State
  // tensors are shared, not copied.
  StateDict state_dict() const;
  // Everything is checked, and copied, before anything is changed; the first thing wrong is named.
  void load_state_dict(const StateDict& state);

 protected:
  // state_names: at most 2, in the order of ParameterUpdate::state.
  Optimizer(const char* op, ParameterGroups groups, double lr, double weight_decay,
            std::vector<std::string> state_names);
  virtual void update(std::span<const ParameterUpdate> updates, Stream s) = 0;

 private:
  struct Slot {
    Tensor parameter;
    std::string name;
    size_t group;
    int64_t steps = 0;
    std::array<Tensor, 2> state = {};
  };
  void check_groups() const;
  ParameterUpdate prepare(const Slot& slot) const;

  const char* op_;
  std::vector<ParameterGroup> groups_;
  std::vector<std::string> state_names_;
  std::vector<Slot> slots_;
  int64_t step_count_ = 0;
};

struct SGDOptions {
  double lr = 0.01;
  double momentum = 0;
  double dampening = 0;
  bool nesterov = false;
  double weight_decay = 0;
};

class SGD : public Optimizer {
 public:
  explicit SGD(ParameterGroups groups, const SGDOptions& options = {});

 private:
  void update(std::span<const ParameterUpdate> updates, Stream s) override;
  SGDOptions options_;
};

struct AdamOptions {
  double lr = 1e-3;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double epsilon = 1e-8;
  double weight_decay = 0;  // added to the gradient
};

class Adam : public Optimizer {
 public:
  explicit Adam(ParameterGroups groups, const AdamOptions& options = {});

 private:
  void update(std::span<const ParameterUpdate> updates, Stream s) override;
  AdamOptions options_;
};

struct AdamWOptions {
  double lr = 1e-3;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double epsilon = 1e-8;
  double weight_decay = 0.01;  // decoupled: each step takes lr * weight_decay of the weight
};

class AdamW : public Optimizer {
 public:
  explicit AdamW(ParameterGroups groups, const AdamWOptions& options = {});

 private:
  void update(std::span<const ParameterUpdate> updates, Stream s) override;
  AdamWOptions options_;
};

}  // namespace lockstep
