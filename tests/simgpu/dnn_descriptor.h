// The descriptors of cuDNN's backend API: a store of attributes, and their translation into a graph.
#pragma once

#include <cudnn_backend.h>

#include <map>
#include <memory>
#include <vector>

#include "simgpu/dnn_graph.h"

namespace simgpu {

struct Descriptor {
  struct Value {
    cudnnBackendAttributeType_t type = CUDNN_TYPE_INT64;
    int64_t count = 0;
    std::vector<unsigned char> bytes;
    std::vector<Descriptor> parts;  // copies: callers destroy the children early
  };
  cudnnBackendDescriptorType_t type = CUDNN_BACKEND_TENSOR_DESCRIPTOR;
  bool finalized = false;
  std::map<int, Value> attributes;

  const Value* find(cudnnBackendAttributeName_t name) const;
  const Descriptor* part(cudnnBackendAttributeName_t name) const;  // the first; null if there is none
  int64_t integer(cudnnBackendAttributeName_t name, int64_t otherwise) const;
  double real(cudnnBackendAttributeName_t name, double otherwise) const;
  std::vector<int64_t> integers(cudnnBackendAttributeName_t name) const;
  void put(cudnnBackendAttributeName_t name, int64_t value);
  void put(cudnnBackendAttributeName_t name, const Descriptor& value);
};

size_t size_of(cudnnBackendAttributeType_t type);

// The graph of a finalized OPERATIONGRAPH descriptor, or NOT_SUPPORTED or BAD_PARAM with the reason in `why`.
cudnnStatus_t build_graph(const Descriptor& operation_graph, DnnGraph* graph, std::string* why);

}  // namespace simgpu
