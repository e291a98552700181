#include "lockstep/training/sequential.h"

namespace lockstep {

Sequential& Sequential::add(std::shared_ptr<Module> module) {
  return add(std::to_string(modules_.size()), std::move(module));
}

Sequential& Sequential::add(std::string name, std::shared_ptr<Module> module) {
  LOCKSTEP_CHECK(module, "[Sequential] module \"", name, "\" is null");
  register_module(std::move(name), *module);
  modules_.push_back(std::move(module));
  return *this;
}

Tensor Sequential::forward(const Tensor& x) {
  Tensor y = x;
  for (auto& module : modules_) y = (*module)(y);
  return y;
}

}  // namespace lockstep
