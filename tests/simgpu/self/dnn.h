// cuDNN's backend API in the short form that the tests need.
#pragma once

#include <cudnn.h>

#include <initializer_list>
#include <vector>

#include "simgpu/self/fixture.h"

class Dnn {
 public:
  explicit Dnn(cudnnBackendDescriptorType_t type) { cudnnBackendCreateDescriptor(type, &handle_); }
  Dnn(Dnn&& other) noexcept : handle_(other.handle_), status_(other.status_) { other.handle_ = nullptr; }
  ~Dnn() {
    if (handle_ != nullptr) cudnnBackendDestroyDescriptor(handle_);
  }
  template <class T>
  Dnn&& set(cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type,
            const std::vector<T>& values) && {
    EXPECT_EQ(
        cudnnBackendSetAttribute(handle_, name, type, static_cast<int64_t>(values.size()), values.data()),
        CUDNN_STATUS_SUCCESS);
    return std::move(*this);
  }
  Dnn&& set(cudnnBackendAttributeName_t name, const std::vector<int64_t>& values) && {
    return std::move(*this).set(name, CUDNN_TYPE_INT64, values);
  }
  Dnn&& set(cudnnBackendAttributeName_t name, const Dnn& part) && {
    return std::move(*this).set(name, CUDNN_TYPE_BACKEND_DESCRIPTOR, std::vector<void*>{part.handle_});
  }
  Dnn&& finalize() && {
    status_ = cudnnBackendFinalize(handle_);
    return std::move(*this);
  }
  cudnnStatus_t status() const { return status_; }
  void* handle() const { return handle_; }

 private:
  void* handle_ = nullptr;
  cudnnStatus_t status_ = CUDNN_STATUS_NOT_INITIALIZED;
};

struct DnnShape {
  std::vector<int64_t> dims;
  bool channels_last = false;
  std::vector<int64_t> strides() const {
    const int64_t c = dims[1], h = dims[2], w = dims[3];
    return channels_last ? std::vector<int64_t>{c * h * w, 1, w * c, c}
                         : std::vector<int64_t>{c * h * w, h * w, w, 1};
  }
};

inline Dnn dnn_tensor(int64_t uid, const DnnShape& shape, cudnnDataType_t type = CUDNN_DATA_FLOAT,
                      bool is_virtual = false) {
  return Dnn(CUDNN_BACKEND_TENSOR_DESCRIPTOR)
      .set(CUDNN_ATTR_TENSOR_DATA_TYPE, CUDNN_TYPE_DATA_TYPE, std::vector<cudnnDataType_t>{type})
      .set(CUDNN_ATTR_TENSOR_DIMENSIONS, shape.dims)
      .set(CUDNN_ATTR_TENSOR_STRIDES, shape.strides())
      .set(CUDNN_ATTR_TENSOR_UNIQUE_ID, {uid})
      .set(CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, {16})
      .set(CUDNN_ATTR_TENSOR_IS_VIRTUAL, CUDNN_TYPE_BOOLEAN, std::vector<unsigned char>{is_virtual})
      .finalize();
}

inline Dnn dnn_convolution(int64_t pad, int64_t stride) {
  return Dnn(CUDNN_BACKEND_CONVOLUTION_DESCRIPTOR)
      .set(CUDNN_ATTR_CONVOLUTION_SPATIAL_DIMS, {2})
      .set(CUDNN_ATTR_CONVOLUTION_COMP_TYPE, CUDNN_TYPE_DATA_TYPE,
           std::vector<cudnnDataType_t>{CUDNN_DATA_FLOAT})
      .set(CUDNN_ATTR_CONVOLUTION_CONV_MODE, CUDNN_TYPE_CONVOLUTION_MODE,
           std::vector<cudnnConvolutionMode_t>{CUDNN_CROSS_CORRELATION})
      .set(CUDNN_ATTR_CONVOLUTION_PRE_PADDINGS, {pad, pad})
      .set(CUDNN_ATTR_CONVOLUTION_POST_PADDINGS, {pad, pad})
      .set(CUDNN_ATTR_CONVOLUTION_FILTER_STRIDES, {stride, stride})
      .set(CUDNN_ATTR_CONVOLUTION_DILATIONS, {1, 1})
      .finalize();
}

