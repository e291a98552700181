#include "lockstep/training/init.h"

#include "lockstep/runtime/autograd.h"
#include "lockstep/runtime/random.h"

namespace lockstep::init {

namespace {

int64_t fan(const char* op, const Tensor& weight, int64_t divisor_axis) {
  LOCKSTEP_CHECK(weight.ndim() >= 2, "[", op, "] weight of shape ", weight.shape(),
                 ", expected at least 2 axes");
  int64_t divisor = weight.size(divisor_axis);
  return divisor == 0 ? 0 : weight.numel() / divisor;
}

// An empty weight has no fan; nothing will be drawn either.
double variance(double gain, int64_t fan) { return gain * gain / double(std::max<int64_t>(fan, 1)); }

double kaiming_variance(const Tensor& weight, double a, Fan fan) {
  return variance(std::sqrt(2 / (1 + a * a)), fan == Fan::in ? fan_in(weight) : fan_out(weight));
}

double xavier_variance(const Tensor& weight, double gain) {
  return 2 * variance(gain, fan_in(weight) + fan_out(weight));
}

// Variance of U(-b, b) is b^2 / 3.
void uniform_of_variance(const Tensor& x, double variance) {
  double bound = std::sqrt(3 * variance);
  uniform(x, -bound, bound);
}

}  // namespace

int64_t fan_in(const Tensor& weight) { return fan("fan_in", weight, 0); }
int64_t fan_out(const Tensor& weight) { return fan("fan_out", weight, -1); }

void constant(const Tensor& x, double value) {
  NoGradGuard no_grad;
  Tensor(x).fill_(value);
}

void uniform(const Tensor& x, double low, double high) {
  if (x.device().is_meta()) return;
  NoGradGuard no_grad;
  Tensor handle = x;
  uniform_(handle, low, high);
}

void normal(const Tensor& x, double mean, double std) {
  if (x.device().is_meta()) return;
  NoGradGuard no_grad;
  Tensor handle = x;
  normal_(handle, mean, std);
}

void kaiming_uniform(const Tensor& weight, double a, Fan fan) {
  uniform_of_variance(weight, kaiming_variance(weight, a, fan));
}
void kaiming_normal(const Tensor& weight, double a, Fan fan) {
  normal(weight, 0, std::sqrt(kaiming_variance(weight, a, fan)));
}
void xavier_uniform(const Tensor& weight, double gain) {
  uniform_of_variance(weight, xavier_variance(weight, gain));
}
void xavier_normal(const Tensor& weight, double gain) {
  normal(weight, 0, std::sqrt(xavier_variance(weight, gain)));
}

void layer_default(const Tensor& weight, const Tensor& bias) {
  kaiming_uniform(weight, std::sqrt(5.0));
  if (!bias.defined()) return;
  double bound = std::sqrt(variance(1, fan_in(weight)));
  uniform(bias, -bound, bound);
}

}  // namespace lockstep::init
