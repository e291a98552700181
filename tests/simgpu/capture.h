// Capture of streams into CUDA graphs, and their replay.
#pragma once

#include <cuda_runtime_api.h>

#include <map>
#include <memory>
#include <vector>

#include "simgpu/op.h"

namespace simgpu {

struct Graph {
  struct Node {
    std::shared_ptr<const Work> work;
    std::vector<int> after;
  };
  std::vector<Node> nodes;  // each after those it depends on
};

struct Capture {
  Graph graph;
  Stream* origin = nullptr;
  std::map<Stream*, std::vector<int>> tails;  // what the next operation of a stream comes after
  cudaStreamCaptureMode mode = cudaStreamCaptureModeGlobal;
  bool invalid = false;
};

std::shared_ptr<Op> capture_op(Stream* stream, std::shared_ptr<Op> op);
std::shared_ptr<Op> capture_wait(Stream* stream, std::shared_ptr<Op> op);
// For calls that a capture forbids, such as waiting: the error to return, or cudaSuccess. `stream` is null
// for calls that concern the whole device.
cudaError_t forbidden_in_capture(Stream* stream, const char* call);

}  // namespace simgpu
