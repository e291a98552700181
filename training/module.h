// Module: a function with parameters, built from other modules.
//
//   struct Net : Module {
//     Conv2d conv{1, 32, {.kernel = 3}};
//     Linear out{32 * 13 * 13, 10};
//     Net() {
//       register_module("conv", conv);
//       register_module("out", out);
//     }
//     Tensor forward(const Tensor& x) override { return out(max_pool2d(relu(conv(x))).flatten(1)); }
//   };
//
// Children are members of the module that registers them, so modules are neither copied nor moved. Names are
// dotted, as in PyTorch: "conv.weight". A tensor registered at two places (tied weights) is listed once,
// under its first name. A module may run forward in several threads at once; whatever changes it (train, to,
// load, summary) needs it alone.
#pragma once

#include <cstdint>
#include <deque>
#include <iosfwd>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/training/state_dict.h"

namespace lockstep {

class Module {
 public:
  Module() = default;
  virtual ~Module() = default;
  Module(const Module&) = delete;
  Module& operator=(const Module&) = delete;

  // Throws unless overridden. A module with other arguments has a forward of its own beside it.
  virtual Tensor forward(const Tensor& x);
  Tensor operator()(const Tensor& x);

  Module& train(bool on = true);  // this module and all below it
  Module& eval() { return train(false); }
  bool is_training() const { return training_; }

  // All tensors are converted before the first is replaced; gradients follow. An optimizer made before sees
  // the new tensors, but its state does not follow: convert before its first step.
  Module& to(Device device);
  Module& to(DType dtype);  // floating parameters and buffers

  Tensors parameters() const;
  StateDict named_parameters() const;
  StateDict named_buffers() const;
  // This module first, with the empty name, then all below it, depth first.
  std::vector<std::pair<std::string, Module*>> named_modules();
  int64_t parameter_count() const;
  void zero_grad();                              // forgets the gradients
  Module& set_requires_grad(bool value = true);  // false freezes all parameters

  // Parameters, then buffers; the tensors share memory with the module.
  StateDict state_dict() const;
  // Copies the values in. Everything is checked first and all that is wrong is named in one Error, so a
  // failed load leaves the module as it was. Not strict: names that are missing or not known are passed over;
  // shapes and dtypes never are.
  void load_state_dict(const StateDict& state, bool strict = true);

  // A table of the modules below this one: name, type, output shape, parameters, bytes. Runs forward on meta,
  // in eval mode, with an input of the given shape: nothing is allocated or computed, and the module is
  // afterwards as it was.
  std::string summary(const Shape& input_shape, DType input_dtype = DType::float32);

  // One line, without children: "Linear(784, 10)". By default the type's name.
  virtual std::string describe() const;
  std::string type_name() const;  // "Linear"
  friend std::ostream& operator<<(std::ostream& out, const Module& module);

 protected:
  // Returns the module's own handle, which lives as long as the module; assigning another tensor to it ties
  // the two. An undefined tensor (no bias) is never listed. A parameter must be a floating leaf; it comes to
  // need a gradient.
  Tensor& register_parameter(std::string name, Tensor tensor);
  Tensor& register_buffer(std::string name, Tensor tensor);
  Module& register_module(std::string name, Module& module);

  const std::vector<std::pair<std::string, Module*>>& children() const { return children_; }

 private:
  using Named = std::pair<std::string, Tensor>;
  enum class Kind { parameter, buffer };

  void check_new_name(const std::string& name) const;
  void collect(Kind kind, const std::string& prefix, StateDict& all) const;
  StateDict unique(Kind kind) const;
  template <class F>
  void convert(F&& f);
  void print(std::ostream& out, int indent) const;

  std::deque<Named> parameters_, buffers_;  // deques: references to their elements are handed out
  std::vector<std::pair<std::string, Module*>> children_;
  bool training_ = true;
};

// While it lives, layers made in this thread have their parameters on `device`: on meta, a model of any size
// costs nothing.
class ParameterDeviceGuard {
 public:
  explicit ParameterDeviceGuard(Device device);
  ~ParameterDeviceGuard();
  ParameterDeviceGuard(const ParameterDeviceGuard&) = delete;
  ParameterDeviceGuard& operator=(const ParameterDeviceGuard&) = delete;

 private:
  Device previous_;
};

// Uninitialised memory for a layer's parameter or buffer, on the device of ParameterDeviceGuard.
Tensor empty_parameter(const Shape& shape, DType dtype = DType::float32);

}  // namespace lockstep
