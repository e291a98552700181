// A cuDNN operation graph as the interpreter sees it, and the interpreter.
#pragma once

#include <cudnn_backend.h>

#include <map>
#include <string>
#include <vector>

#include "simgpu/element.h"
#include "simgpu/op.h"

namespace simgpu {

struct DnnTensor {
  int64_t uid = 0;
  Type type = Type::f32;
  std::vector<int64_t> dims, strides;
  bool is_virtual = false;  // lives within the graph only
  bool by_value = false;    // a host scalar
  int64_t elements() const;
};

struct DnnNode {
  enum Kind { conv_forward, conv_data, conv_filter, pointwise, reduction } kind = pointwise;
  cudnnPointwiseMode_t mode = CUDNN_POINTWISE_ADD;
  double relu_lower = 0, relu_upper = 1e308, relu_slope = 0;
  std::vector<int64_t> pads, strides, dilations;  // of a convolution
  double alpha = 1, beta = 0;
  int64_t inputs[2] = {0, 0};  // uids
  int input_count = 0;
  int64_t output = 0;
};

struct DnnGraph {
  std::map<int64_t, DnnTensor> tensors;
  std::vector<DnnNode> nodes;
  std::string name() const;  // "cudnn(conv_forward, add, relu)"
};

// The bytes that the graph reads and writes, given where its tensors are.
std::vector<Range> dnn_ranges(const DnnGraph& graph, const std::map<int64_t, void*>& pointers);
// `scalars`: the values of by-value tensors, read when the graph was launched.
void run_dnn(const DnnGraph& graph, const std::map<int64_t, void*>& pointers,
             const std::map<int64_t, double>& scalars);

bool supported(cudnnPointwiseMode_t mode);
const char* mode_name(cudnnPointwiseMode_t mode);

}  // namespace simgpu
