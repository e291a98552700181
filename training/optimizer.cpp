#include "lockstep/training/optimizer.h"

#include <cmath>
#include <unordered_map>
#include <unordered_set>

#include "lockstep/runtime/autograd.h"
#include "lockstep/training/by_device.h"

namespace lockstep {

namespace {

bool is_rate(double value) { return std::isfinite(value) && value >= 0; }

// The entry of a saved state, checked; each may be taken once.
class Entries {
 public:
  Entries(const char* op, const StateDict& state) : op_(op) {
    for (const auto& [name, tensor] : state) {
      LOCKSTEP_CHECK(tensor.defined() && !tensor.device().is_meta(), "[", op_, "] state \"", name,
                     "\" has no values");
      LOCKSTEP_CHECK(entries_.emplace(name, tensor).second, "[", op_, "] state \"", name,
                     "\" is given twice");
    }
  }
  Tensor take(const std::string& name, const Shape& shape, DType dtype) {
    auto found = entries_.find(name);
    LOCKSTEP_CHECK(found != entries_.end(), "[", op_, "] state \"", name, "\" is missing");
    Tensor tensor = found->second;
    LOCKSTEP_CHECK(tensor.shape() == shape && tensor.dtype() == dtype, "[", op_, "] state \"", name,
                   "\", got ", tensor.dtype(), " ", tensor.shape(), ", expected ", dtype, " ", shape);
    entries_.erase(found);
    return tensor;
  }
  void check_empty() const {
    if (!entries_.empty())
      throw_error(concat("[", op_, "] state \"", entries_.begin()->first, "\" is of no parameter here"));
  }

