#include "simgpu/dnn_descriptor.h"

#include <algorithm>
#include <cstring>
#include <set>

namespace simgpu {

const Descriptor::Value* Descriptor::find(cudnnBackendAttributeName_t name) const {
  auto it = attributes.find(name);
  return it == attributes.end() ? nullptr : &it->second;
}
const Descriptor* Descriptor::part(cudnnBackendAttributeName_t name) const {
  const Value* v = find(name);
  return v == nullptr || v->parts.empty() ? nullptr : &v->parts[0];
}
int64_t Descriptor::integer(cudnnBackendAttributeName_t name, int64_t otherwise) const {
  const Value* v = find(name);
  if (v == nullptr || v->count == 0) return otherwise;
  int64_t value = 0;  // enums, booleans and integers of any size, little-endian
  std::memcpy(&value, v->bytes.data(), std::min(sizeof value, size_of(v->type)));
  return value;
}
double Descriptor::real(cudnnBackendAttributeName_t name, double otherwise) const {
  const Value* v = find(name);
  if (v == nullptr || v->count == 0) return otherwise;
  if (v->type == CUDNN_TYPE_FLOAT) {
    float value;
    std::memcpy(&value, v->bytes.data(), sizeof value);
    return static_cast<double>(value);
  }
  double value;
  std::memcpy(&value, v->bytes.data(), sizeof value);
  return value;
}
std::vector<int64_t> Descriptor::integers(cudnnBackendAttributeName_t name) const {
  const Value* v = find(name);
  std::vector<int64_t> values(v == nullptr ? 0 : static_cast<size_t>(v->count));
  if (!values.empty()) std::memcpy(values.data(), v->bytes.data(), values.size() * sizeof(int64_t));
  return values;
}
void Descriptor::put(cudnnBackendAttributeName_t name, int64_t value) {
  Value& v = attributes[name];
  v = {CUDNN_TYPE_INT64, 1, std::vector<unsigned char>(sizeof value), {}};
  std::memcpy(v.bytes.data(), &value, sizeof value);
}
void Descriptor::put(cudnnBackendAttributeName_t name, const Descriptor& value) {
  attributes[name] = {CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, {}, {value}};
}

size_t size_of(cudnnBackendAttributeType_t type) {
  switch (type) {
    case CUDNN_TYPE_BOOLEAN: return sizeof(bool);
    case CUDNN_TYPE_INT64:
    case CUDNN_TYPE_DOUBLE: return 8;
    case CUDNN_TYPE_HANDLE:
    case CUDNN_TYPE_VOID_PTR:
    case CUDNN_TYPE_BACKEND_DESCRIPTOR: return sizeof(void*);
    case CUDNN_TYPE_CHAR: return 1;
    case CUDNN_TYPE_FRACTION: return sizeof(cudnnFraction_t);
    default: return 4;  // float, int32 and the enums
  }
}

namespace {

bool to_type(int64_t t, Type* type) {
  switch (t) {
    case CUDNN_DATA_FLOAT: *type = Type::f32; return true;
    case CUDNN_DATA_DOUBLE: *type = Type::f64; return true;
    case CUDNN_DATA_HALF: *type = Type::f16; return true;
    case CUDNN_DATA_BFLOAT16: *type = Type::bf16; return true;
    case CUDNN_DATA_INT8: *type = Type::i8; return true;
    case CUDNN_DATA_INT32: *type = Type::i32; return true;
    case CUDNN_DATA_INT64: *type = Type::i64; return true;
    case CUDNN_DATA_BOOLEAN:
    case CUDNN_DATA_UINT8: *type = Type::u8; return true;
    default: return false;
  }
}

struct Builder {
  DnnGraph& graph;
  std::string& why;

  cudnnStatus_t unsupported(const std::string& what) {
    why = what;
    return CUDNN_STATUS_NOT_SUPPORTED;
  }

