// Convolution of dense float arrays, one to three spatial axes, groups, strides and dilations. One loop nest
// for the three directions: each product of an input pixel and a weight belongs to one output pixel.
#pragma once

#include <cstdint>
#include <vector>

namespace simgpu {

struct Convolution {
  enum Direction { forward, data, weights };
  std::vector<int64_t> forward_x, filter, forward_y;  // N C spatial..., K C/groups spatial..., N K spatial...
  std::vector<int64_t> pads, strides, dilations;

  // forward adds to y, data to x, weights to w; the other two are read.
  void run(Direction direction, const float* x, const float* w, float* y) const;
};

}  // namespace simgpu
