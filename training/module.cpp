#include "lockstep/training/module.h"

#include <cxxabi.h>

#include <algorithm>
#include <cstdlib>
#include <iostream>
#include <memory>
#include <typeinfo>
#include <unordered_map>
#include <unordered_set>

#include "lockstep/runtime/autograd.h"
#include "lockstep/training/module_trace.h"

namespace lockstep {

namespace {

thread_local Device parameter_device;

// Problems of a load, all of them: a person mends a file once, not once a name.
class Problems {
 public:
  template <class... Args>
  void add(const Args&... args) {
    if (++count_ <= kShown) text_ += concat("\n  ", args...);
  }
  void check(const char* op) const {
    LOCKSTEP_CHECK(count_ == 0, "[", op, "] nothing was loaded, ", count_,
                   count_ == 1 ? " problem:" : " problems:", text_,
                   count_ > kShown ? concat("\n  and ", count_ - kShown, " more") : "");
  }

 private:
  static constexpr int kShown = 20;
  int count_ = 0;
  std::string text_;
};

}  // namespace

ModuleTrace*& module_trace() {
  thread_local ModuleTrace* trace = nullptr;
  return trace;
}

ParameterDeviceGuard::ParameterDeviceGuard(Device device) : previous_(parameter_device) {
  parameter_device = device;
}
ParameterDeviceGuard::~ParameterDeviceGuard() { parameter_device = previous_; }

Tensor empty_parameter(const Shape& shape, DType dtype) {
  MemoryScope scope("parameters");
  return empty(shape, dtype, parameter_device);
}

Tensor Module::forward(const Tensor&) {
  throw_error(concat("[", type_name(), "] has no forward(x): override it, or call the one it has"));
}

Tensor Module::operator()(const Tensor& x) {
  Tensor y = forward(x);
  if (ModuleTrace* trace = module_trace()) trace->try_emplace(this, y.shape());
  return y;
}

Module& Module::train(bool on) {
  training_ = on;
  for (auto& [name, child] : children_) child->train(on);
  return *this;
}

void Module::collect(Kind kind, const std::string& prefix, StateDict& all) const {
  for (const auto& [name, tensor] : kind == Kind::parameter ? parameters_ : buffers_)
    if (tensor.defined()) all.emplace_back(prefix + name, tensor);
  for (const auto& [name, child] : children_) child->collect(kind, prefix + name + ".", all);
}

StateDict Module::unique(Kind kind) const {
  StateDict all;
  collect(kind, "", all);
  std::unordered_set<const TensorImpl*> seen;
  std::erase_if(all, [&](const Named& entry) { return !seen.insert(entry.second.handle().get()).second; });
  return all;
}

StateDict Module::named_parameters() const { return unique(Kind::parameter); }
StateDict Module::named_buffers() const { return unique(Kind::buffer); }

Tensors Module::parameters() const {
  Tensors tensors;
  for (auto& [name, tensor] : named_parameters()) tensors.push_back(tensor);
  return tensors;
}

int64_t Module::parameter_count() const {
  int64_t count = 0;
  for (auto& [name, tensor] : named_parameters()) count += tensor.numel();
  return count;
}

std::vector<std::pair<std::string, Module*>> Module::named_modules() {
  std::vector<std::pair<std::string, Module*>> all{{"", this}};
  for (auto& [name, child] : children_)
    for (auto& [below, module] : child->named_modules())
      all.emplace_back(below.empty() ? name : name + "." + below, module);
  return all;
}

void Module::zero_grad() {
  for (auto& [name, tensor] : named_parameters()) tensor.set_grad({});
}

Module& Module::set_requires_grad(bool value) {
  for (auto& [name, tensor] : named_parameters()) tensor.set_requires_grad(value);
  return *this;
}

template <class F>
void Module::convert(F&& f) {
  NoGradGuard no_grad;
  MemoryScope scope("parameters");
  StateDict all = named_parameters(), buffers = named_buffers();
  all.insert(all.end(), buffers.begin(), buffers.end());
  Tensors values, grads;
  for (auto& [name, tensor] : all) {
    values.push_back(f(tensor.detach()));
    grads.push_back(tensor.grad().defined() ? f(tensor.grad()) : Tensor());
  }
  for (size_t i = 0; i < all.size(); i++) {
    if (values[i].storage() == all[i].second.storage()) continue;
    all[i].second.set_grad({});  // a gradient of the old dtype or device would not fit the new value
    all[i].second.set_data(values[i]);
    if (grads[i].defined()) all[i].second.set_grad(grads[i]);
  }
}

Module& Module::to(Device device) {
  convert([&](const Tensor& x) { return x.to(device); });
  return *this;
}

Module& Module::to(DType dtype) {
  LOCKSTEP_CHECK(is_floating(dtype), "[Module::to] dtype ", dtype, ", expected a floating-point dtype");
  convert([&](const Tensor& x) { return is_floating(x.dtype()) ? x.to(dtype) : x; });
  return *this;
}

StateDict Module::state_dict() const {
  StateDict state = named_parameters(), buffers = named_buffers();
  state.insert(state.end(), buffers.begin(), buffers.end());
  for (auto& [name, tensor] : state) tensor = tensor.detach();
  return state;
}

void Module::load_state_dict(const StateDict& state, bool strict) {
  NoGradGuard no_grad;
  StateDict targets;  // with every name of a tied tensor: a PyTorch file lists them all
  collect(Kind::parameter, "", targets);
  collect(Kind::buffer, "", targets);
  std::unordered_map<std::string, Tensor> by_name(targets.begin(), targets.end());

  Problems problems;
  std::unordered_map<const TensorImpl*, Tensor> sources;
  std::unordered_set<std::string> seen;
  std::unordered_set<const TensorImpl*> mentioned;  // a tied tensor may come under any of its names
  for (const auto& [name, source] : state) {
    auto found = by_name.find(name);
    if (found != by_name.end()) mentioned.insert(found->second.handle().get());
    if (!seen.insert(name).second) {
      problems.add("given twice: ", name);
    } else if (found == by_name.end()) {
      if (strict) problems.add("unexpected: ", name);
    } else if (const Tensor& target = found->second; !source.defined()) {
      problems.add("undefined: ", name);
    } else if (source.shape() != target.shape()) {
      problems.add("wrong shape: ", name, ", got ", source.shape(), ", expected ", target.shape());
    } else if (source.dtype() != target.dtype()) {
      problems.add("wrong dtype: ", name, ", got ", source.dtype(), ", expected ", target.dtype());
    } else if (source.device().is_meta() && !target.device().is_meta()) {
      problems.add("no values: ", name, " is on meta, expected data for ", target.device());
    } else {
      sources.try_emplace(target.handle().get(), source);
    }
  }
  if (strict) {
    for (const auto& [name, target] : targets)
      if (mentioned.insert(target.handle().get()).second) problems.add("missing: ", name);
  }
  problems.check("load_state_dict");

  std::vector<std::pair<Tensor, Tensor>> copies;
  for (const auto& [name, target] : targets) {
    auto found = sources.find(target.handle().get());
    if (found == sources.end()) continue;
    copies.emplace_back(target, found->second.to(target.device()));
    sources.erase(found);
  }
  for (auto& [target, source] : copies)
    if (target.storage() != source.storage() || target.offset() != source.offset()) target.copy_(source);
}

void Module::check_new_name(const std::string& name) const {
  LOCKSTEP_CHECK(!name.empty() && name.find('.') == std::string::npos, "[", type_name(), "] name \"", name,
                 "\", expected one that is not empty and has no dot");
  auto has = [&](const auto& list) {
    return std::ranges::any_of(list, [&](auto& entry) { return entry.first == name; });
  };
  LOCKSTEP_CHECK(!has(parameters_) && !has(buffers_) && !has(children_), "[", type_name(), "] the name \"",
                 name, "\" is taken");
}

Tensor& Module::register_parameter(std::string name, Tensor tensor) {
  check_new_name(name);
  if (tensor.defined()) {
    LOCKSTEP_CHECK(is_floating(tensor.dtype()) && tensor.is_leaf(), "[", type_name(), "] parameter \"", name,
                   "\", got dtype ", tensor.dtype(), tensor.is_leaf() ? "" : ", the result of an operation",
                   ", expected a floating-point leaf");
    tensor.set_requires_grad();
  }
  return parameters_.emplace_back(std::move(name), std::move(tensor)).second;
}

Tensor& Module::register_buffer(std::string name, Tensor tensor) {
  check_new_name(name);
  return buffers_.emplace_back(std::move(name), std::move(tensor)).second;
}

Module& Module::register_module(std::string name, Module& module) {
  check_new_name(name);
  for (auto& [below, descendant] : module.named_modules())
    LOCKSTEP_CHECK(descendant != this, "[", type_name(), "] cannot contain itself, as \"", name, "\"");
  module.train(training_);
  children_.emplace_back(std::move(name), &module);
  return module;
}

std::string Module::type_name() const {
  int status = 0;
  std::unique_ptr<char, void (*)(void*)> text(
      abi::__cxa_demangle(typeid(*this).name(), nullptr, nullptr, &status), std::free);
  std::string full = status == 0 ? text.get() : typeid(*this).name();
  size_t arguments = full.find('<');  // a template's arguments may hold "::"
  size_t scope = full.rfind("::", arguments);
  return scope == std::string::npos ? full : full.substr(scope + 2);
}

std::string Module::describe() const { return type_name(); }

void Module::print(std::ostream& out, int indent) const {
  out << describe();
  if (children_.empty()) return;
  out << " {\n";
  for (auto& [name, child] : children_) {
    out << std::string(size_t(indent) + 2, ' ') << name << ": ";
    child->print(out, indent + 2);
    out << "\n";
  }
  out << std::string(size_t(indent), ' ') << "}";
}

std::ostream& operator<<(std::ostream& out, const Module& module) {
  module.print(out, 0);
  return out;
}

}  // namespace lockstep