 private:
  const char* op_;
  std::unordered_map<std::string, Tensor> entries_;
};

}  // namespace

ParameterGroups::ParameterGroups(const StateDict& named_parameters) : groups(1) {
  for (const auto& [name, tensor] : named_parameters) {
    groups[0].names.push_back(name);
    groups[0].parameters.push_back(tensor);
  }
}

Optimizer::Optimizer(const char* op, ParameterGroups groups, double lr, double weight_decay,
                     std::vector<std::string> state_names)
    : op_(op), groups_(std::move(groups.groups)), state_names_(std::move(state_names)) {
  LOCKSTEP_CHECK(!groups_.empty(), "[", op_, "] no parameters");
  std::unordered_map<const TensorImpl*, std::string> seen;
  std::unordered_set<std::string> names;
  for (size_t g = 0; g < groups_.size(); g++) {
    ParameterGroup& group = groups_[g];
    if (group.lr == kFromOptions) group.lr = lr;
    if (group.base_lr == kFromOptions) group.base_lr = group.lr;
    if (group.weight_decay == kFromOptions) group.weight_decay = weight_decay;
    LOCKSTEP_CHECK(group.names.empty() || group.names.size() == group.parameters.size(), "[", op_, "] group ",
                   g, " has ", group.names.size(), " names, expected ", group.parameters.size());
    for (size_t i = 0; i < group.parameters.size(); i++) {
      const Tensor& parameter = group.parameters[i];
      std::string name = group.names.empty() ? std::to_string(slots_.size()) : group.names[i];
      LOCKSTEP_CHECK(parameter.defined(), "[", op_, "] parameter \"", name, "\" is undefined");
      LOCKSTEP_CHECK(is_floating(parameter.dtype()) && parameter.is_leaf(), "[", op_, "] parameter \"", name,
                     "\", got ", parameter.dtype(), parameter.is_leaf() ? "" : ", the result of an operation",
                     ", expected a floating-point leaf");
      auto [first, is_new] = seen.emplace(parameter.handle().get(), name);
      LOCKSTEP_CHECK(is_new, "[", op_, "] parameter \"", name, "\" is given twice, first as \"",
                     first->second, "\"");
      LOCKSTEP_CHECK(names.insert(name).second, "[", op_, "] two parameters are named \"", name, "\"");
      slots_.push_back({.parameter = parameter, .name = std::move(name), .group = g});
    }
  }
  LOCKSTEP_CHECK(!slots_.empty(), "[", op_, "] no parameters");
  check_groups();
}

void Optimizer::check_groups() const {
  for (size_t g = 0; g < groups_.size(); g++) {
    LOCKSTEP_CHECK(is_rate(groups_[g].lr), "[", op_, "] lr ", groups_[g].lr, " of group ", g,
                   ", expected 0 or more");
    LOCKSTEP_CHECK(is_rate(groups_[g].base_lr), "[", op_, "] base_lr ", groups_[g].base_lr, " of group ", g,
                   ", expected 0 or more");
    LOCKSTEP_CHECK(is_rate(groups_[g].weight_decay), "[", op_, "] weight_decay ", groups_[g].weight_decay,
                   " of group ", g, ", expected 0 or more");
  }
}

ParameterUpdate Optimizer::prepare(const Slot& slot) const {
  const Tensor &parameter = slot.parameter, grad = parameter.grad();
  LOCKSTEP_CHECK(parameter.is_contiguous(), "[", op_, "] parameter \"", slot.name, "\" of shape ",
                 parameter.shape(), " and strides ", parameter.strides(), ", expected a contiguous one");
  LOCKSTEP_CHECK(grad.shape() == parameter.shape() && grad.dtype() == parameter.dtype() &&
                     grad.device() == parameter.device(),
                 "[", op_, "] the gradient of \"", slot.name, "\", got ", grad.dtype(), " ", grad.shape(),
                 " on ", grad.device(), ", expected ", parameter.dtype(), " ", parameter.shape(), " on ",
                 parameter.device());
  const DType dtype = update_dtype(parameter.dtype());
  ParameterUpdate update{.parameter = parameter,
                         .grad = grad.contiguous(),
                         .state = slot.state,
                         .step = slot.steps + 1,
                         .lr = groups_[slot.group].lr,
                         .weight_decay = groups_[slot.group].weight_decay};
  for (size_t k = 0; k < state_names_.size(); k++) {
    Tensor& state = update.state[k];
    if (!state.defined()) {
      MemoryScope scope("optimizer state");
      state = zeros(parameter.shape(), dtype, parameter.device());
    }
    LOCKSTEP_CHECK(
        state.shape() == parameter.shape() && state.dtype() == dtype && state.device() == parameter.device(),
        "[", op_, "] parameter \"", slot.name, "\" is now ", parameter.dtype(), " ", parameter.shape(),
        " on ", parameter.device(), ", but its ", state_names_[k], " is ", state.dtype(), " ", state.shape(),
        " on ", state.device(), ": convert a model before the first step");
  }
  return update;
}

void Optimizer::step() {
  NoGradGuard no_grad;
  check_groups();
  std::vector<Slot*> updated;
  std::vector<ParameterUpdate> updates;
  for (Slot& slot : slots_) {
    if (!slot.parameter.requires_grad() || !slot.parameter.grad().defined()) continue;
    updates.push_back(prepare(slot));
    updated.push_back(&slot);
  }
  for (auto& [device, list] :
       by_device(updates, [](const ParameterUpdate& u) { return u.parameter.device(); }))
    update(list, current_stream(device));
  for (size_t i = 0; i < updated.size(); i++) {
    updated[i]->state = updates[i].state;
    updated[i]->steps++;
    updated[i]->parameter.bump_version();
  }
  step_count_++;
}

void Optimizer::zero_grad() {
  for (Slot& slot : slots_) slot.parameter.set_grad({});
}

void Optimizer::set_lr(double lr) {
  LOCKSTEP_CHECK(is_rate(lr), "[", op_, "] lr ", lr, ", expected 0 or more");
  for (ParameterGroup& group : groups_) group.lr = group.base_lr = lr;
}

StateDict Optimizer::state_dict() const {
  std::vector<int64_t> steps;
  for (const Slot& slot : slots_) steps.push_back(slot.steps);
  std::vector<double> rates;
  for (const ParameterGroup& group : groups_)
    rates.insert(rates.end(), {group.lr, group.base_lr, group.weight_decay});
  StateDict state{{"step", scalar(step_count_)},
                  {"steps", from_vector(steps)},
                  {"groups", from_vector(rates, {int64_t(groups_.size()), 3})}};
  for (const Slot& slot : slots_)
    for (size_t k = 0; k < state_names_.size() && slot.steps > 0; k++)
      state.emplace_back(slot.name + "." + state_names_[k], slot.state[k]);
  return state;
}

void Optimizer::load_state_dict(const StateDict& state) {
  NoGradGuard no_grad;
  MemoryScope scope("optimizer state");
  Entries entries(op_, state);
  const int64_t step_count = entries.take("step", {}, DType::int64).item<int64_t>();
  const auto steps = entries.take("steps", {int64_t(slots_.size())}, DType::int64).to_vector<int64_t>();
  const auto rates = entries.take("groups", {int64_t(groups_.size()), 3}, DType::float64).to_vector<double>();
  for (int64_t count : steps)
    LOCKSTEP_CHECK(0 <= count && count <= step_count, "[", op_, "] state \"steps\" holds ", count, " of ",
                   step_count, " steps");
  for (double rate : rates)
    LOCKSTEP_CHECK(is_rate(rate), "[", op_, "] state \"groups\" holds ", rate, ", expected 0 or more");
  std::vector<Slot> slots = slots_;
  for (size_t i = 0; i < slots.size(); i++) {
    Slot& slot = slots[i];
    slot.steps = steps[i];
    slot.state = {};
    for (size_t k = 0; k < state_names_.size() && slot.steps > 0; k++) {
      Tensor source = entries.take(slot.name + "." + state_names_[k], slot.parameter.shape(),
                                   update_dtype(slot.parameter.dtype()));
      slot.state[k] = empty(source.shape(), source.dtype(), slot.parameter.device());
      slot.state[k].copy_(source.to(slot.parameter.device()));
    }
  }
  entries.check_empty();
  slots_ = std::move(slots);
  step_count_ = step_count;
  for (size_t g = 0; g < groups_.size(); g++) {
    groups_[g].lr = rates[3 * g];
    groups_[g].base_lr = rates[3 * g + 1];
    groups_[g].weight_decay = rates[3 * g + 2];
  }
}

}  // namespace lockstep