  // Registers the tensor; its uid, or an error.
  cudnnStatus_t tensor(const Descriptor* d, int64_t* uid) {
    if (d == nullptr) {
      why = "an operation lacks a tensor";
      return CUDNN_STATUS_BAD_PARAM;
    }
    DnnTensor t;
    t.uid = *uid = d->integer(CUDNN_ATTR_TENSOR_UNIQUE_ID, 0);
    t.dims = d->integers(CUDNN_ATTR_TENSOR_DIMENSIONS);
    t.strides = d->integers(CUDNN_ATTR_TENSOR_STRIDES);
    t.is_virtual = d->integer(CUDNN_ATTR_TENSOR_IS_VIRTUAL, 0) != 0;
    t.by_value = d->integer(CUDNN_ATTR_TENSOR_IS_BY_VALUE, 0) != 0;
    if (!to_type(d->integer(CUDNN_ATTR_TENSOR_DATA_TYPE, -1), &t.type))
      return unsupported("a tensor's data type");
    if (t.dims.empty() || t.dims.size() != t.strides.size()) {
      why = "a tensor without as many strides as dimensions";
      return CUDNN_STATUS_BAD_PARAM;
    }
    graph.tensors[t.uid] = t;
    return CUDNN_STATUS_SUCCESS;
  }

  cudnnStatus_t connect(const Descriptor& op, DnnNode* n,
                        std::initializer_list<cudnnBackendAttributeName_t> inputs,
                        cudnnBackendAttributeName_t output) {
    for (cudnnBackendAttributeName_t name : inputs)
      if (cudnnStatus_t s = tensor(op.part(name), &n->inputs[n->input_count++]); s != CUDNN_STATUS_SUCCESS)
        return s;
    return tensor(op.part(output), &n->output);
  }

  cudnnStatus_t convolution(const Descriptor& op, DnnNode* n, cudnnBackendAttributeName_t descriptor,
                            cudnnBackendAttributeName_t alpha, cudnnBackendAttributeName_t beta) {
    const Descriptor* c = op.part(descriptor);
    if (c == nullptr) return CUDNN_STATUS_BAD_PARAM;
    if (c->integer(CUDNN_ATTR_CONVOLUTION_CONV_MODE, CUDNN_CROSS_CORRELATION) != CUDNN_CROSS_CORRELATION)
      return unsupported("a convolution with flipped filters");
    n->pads = c->integers(CUDNN_ATTR_CONVOLUTION_PRE_PADDINGS);
    n->strides = c->integers(CUDNN_ATTR_CONVOLUTION_FILTER_STRIDES);
    n->dilations = c->integers(CUDNN_ATTR_CONVOLUTION_DILATIONS);
    if (n->pads != c->integers(CUDNN_ATTR_CONVOLUTION_POST_PADDINGS)) return unsupported("unequal paddings");
    n->alpha = op.real(alpha, 1);
    n->beta = op.real(beta, 0);
    return CUDNN_STATUS_SUCCESS;
  }

  cudnnStatus_t pointwise(const Descriptor& op, DnnNode* n) {
    const Descriptor* p = op.part(CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR);
    if (p == nullptr) return CUDNN_STATUS_BAD_PARAM;
    n->mode = static_cast<cudnnPointwiseMode_t>(p->integer(CUDNN_ATTR_POINTWISE_MODE, -1));
    if (!supported(n->mode)) return unsupported("pointwise mode " + std::to_string(n->mode));
    n->relu_lower = p->real(CUDNN_ATTR_POINTWISE_RELU_LOWER_CLIP, 0);
    n->relu_upper = p->real(CUDNN_ATTR_POINTWISE_RELU_UPPER_CLIP, 1e308);
    n->relu_slope = p->real(CUDNN_ATTR_POINTWISE_RELU_LOWER_CLIP_SLOPE, 0);
    if (n->mode == CUDNN_POINTWISE_RELU_BWD)
      return connect(op, n, {CUDNN_ATTR_OPERATION_POINTWISE_DYDESC, CUDNN_ATTR_OPERATION_POINTWISE_XDESC},
                     CUDNN_ATTR_OPERATION_POINTWISE_DXDESC);
    if (op.part(CUDNN_ATTR_OPERATION_POINTWISE_BDESC) != nullptr)
      return connect(op, n, {CUDNN_ATTR_OPERATION_POINTWISE_XDESC, CUDNN_ATTR_OPERATION_POINTWISE_BDESC},
                     CUDNN_ATTR_OPERATION_POINTWISE_YDESC);
    return connect(op, n, {CUDNN_ATTR_OPERATION_POINTWISE_XDESC}, CUDNN_ATTR_OPERATION_POINTWISE_YDESC);
  }

