#include "simgpu/dnn_graph.h"

#include <algorithm>
#include <cmath>
#include <set>

#include "simgpu/dnn_convolution.h"

namespace simgpu {
namespace {

using Values = std::vector<float>;  // dense, in the order of the dimensions

// Calls f(index of the dense element, offset by the strides) for each element.
template <class F>
void for_elements(const std::vector<int64_t>& dims, const std::vector<int64_t>& strides, F f) {
  std::vector<int64_t> at(dims.size());
  int64_t total = 1, offset = 0;
  for (int64_t d : dims) total *= d;
  for (int64_t i = 0; i < total; ++i) {
    f(static_cast<size_t>(i), offset);
    for (size_t d = dims.size(); d-- > 0;) {
      offset += strides[d];
      if (++at[d] < dims[d]) break;
      offset -= strides[d] * dims[d];
      at[d] = 0;
    }
  }
}

struct Interpreter {
  const DnnGraph& graph;
  const std::map<int64_t, void*>& pointers;
  const std::map<int64_t, double>& scalars;
  std::map<int64_t, Values> values;

  const Values& read(int64_t uid) {
    auto [it, added] = values.try_emplace(uid);
    if (!added) return it->second;
    const DnnTensor& t = graph.tensors.at(uid);
    it->second.resize(static_cast<size_t>(t.elements()));
    if (t.by_value) {
      std::fill(it->second.begin(), it->second.end(), static_cast<float>(scalars.at(uid)));
    } else {
      const void* p = pointers.at(uid);
      for_elements(t.dims, t.strides, [&](size_t i, int64_t at) {
        it->second[i] = static_cast<float>(load(t.type, p, static_cast<size_t>(at)));
      });
    }
    return it->second;
  }

  void write(int64_t uid, Values result) {
    const DnnTensor& t = graph.tensors.at(uid);
    if (!t.is_virtual) {
      void* p = pointers.at(uid);
      for_elements(t.dims, t.strides, [&](size_t i, int64_t at) {
        store(t.type, p, static_cast<size_t>(at), static_cast<double>(result[i]));
      });
    }
    values[uid] = std::move(result);
  }

