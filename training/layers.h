// The layers: operations of ops/ with their parameters. Images are N H W C, weights [out, in] and K R S
// C/groups; initial values are PyTorch's (init.h). What a layer computes, and what it throws for a bad input,
// is said at its operation.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>

#include "lockstep/ops/pool2d.h"
#include "lockstep/training/activations.h"
#include "lockstep/training/norm_layers.h"
#include "lockstep/training/sequential.h"

namespace lockstep {

// Rows and columns; one number stands for both.
struct Extent2d {
  int64_t rows, columns;
  Extent2d(int64_t both) : Extent2d(both, both) {}
  Extent2d(int64_t rows, int64_t columns) : rows(rows), columns(columns) {}
  operator std::array<int64_t, 2>() const { return {rows, columns}; }
};
using Padding2d = PoolPadding;

// x [..., in] -> [..., out].
class Linear : public Module {
 public:
  Linear(int64_t in, int64_t out, bool with_bias = true);
  Tensor forward(const Tensor& x) override;
  std::string describe() const override;

  Tensor& weight;  // [out, in]
  Tensor& bias;    // [out], or undefined
};

struct Conv2dConfig {
  Extent2d kernel;
  Extent2d stride = 1;
  Padding2d padding = 0;
  Extent2d dilation = 1;
  int64_t groups = 1;
  bool bias = true;
  bool same = false;  // pads so that P = ceil(H / stride), the odd one at the bottom and the right; `padding`
                      // is then 0
  bool relu = false;  // max(y, 0), in the same pass
};

// x [N, H, W, in] -> [N, P, Q, out].
class Conv2d : public Module {
 public:
  Conv2d(int64_t in, int64_t out, const Conv2dConfig& config);
  Tensor forward(const Tensor& x) override;
  std::string describe() const override;
  const Conv2dConfig& config() const { return config_; }

 private:
  Conv2dConfig config_;

 public:
  Tensor& weight;  // [out, R, S, in / groups]
  Tensor& bias;    // [out], or undefined
};

class MaxPool2d : public Module {
 public:
  explicit MaxPool2d(int64_t kernel, int64_t stride = 0) : MaxPool2d(square(kernel, stride)) {}
  explicit MaxPool2d(const Pool2dOptions& options) : options_(options) {}
  Tensor forward(const Tensor& x) override;
  std::string describe() const override;

 private:
  friend class AvgPool2d;
  static Pool2dOptions square(int64_t kernel, int64_t stride) {
    return {.kernel = {kernel, kernel}, .stride = {stride, stride}};
  }
  Pool2dOptions options_;
};

class AvgPool2d : public Module {
 public:
  explicit AvgPool2d(int64_t kernel, int64_t stride = 0) : AvgPool2d(MaxPool2d::square(kernel, stride)) {}
  explicit AvgPool2d(const Pool2dOptions& options) : options_(options) {}
  Tensor forward(const Tensor& x) override;
  std::string describe() const override;

 private:
  Pool2dOptions options_;
};

// Any image to [N, rows, columns, C].
class AdaptiveAvgPool2d : public Module {
 public:
  explicit AdaptiveAvgPool2d(Extent2d size) : size_(size) {}
  Tensor forward(const Tensor& x) override;
  std::string describe() const override;

 private:
  Extent2d size_;
};

// [N, H, W, C] -> [N, C].
class GlobalAvgPool2d : public Module {
 public:
  Tensor forward(const Tensor& x) override;
};

// Zeroes each element with probability p while training, and scales the others by 1 / (1 - p).
class Dropout : public Module {
 public:
  explicit Dropout(double p = 0.5);
  Tensor forward(const Tensor& x) override;
  std::string describe() const override;

 private:
  double p_;
};

// Indices of any shape -> [indices..., dim]; drawn from N(0, 1).
class Embedding : public Module {
 public:
  // The row padding_idx starts at 0 and gets no gradient; -1: there is none.
  Embedding(int64_t count, int64_t dim, int64_t padding_idx = -1);
  Tensor forward(const Tensor& indices) override;
  std::string describe() const override;

 private:
  int64_t padding_idx_;

 public:
  Tensor& weight;  // [count, dim]
};

class Flatten : public Module {
 public:
  explicit Flatten(int64_t first_axis = 1) : first_axis_(first_axis) {}
  Tensor forward(const Tensor& x) override;

 private:
  int64_t first_axis_;
};

class Softmax : public Module {
 public:
  explicit Softmax(int64_t axis = -1) : axis_(axis) {}
  Tensor forward(const Tensor& x) override;

 private:
  int64_t axis_;
};

}  // namespace lockstep