  cudnnStatus_t node(const Descriptor& op) {
    DnnNode n;
    cudnnStatus_t s = CUDNN_STATUS_SUCCESS;
    switch (op.type) {
      case CUDNN_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR:
        n.kind = DnnNode::conv_forward;
        s = convolution(op, &n, CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_CONV_DESC,
                        CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_ALPHA,
                        CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_BETA);
        if (s == CUDNN_STATUS_SUCCESS)
          s = connect(
              op, &n,
              {CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_X, CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_W},
              CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_Y);
        break;
      case CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_DATA_DESCRIPTOR:
        n.kind = DnnNode::conv_data;
        s = convolution(op, &n, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_CONV_DESC,
                        CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_ALPHA,
                        CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_BETA);
        if (s == CUDNN_STATUS_SUCCESS)
          s = connect(
              op, &n,
              {CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DY, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_W},
              CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DX);
        break;
      case CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_FILTER_DESCRIPTOR:
        n.kind = DnnNode::conv_filter;
        s = convolution(op, &n, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_CONV_DESC,
                        CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_ALPHA,
                        CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_BETA);
        if (s == CUDNN_STATUS_SUCCESS)
          s = connect(
              op, &n,
              {CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_X, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DY},
              CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DW);
        break;
      case CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR:
        n.kind = DnnNode::pointwise;
        s = pointwise(op, &n);
        break;
      case CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR: {
        n.kind = DnnNode::reduction;
        const Descriptor* r = op.part(CUDNN_ATTR_OPERATION_REDUCTION_DESC);
        if (r == nullptr || r->integer(CUDNN_ATTR_REDUCTION_OPERATOR, -1) != CUDNN_REDUCE_TENSOR_ADD)
          return unsupported("a reduction other than a sum");
        s = connect(op, &n, {CUDNN_ATTR_OPERATION_REDUCTION_XDESC}, CUDNN_ATTR_OPERATION_REDUCTION_YDESC);
        break;
      }
      default: return unsupported("operation descriptor " + std::to_string(op.type));
    }
    if (s == CUDNN_STATUS_SUCCESS) graph.nodes.push_back(n);
    return s;
  }

  // Callers may name the operations in any order.
  cudnnStatus_t sort() {
    std::set<int64_t> pending;
    for (const DnnNode& n : graph.nodes) pending.insert(n.output);
    std::vector<DnnNode> sorted;
    while (sorted.size() < graph.nodes.size()) {
      const size_t before = sorted.size();
      for (const DnnNode& n : graph.nodes) {
        const bool ready =
            std::none_of(n.inputs, n.inputs + n.input_count, [&](int64_t u) { return pending.contains(u); });
        if (!ready || !pending.contains(n.output)) continue;
        pending.erase(n.output);
        sorted.push_back(n);
      }
      if (sorted.size() == before) return unsupported("a graph with a circle");
    }
    graph.nodes = std::move(sorted);
    return CUDNN_STATUS_SUCCESS;
  }
};

}  // namespace

cudnnStatus_t build_graph(const Descriptor& operation_graph, DnnGraph* graph, std::string* why) {
  const Descriptor::Value* ops = operation_graph.find(CUDNN_ATTR_OPERATIONGRAPH_OPS);
  if (ops == nullptr || ops->parts.empty()) {
    *why = "an empty graph";
    return CUDNN_STATUS_BAD_PARAM;
  }
  Builder builder{*graph, *why};
  for (const Descriptor& op : ops->parts)
    if (cudnnStatus_t s = builder.node(op); s != CUDNN_STATUS_SUCCESS) return s;
  return builder.sort();
}

}  // namespace simgpu
