// Normalisations with their parameters and running statistics (ops/batch_norm.h, ops/layer_norm.h).
#pragma once

#include <cstdint>
#include <initializer_list>
#include <string>

#include "lockstep/training/module.h"

namespace lockstep {

struct BatchNormConfig {
  double eps = 1e-5;
  double momentum = 0.1;  // part of the newest batch in the running statistics
  bool affine = true;     // false: no weight and bias
  bool relu = false;      // max(y, 0), in the same pass
};

// Over all axes but the last. Training uses the batch and moves the running statistics, evaluation uses these. Names and
// conventions are PyTorch's, so its state dicts fit.
class BatchNorm : public Module {
 public:
  Tensor forward(const Tensor& x) override { return forward(x, {}); }
  Tensor forward(const Tensor& x, const Tensor& residual);  // added before the relu; may be undefined
  std::string describe() const override;

 protected:
  BatchNorm(int least_ndim, int most_ndim, int64_t channels, const BatchNormConfig& config);

 private:
  int least_ndim_, most_ndim_;
  BatchNormConfig config_;

 public:
  Tensor& weight;  // [C], or undefined
  Tensor& bias;
  Tensor& running_mean;  // [C]
  Tensor& running_var;
  Tensor& num_batches_tracked;  // int64 []
};

// x [N, H, W, C].
class BatchNorm2d : public BatchNorm {
 public:
  explicit BatchNorm2d(int64_t channels, const BatchNormConfig& config = {})
      : BatchNorm(4, 4, channels, config) {}
};
// x [N, C] or [N, L, C].
class BatchNorm1d : public BatchNorm {
 public:
  explicit BatchNorm1d(int64_t channels, const BatchNormConfig& config = {})
      : BatchNorm(2, 3, channels, config) {}
};

// Over the trailing axes `normalized_shape` of x.
class LayerNorm : public Module {
 public:
  explicit LayerNorm(int64_t size, double eps = 1e-5, bool affine = true)
      : LayerNorm(Shape{size}, eps, affine) {}
  explicit LayerNorm(std::initializer_list<int64_t> normalized_shape, double eps = 1e-5, bool affine = true)
      : LayerNorm(Shape(normalized_shape), eps, affine) {}
  explicit LayerNorm(const Shape& normalized_shape, double eps = 1e-5, bool affine = true);
  Tensor forward(const Tensor& x) override;
  std::string describe() const override;

 private:
  Shape normalized_shape_;
  double eps_;

 public:
  Tensor& weight;  // normalized_shape, or undefined
  Tensor& bias;
};

}  // namespace lockstep
