// Modules one after the other; it owns them.
//
//   Sequential net(std::make_shared<Linear>(784, 100), std::make_shared<ReLU>(),
//   std::make_shared<Linear>(100, 10));
#pragma once

#include <concepts>
#include <memory>
#include <string>
#include <vector>

#include "lockstep/training/module.h"

namespace lockstep {

class Sequential : public Module {
 public:
  Sequential() = default;
  template <std::derived_from<Module>... M>
  explicit Sequential(std::shared_ptr<M>... modules) {
    (add(std::move(modules)), ...);
  }
  // Named "0", "1", ... by its place unless a name is given.
  Sequential& add(std::shared_ptr<Module> module);
  Sequential& add(std::string name, std::shared_ptr<Module> module);

  Tensor forward(const Tensor& x) override;
  size_t size() const { return modules_.size(); }
  Module& operator[](size_t i) { return *modules_.at(i); }

 private:
  std::vector<std::shared_ptr<Module>> modules_;
};

}  // namespace lockstep
