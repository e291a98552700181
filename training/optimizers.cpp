#include "lockstep/ops/adam.h"
#include "lockstep/ops/sgd.h"
#include "lockstep/training/optimizer.h"

namespace lockstep {

namespace {

void check_adam(const char* op, double beta1, double beta2, double epsilon) {
  LOCKSTEP_CHECK(0 <= beta1 && beta1 < 1, "[", op, "] beta1 ", beta1, ", expected one in [0, 1)");
  LOCKSTEP_CHECK(0 <= beta2 && beta2 < 1, "[", op, "] beta2 ", beta2, ", expected one in [0, 1)");
  LOCKSTEP_CHECK(epsilon >= 0, "[", op, "] epsilon ", epsilon, ", expected 0 or more");
}

std::vector<std::string> sgd_state(const SGDOptions& options) {
  if (options.momentum == 0) return {};
  return {"momentum"};
}

}  // namespace

SGD::SGD(ParameterGroups groups, const SGDOptions& options)
    : Optimizer("SGD", std::move(groups), options.lr, options.weight_decay, sgd_state(options)),
      options_(options) {
  LOCKSTEP_CHECK(0 <= options.momentum && options.momentum <= 1, "[SGD] momentum ", options.momentum,
                 ", expected one in [0, 1]");
  LOCKSTEP_CHECK(0 <= options.dampening && options.dampening <= 1, "[SGD] dampening ", options.dampening,
                 ", expected one in [0, 1]");
  LOCKSTEP_CHECK(!options.nesterov || (options.momentum > 0 && options.dampening == 0),
                 "[SGD] nesterov with momentum ", options.momentum, " and dampening ", options.dampening,
                 ", expected a momentum and no dampening");
}

void SGD::update(std::span<const ParameterUpdate> updates, Stream s) {
  SGDRule rule{.momentum = options_.momentum, .dampening = options_.dampening, .nesterov = options_.nesterov};
  LOCKSTEP_DISPATCH(s, sgd_update, updates, rule);
}

Adam::Adam(ParameterGroups groups, const AdamOptions& options)
    : Optimizer("Adam", std::move(groups), options.lr, options.weight_decay, {"exp_avg", "exp_avg_sq"}),
      options_(options) {
  check_adam("Adam", options.beta1, options.beta2, options.epsilon);
}

void Adam::update(std::span<const ParameterUpdate> updates, Stream s) {
  AdamRule rule{
      .beta1 = options_.beta1, .beta2 = options_.beta2, .epsilon = options_.epsilon, .decoupled = false};
  LOCKSTEP_DISPATCH(s, adam_update, updates, rule);
}

AdamW::AdamW(ParameterGroups groups, const AdamWOptions& options)
    : Optimizer("AdamW", std::move(groups), options.lr, options.weight_decay, {"exp_avg", "exp_avg_sq"}),
      options_(options) {
  check_adam("AdamW", options.beta1, options.beta2, options.epsilon);
}

void AdamW::update(std::span<const ParameterUpdate> updates, Stream s) {
  AdamRule rule{
      .beta1 = options_.beta1, .beta2 = options_.beta2, .epsilon = options_.epsilon, .decoupled = true};
  LOCKSTEP_DISPATCH(s, adam_update, updates, rule);
}

}  // namespace lockstep
