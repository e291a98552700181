#include "lockstep/training/layers.h"

#include <algorithm>

#include "lockstep/ops/conv2d.h"
#include "lockstep/ops/dropout.h"
#include "lockstep/ops/embedding.h"
#include "lockstep/ops/linear.h"
#include "lockstep/ops/softmax.h"
#include "lockstep/runtime/autograd.h"
#include "lockstep/training/init.h"

namespace lockstep {

namespace {

void check_sizes(const char* op, int64_t in, int64_t out) {
  LOCKSTEP_CHECK(in >= 1 && out >= 1, "[", op, "] sizes ", in, " and ", out, ", expected 1 or more");
}

Shape linear_shape(int64_t in, int64_t out) {
  check_sizes("Linear", in, out);
  return {out, in};
}

Shape filter_shape(int64_t in, int64_t out, const Conv2dConfig& c) {
  check_sizes("Conv2d", in, out);
  check_sizes("Conv2d, kernel", c.kernel.rows, c.kernel.columns);
  check_sizes("Conv2d, stride", c.stride.rows, c.stride.columns);
  check_sizes("Conv2d, dilation", c.dilation.rows, c.dilation.columns);
  const Padding2d& p = c.padding;
  LOCKSTEP_CHECK(p.top >= 0 && p.bottom >= 0 && p.left >= 0 && p.right >= 0, "[Conv2d] padding ", p.top, ", ",
                 p.bottom, ", ", p.left, ", ", p.right, ", expected 0 or more");
  LOCKSTEP_CHECK(!c.same || (p.top == 0 && p.bottom == 0 && p.left == 0 && p.right == 0),
                 "[Conv2d] same = true with a padding, expected one of the two");
  LOCKSTEP_CHECK(c.groups >= 1 && in % c.groups == 0 && out % c.groups == 0, "[Conv2d] ", c.groups,
                 " groups for ", in, " inputs and ", out, " outputs, expected a divisor of both");
  return {out, c.kernel.rows, c.kernel.columns, in / c.groups};
}

// What one axis needs in all so that its output has ceil(size / stride) elements.
int64_t same_padding_total(int64_t size, int64_t kernel, int64_t stride, int64_t dilation) {
  const int64_t out = (size + stride - 1) / stride;
  return std::max<int64_t>(0, (out - 1) * stride + dilation * (kernel - 1) + 1 - size);
}

template <class A>
std::string by(const A& extent) {
  auto [rows, columns] = extent;
  return rows == columns ? concat(rows) : concat(rows, "x", columns);
}

std::string describe_pool(const std::string& name, const Pool2dOptions& o) {
  return concat(name, "(kernel ", by(o.kernel), ", stride ", o.stride[0] == 0 ? by(o.kernel) : by(o.stride),
                o.ceil_mode ? ", ceil)" : ")");
}

}  // namespace

Linear::Linear(int64_t in, int64_t out, bool with_bias)
    : weight(register_parameter("weight", empty_parameter(linear_shape(in, out)))),
      bias(register_parameter("bias", with_bias ? empty_parameter({out}) : Tensor())) {
  init::layer_default(weight, bias);
}

Tensor Linear::forward(const Tensor& x) { return linear(x, weight, bias); }

std::string Linear::describe() const {
  return concat("Linear(", weight.size(1), ", ", weight.size(0), bias.defined() ? ")" : ", no bias)");
}

Conv2d::Conv2d(int64_t in, int64_t out, const Conv2dConfig& config)
    : config_(config),
      weight(register_parameter("weight", empty_parameter(filter_shape(in, out, config)))),
      bias(register_parameter("bias", config.bias ? empty_parameter({out}) : Tensor())) {
  init::layer_default(weight, bias);
}

Tensor Conv2d::forward(const Tensor& x) {
  const Conv2dConfig& c = config_;
  Padding2d p = c.padding;
  if (c.same && x.ndim() == 4) {
    const int64_t rows = same_padding_total(x.size(1), c.kernel.rows, c.stride.rows, c.dilation.rows);
    const int64_t columns =
        same_padding_total(x.size(2), c.kernel.columns, c.stride.columns, c.dilation.columns);
    p = Padding2d(rows / 2, rows - rows / 2, columns / 2, columns - columns / 2);
  }
  Conv2dOptions options{.stride = c.stride,
                        .padding = {p.top, p.bottom, p.left, p.right},
                        .dilation = c.dilation,
                        .groups = c.groups};
  return c.relu ? conv2d_relu(x, weight, bias, options) : conv2d(x, weight, bias, options);
}

std::string Conv2d::describe() const {
  const Conv2dConfig& c = config_;
  std::string text =
      concat("Conv2d(", weight.size(3) * c.groups, ", ", weight.size(0), ", kernel ", by(c.kernel));
  if (c.stride.rows != 1 || c.stride.columns != 1) text += ", stride " + by(c.stride);
  const Padding2d& p = c.padding;
  if (c.same) text += ", same";
  else if (p.top != p.bottom || p.left != p.right)
    text += concat(", padding ", p.top, " ", p.bottom, " ", p.left, " ", p.right);
  else if (p.top != 0 || p.left != 0) text += ", padding " + by(Extent2d(p.top, p.left));
  if (c.dilation.rows != 1 || c.dilation.columns != 1) text += ", dilation " + by(c.dilation);
  if (c.groups != 1) text += concat(", groups ", c.groups);
  if (!bias.defined()) text += ", no bias";
  if (c.relu) text += ", relu";
  return text + ")";
}

Tensor MaxPool2d::forward(const Tensor& x) { return max_pool2d(x, options_); }
std::string MaxPool2d::describe() const { return describe_pool("MaxPool2d", options_); }

Tensor AvgPool2d::forward(const Tensor& x) { return avg_pool2d(x, options_); }
std::string AvgPool2d::describe() const { return describe_pool("AvgPool2d", options_); }

Tensor AdaptiveAvgPool2d::forward(const Tensor& x) { return adaptive_avg_pool2d(x, size_); }
std::string AdaptiveAvgPool2d::describe() const { return concat("AdaptiveAvgPool2d(", by(size_), ")"); }

Tensor GlobalAvgPool2d::forward(const Tensor& x) { return global_avg_pool2d(x); }

Dropout::Dropout(double p) : p_(p) {
  LOCKSTEP_CHECK(0 <= p && p <= 1, "[Dropout] p ", p, ", expected one in [0, 1]");
}
Tensor Dropout::forward(const Tensor& x) { return dropout(x, p_, is_training()); }
std::string Dropout::describe() const { return concat("Dropout(", p_, ")"); }

Embedding::Embedding(int64_t count, int64_t dim, int64_t padding_idx)
    : padding_idx_(padding_idx), weight(register_parameter("weight", empty_parameter({count, dim}))) {
  check_sizes("Embedding", count, dim);
  LOCKSTEP_CHECK(-1 <= padding_idx && padding_idx < count, "[Embedding] padding_idx ", padding_idx, " for ",
                 count, " rows");
  init::normal(weight);
  if (padding_idx >= 0) init::constant(weight.detach().select(0, padding_idx), 0);
}
Tensor Embedding::forward(const Tensor& indices) { return embedding(weight, indices, padding_idx_); }
std::string Embedding::describe() const {
  return concat("Embedding(", weight.size(0), ", ", weight.size(1), ")");
}

Tensor Flatten::forward(const Tensor& x) { return x.flatten(first_axis_); }
Tensor Softmax::forward(const Tensor& x) { return softmax(x, axis_); }

}  // namespace lockstep
