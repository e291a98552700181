// Initial values of parameters, in place, drawn from generator(); not recorded. On meta nothing is drawn.
//
// For weights [out, in] (linear) and K R S C/groups (convolutions): fan_in = numel / out, the inputs of one
// output; fan_out = numel / in, the outputs that one input reaches.
#pragma once

#include <cmath>

#include "lockstep/runtime/tensor.h"

namespace lockstep::init {

enum class Fan { in, out };

// Both throw for weights with fewer than two axes.
int64_t fan_in(const Tensor& weight);
int64_t fan_out(const Tensor& weight);

void constant(const Tensor& x, double value);
void uniform(const Tensor& x, double low, double high);  // [low, high)
void normal(const Tensor& x, double mean = 0, double std = 1);

// Variance gain^2 / fan with gain^2 = 2 / (1 + a^2), for leaky ReLU of slope a (He et al. 2015). PyTorch's
// default for linear and convolution weights is kaiming_uniform with a = sqrt(5): the bound is then 1 /
// sqrt(fan_in).
void kaiming_uniform(const Tensor& weight, double a = 0, Fan fan = Fan::in);
void kaiming_normal(const Tensor& weight, double a = 0, Fan fan = Fan::in);

// Variance gain^2 * 2 / (fan_in + fan_out) (Glorot & Bengio 2010).
void xavier_uniform(const Tensor& weight, double gain = 1);
void xavier_normal(const Tensor& weight, double gain = 1);

// PyTorch's defaults for a layer: the weight as above, the bias (may be undefined) within +-1 / sqrt(fan_in
// of weight).
void layer_default(const Tensor& weight, const Tensor& bias);

}  // namespace lockstep::init