  void pointwise(const DnnNode& n);
  void reduce(const DnnNode& n);
  void convolve(const DnnNode& n);
};

double apply(const DnnNode& n, double x, double b) {
  const auto sigmoid = [](double v) { return 1 / (1 + std::exp(-v)); };
  switch (n.mode) {
    case CUDNN_POINTWISE_ADD: return x + b;
    case CUDNN_POINTWISE_SUB: return x - b;
    case CUDNN_POINTWISE_MUL: return x * b;
    case CUDNN_POINTWISE_DIV: return x / b;
    case CUDNN_POINTWISE_MAX: return std::max(x, b);
    case CUDNN_POINTWISE_MIN: return std::min(x, b);
    case CUDNN_POINTWISE_IDENTITY: return x;
    case CUDNN_POINTWISE_RELU_FWD:
      return x < n.relu_lower ? n.relu_lower + (x - n.relu_lower) * n.relu_slope : std::min(x, n.relu_upper);
    case CUDNN_POINTWISE_RELU_BWD:  // x: the gradient, b: the input (or output) of the forward pass
      return b > n.relu_lower && b < n.relu_upper ? x : x * n.relu_slope;
    case CUDNN_POINTWISE_SIGMOID_FWD: return sigmoid(x);
    case CUDNN_POINTWISE_TANH_FWD: return std::tanh(x);
    case CUDNN_POINTWISE_SWISH_FWD: return x * sigmoid(x);
    case CUDNN_POINTWISE_GELU_FWD: return x * 0.5 * (1 + std::erf(x / std::sqrt(2.0)));
    default: return std::nan("");
  }
}

std::vector<int64_t> dense_strides(const std::vector<int64_t>& dims, const std::vector<int64_t>& out) {
  // Of a tensor of shape `dims` read at the indices of `out`: axes of length 1 are broadcast.
  std::vector<int64_t> strides(out.size(), 0);
  int64_t step = 1;
  for (size_t d = dims.size(); d-- > 0;) {
    strides[d] = dims[d] == 1 ? 0 : step;
    step *= dims[d];
  }
  return strides;
}

void Interpreter::pointwise(const DnnNode& n) {
  const std::vector<int64_t>& dims = graph.tensors.at(n.output).dims;
  Values result(static_cast<size_t>(graph.tensors.at(n.output).elements()));
  const Values& x = read(n.inputs[0]);
  for_elements(dims, dense_strides(graph.tensors.at(n.inputs[0]).dims, dims),
               [&](size_t i, int64_t at) { result[i] = x[static_cast<size_t>(at)]; });
  if (n.input_count == 2) {
    const Values& b = read(n.inputs[1]);
    for_elements(dims, dense_strides(graph.tensors.at(n.inputs[1]).dims, dims), [&](size_t i, int64_t at) {
      result[i] = static_cast<float>(
          apply(n, static_cast<double>(result[i]), static_cast<double>(b[static_cast<size_t>(at)])));
    });
  } else {
    for (float& v : result) v = static_cast<float>(apply(n, static_cast<double>(v), 0));
  }
  write(n.output, std::move(result));
}

void Interpreter::reduce(const DnnNode& n) {
  const std::vector<int64_t>& dims = graph.tensors.at(n.inputs[0]).dims;
  const Values& x = read(n.inputs[0]);
  std::vector<double> sums(static_cast<size_t>(graph.tensors.at(n.output).elements()));
  for_elements(dims, dense_strides(graph.tensors.at(n.output).dims, dims),
               [&](size_t i, int64_t at) { sums[static_cast<size_t>(at)] += static_cast<double>(x[i]); });
  write(n.output, Values(sums.begin(), sums.end()));
}

void Interpreter::convolve(const DnnNode& n) {
  Convolution c;
  c.forward_x =
      n.kind == DnnNode::conv_data ? graph.tensors.at(n.output).dims : graph.tensors.at(n.inputs[0]).dims;
  c.filter =
      n.kind == DnnNode::conv_filter ? graph.tensors.at(n.output).dims : graph.tensors.at(n.inputs[1]).dims;
  c.forward_y = n.kind == DnnNode::conv_forward ? graph.tensors.at(n.output).dims
                : n.kind == DnnNode::conv_data  ? graph.tensors.at(n.inputs[0]).dims
                                                : graph.tensors.at(n.inputs[1]).dims;
  c.pads = n.pads, c.strides = n.strides, c.dilations = n.dilations;
  Values result(static_cast<size_t>(graph.tensors.at(n.output).elements()));
  const Values &first = read(n.inputs[0]), &second = read(n.inputs[1]);
  switch (n.kind) {
    case DnnNode::conv_forward:
      c.run(Convolution::forward, first.data(), second.data(), result.data());
      break;
    case DnnNode::conv_data:
      c.run(Convolution::data, result.data(), second.data(), const_cast<float*>(first.data()));
      break;
    default:
      c.run(Convolution::weights, first.data(), result.data(), const_cast<float*>(second.data()));
      break;
  }
  for (float& v : result) v *= static_cast<float>(n.alpha);
  if (n.beta != 0) {
    const Values& old = read(n.output);
    for (size_t i = 0; i < result.size(); ++i) result[i] += static_cast<float>(n.beta) * old[i];
  }
  write(n.output, std::move(result));
}

}  // namespace

int64_t DnnTensor::elements() const {
  int64_t n = 1;
  for (int64_t d : dims) n *= d;
  return n;
}

std::string DnnGraph::name() const {
  static const char* const kinds[] = {"conv_forward", "conv_data", "conv_filter", "", "reduction"};
  std::string text;
  for (const DnnNode& n : nodes)
    text += (text.empty() ? "cudnn(" : ", ") +
            std::string(n.kind == DnnNode::pointwise ? mode_name(n.mode) : kinds[n.kind]);
  return text + ")";
}

// Does the tensor, its axes in whatever order, fill its memory without gaps?
static bool is_dense(const DnnTensor& t) {
  std::vector<std::pair<int64_t, int64_t>> axes;  // stride, length
  for (size_t d = 0; d < t.dims.size(); ++d)
    if (t.dims[d] > 1) axes.emplace_back(t.strides[d], t.dims[d]);
  std::sort(axes.begin(), axes.end());
  int64_t expected = 1;
  for (const auto& [stride, length] : axes) {
    if (stride != expected) return false;
    expected *= length;
  }
  return true;
}

std::vector<Range> dnn_ranges(const DnnGraph& graph, const std::map<int64_t, void*>& pointers) {
  std::set<int64_t> reads, writes;
  for (const DnnNode& n : graph.nodes) {
    for (int i = 0; i < n.input_count; ++i)
      if (!writes.contains(n.inputs[i])) reads.insert(n.inputs[i]);
    if (n.beta != 0) reads.insert(n.output);
    writes.insert(n.output);
  }
  std::vector<Range> ranges;
  const auto add = [&](int64_t uid, bool write) {
    const DnnTensor& t = graph.tensors.at(uid);
    if (t.is_virtual || t.by_value) return;
    const size_t element = size_of(t.type);
    if (is_dense(t)) {
      ranges.push_back({pointers.at(uid), static_cast<size_t>(t.elements()) * element, write});
      return;
    }
    // Offsets that the tensor uses, as runs of neighbours.
    std::vector<int64_t> offsets(static_cast<size_t>(t.elements()));
    for_elements(t.dims, t.strides, [&](size_t i, int64_t at) { offsets[i] = at; });
    std::sort(offsets.begin(), offsets.end());
    for (size_t i = 0; i < offsets.size();) {
      size_t j = i + 1;
      while (j < offsets.size() && offsets[j] <= offsets[j - 1] + 1) ++j;
      ranges.push_back(
          {static_cast<const char*>(pointers.at(uid)) + static_cast<size_t>(offsets[i]) * element,
           static_cast<size_t>(offsets[j - 1] - offsets[i] + 1) * element, write});
      i = j;
    }
  };
  for (int64_t uid : reads) add(uid, false);
  for (int64_t uid : writes) add(uid, true);
  return ranges;
}

void run_dnn(const DnnGraph& graph, const std::map<int64_t, void*>& pointers,
             const std::map<int64_t, double>& scalars) {
  Interpreter interpreter{graph, pointers, scalars, {}};
  for (const DnnNode& n : graph.nodes) {
    switch (n.kind) {
      case DnnNode::pointwise: interpreter.pointwise(n); break;
      case DnnNode::reduction: interpreter.reduce(n); break;
      default: interpreter.convolve(n); break;
    }
  }
}

const char* mode_name(cudnnPointwiseMode_t mode) {
  switch (mode) {
    case CUDNN_POINTWISE_ADD: return "add";
    case CUDNN_POINTWISE_SUB: return "sub";
    case CUDNN_POINTWISE_MUL: return "mul";
    case CUDNN_POINTWISE_DIV: return "div";
    case CUDNN_POINTWISE_MAX: return "max";
    case CUDNN_POINTWISE_MIN: return "min";
    case CUDNN_POINTWISE_IDENTITY: return "identity";
    case CUDNN_POINTWISE_RELU_FWD: return "relu";
    case CUDNN_POINTWISE_RELU_BWD: return "relu_backward";
    case CUDNN_POINTWISE_SIGMOID_FWD: return "sigmoid";
    case CUDNN_POINTWISE_TANH_FWD: return "tanh";
    case CUDNN_POINTWISE_SWISH_FWD: return "swish";
    case CUDNN_POINTWISE_GELU_FWD: return "gelu";
    default: return nullptr;
  }
}
bool supported(cudnnPointwiseMode_t mode) { return mode_name(mode) != nullptr; }

}  // namespace simgpu
