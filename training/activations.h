// Element by element functions as modules, for Sequential; ops/unary.h says what they compute.
#pragma once

#include "lockstep/ops/unary.h"
#include "lockstep/training/module.h"

namespace lockstep {

struct ReLU : Module {
  Tensor forward(const Tensor& x) override;
};
struct Sigmoid : Module {
  Tensor forward(const Tensor& x) override;
};
struct Tanh : Module {
  Tensor forward(const Tensor& x) override;
};
struct SiLU : Module {
  Tensor forward(const Tensor& x) override;
};

class GELU : public Module {
 public:
  explicit GELU(Gelu form = Gelu::exact) : form_(form) {}
  Tensor forward(const Tensor& x) override;

 private:
  Gelu form_;
};

}  // namespace lockstep