inline Dnn dnn_pointwise(cudnnPointwiseMode_t mode, const Dnn& x, const Dnn* b, const Dnn& y) {
  Dnn description =
      Dnn(CUDNN_BACKEND_POINTWISE_DESCRIPTOR)
          .set(CUDNN_ATTR_POINTWISE_MODE, CUDNN_TYPE_POINTWISE_MODE, std::vector<cudnnPointwiseMode_t>{mode})
          .finalize();
  Dnn op = Dnn(CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR)
               .set(CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR, description)
               .set(CUDNN_ATTR_OPERATION_POINTWISE_XDESC, x)
               .set(CUDNN_ATTR_OPERATION_POINTWISE_YDESC, y);
  if (b != nullptr) std::move(op).set(CUDNN_ATTR_OPERATION_POINTWISE_BDESC, *b);
  return std::move(op).finalize();
}

// Graph, heuristics, and the first engine configuration of which a plan can be made.
inline Dnn dnn_plan(std::initializer_list<void*> ops, int* refused = nullptr) {
  Dnn graph = Dnn(CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR)
                  .set(CUDNN_ATTR_OPERATIONGRAPH_OPS, CUDNN_TYPE_BACKEND_DESCRIPTOR, std::vector<void*>(ops))
                  .finalize();
  EXPECT_EQ(graph.status(), CUDNN_STATUS_SUCCESS);
  Dnn heuristics = Dnn(CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR)
                       .set(CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, graph)
                       .set(CUDNN_ATTR_ENGINEHEUR_MODE, CUDNN_TYPE_HEUR_MODE,
                            std::vector<cudnnBackendHeurMode_t>{CUDNN_HEUR_MODE_A})
                       .finalize();
  int64_t count = 0;
  cudnnBackendGetAttribute(heuristics.handle(), CUDNN_ATTR_ENGINEHEUR_RESULTS, CUDNN_TYPE_BACKEND_DESCRIPTOR,
                           0, &count, nullptr);
  std::vector<Dnn> configs;
  std::vector<void*> handles;
  for (int64_t i = 0; i < count; ++i) {
    configs.emplace_back(CUDNN_BACKEND_ENGINECFG_DESCRIPTOR);
    handles.push_back(configs.back().handle());
  }
  cudnnBackendGetAttribute(heuristics.handle(), CUDNN_ATTR_ENGINEHEUR_RESULTS, CUDNN_TYPE_BACKEND_DESCRIPTOR,
                           count, &count, handles.data());
  for (const Dnn& config : configs) {
    Dnn plan = Dnn(CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR)
                   .set(CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, config)
                   .finalize();
    if (plan.status() == CUDNN_STATUS_SUCCESS) return plan;
    if (refused != nullptr) ++*refused;
  }
  ADD_FAILURE() << "no engine";
  return Dnn(CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR);
}

inline int64_t dnn_workspace_bytes(const Dnn& plan) {
  int64_t bytes = 0, count = 0;
  cudnnBackendGetAttribute(plan.handle(), CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE, CUDNN_TYPE_INT64, 1,
                           &count, &bytes);
  return bytes;
}

inline cudnnStatus_t dnn_execute(cudaStream_t stream, const Dnn& plan, const std::vector<int64_t>& uids,
                                 const std::vector<void*>& pointers, void* workspace) {
  cudnnHandle_t handle;
  cudnnCreate(&handle);
  cudnnSetStream(handle, stream);
  Dnn pack = Dnn(CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR)
                 .set(CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, uids)
                 .set(CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, CUDNN_TYPE_VOID_PTR, pointers)
                 .set(CUDNN_ATTR_VARIANT_PACK_WORKSPACE, CUDNN_TYPE_VOID_PTR, std::vector<void*>{workspace})
                 .finalize();
  const cudnnStatus_t status = cudnnBackendExecute(handle, plan.handle(), pack.handle());
  cudnnDestroy(handle);
  return status;
}
