#include "lockstep/runtime/autograd.h"

#include <algorithm>
#include <atomic>
#include <memory_resource>
#include <unordered_map>
#include <utility>

#include "lockstep/runtime/primitives.h"

namespace lockstep {
namespace {

constexpr uint64_t kLeafSequence = UINT64_MAX;

class BackwardRun;
// Whose backward lambda runs in this thread.
struct Running {
  const Node* node = nullptr;
  BackwardRun* run = nullptr;
};
thread_local Running running;

uint64_t next_sequence() {
  static std::atomic<uint64_t> counter{0};
  return counter.fetch_add(1, std::memory_order_relaxed);
}

AutogradMeta& leaf_meta(const char* function, const Tensor& tensor) {
  LOCKSTEP_CHECK(tensor.requires_grad() && tensor.is_leaf(), "[", function,
                 "] expected a leaf that requires a gradient, got ",
                 tensor.requires_grad() ? concat("the result of ", tensor.handle()->autograd->node->op)
                                        : "one that does not");
  return *tensor.handle()->autograd;
}

bool contains_nan(const Tensor& x) {
  bool found = false;
  LOCKSTEP_DISPATCH(current_stream(x.device()), has_nan, x, found);
  return found;
}

// Nobody else can see these values: they may be kept, and changed in place. A piece of a larger storage is
// not kept, as that would keep the whole.
bool is_exclusive(const Tensor& x) {
  return x.handle().use_count() == 1 && x.storage().use_count() == 1 &&
         x.storage()->memory.data() == x.storage()->data && x.storage()->bytes == x.bytes() &&
         x.is_contiguous();
}

void add_into(Tensor& sum, Tensor&& term) {
  if (!sum.defined()) {
    sum = std::move(term);
    return;
  }
  if (!is_exclusive(sum)) sum = sum.clone();
  LOCKSTEP_DISPATCH(current_stream(sum.device()), accumulate, term, 1.0, sum);
}

void accumulate_leaf(const std::shared_ptr<AutogradMeta>& meta, Tensor&& gradient) {
  std::vector<std::pair<int64_t, Hook>> hooks;
  {
    std::lock_guard lock(meta->mutex);
    if (meta->grad.defined() && meta->grad.same_as(gradient)) {
      meta->grad.bump_version();  // added in place: accumulation_target
    } else if (meta->grad.defined()) {
      LOCKSTEP_DISPATCH(current_stream(meta->grad.device()), accumulate, gradient, 1.0, meta->grad);
      meta->grad.bump_version();
    } else {
      meta->grad = is_exclusive(gradient) ? std::move(gradient) : gradient.clone();
    }
    hooks = meta->hooks;
  }
  if (hooks.empty()) return;
  if (auto leaf = meta->tensor.lock())
    for (auto& [id, hook] : hooks) hook(Tensor(leaf));
}

// One backward. Nodes are visited once to count how many gradients each will get; then each runs when all
// have come.
class BackwardRun {
 public:
  BackwardRun(bool retain_graph, bool accumulate) : retain_graph_(retain_graph), accumulate_(accumulate) {}

  Tensors run(std::span<const Tensor> roots, std::span<const Tensor> grads, std::span<const Tensor> inputs) {
    for (const Tensor& root : roots) visit(root.handle()->autograd->node);
    captured_.resize(inputs.size());
    for (size_t i = 0; i < inputs.size(); i++) {
      const AutogradMeta& meta = *inputs[i].handle()->autograd;
      captures_.push_back({meta.node.get(), meta.output, i});
    }
    for (size_t i = 0; i < roots.size(); i++) {
      const AutogradMeta& meta = *roots[i].handle()->autograd;
      Pending& pending = pending_.find(meta.node.get())->second;
      add_into(gradient_slot(pending, meta.output), Tensor(grads[i]));
    }
    for (const Tensor& root : roots) {
      Pending& pending = pending_.find(root.handle()->autograd->node.get())->second;
      if (pending.dependencies == 0 && !pending.queued) enqueue(pending);
    }
    while (!ready_.empty()) {
      std::pop_heap(ready_.begin(), ready_.end(), runs_later);
      Pending& pending = *ready_.back();
      ready_.pop_back();
      process(pending);
    }
    return std::move(captured_);
  }

  // The leaf's gradient if what the running node returns for this input is all that is still to come.
  Tensor accumulation_target(const Edge& edge) {
    if (!accumulate_ || !edge.node || edge.node->sequence != kLeafSequence) return {};
    const Pending& pending = pending_.find(edge.node.get())->second;
    auto meta = edge.node->leaf.lock();
    if (pending.dependencies != 1 || !pending.grads.empty() || !meta) return {};
    std::lock_guard lock(meta->mutex);
    return meta->grad;
  }

 private:
  struct Pending {
    std::shared_ptr<Node> node;
    Tensors grads;  // one per output of the node
    int dependencies = 0;
    bool queued = false;
  };
  struct Capture {
    Node* node;
    int output;
    size_t index;
  };

  static bool runs_later(const Pending* a, const Pending* b) { return a->node->sequence < b->node->sequence; }

  static Tensor& gradient_slot(Pending& pending, int output) {
    if (pending.grads.empty()) pending.grads.resize(size_t(pending.node->outputs));
    return pending.grads[size_t(output)];
  }

  void enqueue(Pending& pending) {
    pending.queued = true;
    ready_.push_back(&pending);
    std::push_heap(ready_.begin(), ready_.end(), runs_later);
  }

  void visit(const std::shared_ptr<Node>& root) {
    if (!pending_.try_emplace(root.get(), Pending{root, {}, 0, false}).second) return;
    std::vector<Node*> stack{root.get()};
    while (!stack.empty()) {
      Node* node = stack.back();
      stack.pop_back();
      LOCKSTEP_CHECK(!node->released, "[", node->op,
                     "] backward through a graph that was already released; pass retain_graph = true to the "
                     "first backward");
      for (const Edge& edge : node->edges) {
        if (!edge.node) continue;
        auto [found, inserted] = pending_.try_emplace(edge.node.get());
        found->second.dependencies++;
        if (!inserted) continue;
        found->second.node = edge.node;
        stack.push_back(edge.node.get());
      }
    }
  }

  void process(Pending& pending) {
    std::shared_ptr<Node> node = std::move(pending.node);
    Tensors grads = std::move(pending.grads);
    if (!grads.empty())
      for (const Capture& capture : captures_)
        if (capture.node == node.get()) captured_[capture.index] = grads[size_t(capture.output)];
    if (node->sequence == kLeafSequence) {
      if (!accumulate_ || grads.empty() || !grads[0].defined()) return;
      if (auto meta = node->leaf.lock()) accumulate_leaf(meta, std::move(grads[0]));
      return;
    }
    Tensors results = grads.empty() ? Tensors(node->edges.size()) : call(*node, grads);
    std::vector<Edge> edges;
    if (retain_graph_) {
      edges = node->edges;
    } else {
      node->backward = nullptr;
      node->released = true;
      edges = std::move(node->edges);
      node->edges.clear();
    }
    for (size_t i = 0; i < edges.size(); i++)
      if (edges[i].node) deliver(*node, i, edges[i], std::move(results[i]));
  }

  Tensors call(const Node& node, const Tensors& grads) {
    struct RunningGuard {
      explicit RunningGuard(Running now) : previous(std::exchange(running, now)) {}
      ~RunningGuard() { running = previous; }
      Running previous;
    } guard({&node, this});
    Tensors results = node.backward(grads);
    LOCKSTEP_CHECK(results.size() == node.edges.size(), "[", node.op, "] backward returned ", results.size(),
                   " gradients, expected ", node.edges.size());
    if (thread_state().anomaly)
      for (size_t i = 0; i < results.size(); i++)
        LOCKSTEP_CHECK(!results[i].defined() || !contains_nan(results[i]), "[anomaly] the backward of ",
                       node.op, " made a NaN in the gradient of input ", i, " of shape ", results[i].shape());
    return results;
  }

  void deliver(const Node& from, size_t input, const Edge& edge, Tensor&& gradient) {
    Pending& pending = pending_.find(edge.node.get())->second;
    if (gradient.defined()) {
      LOCKSTEP_CHECK(gradient.dtype() == edge.dtype, "[", from.op, "] backward returned a ", gradient.dtype(),
                     " gradient for input ", input, " of ", edge.dtype);
      if (!(gradient.shape() == edge.shape)) {
        LOCKSTEP_CHECK(broadcast_shapes(from.op, edge.shape, gradient.shape()) == gradient.shape(), "[",
                       from.op, "] backward returned a gradient of shape ", gradient.shape(), " for input ",
                       input, " of shape ", edge.shape);
        gradient = sum_to_shape(gradient, edge.shape);
      }
      add_into(gradient_slot(pending, edge.output), std::move(gradient));
    }
    if (--pending.dependencies == 0) enqueue(pending);
  }

  bool retain_graph_, accumulate_;
  std::byte buffer_[4096];
  std::pmr::monotonic_buffer_resource memory_{buffer_, sizeof buffer_};
  std::pmr::unordered_map<Node*, Pending> pending_{&memory_};
  std::vector<Pending*> ready_;  // a heap: leaves first, then the node made last
  std::vector<Capture> captures_;
  Tensors captured_;
};

Tensors run_backward(const char* function, std::span<const Tensor> roots, std::span<const Tensor> grads,
                     std::span<const Tensor> inputs, bool retain_graph, bool accumulate) {
  LOCKSTEP_CHECK(grads.empty() || grads.size() == roots.size(), "[", function, "] got ", grads.size(),
                 " gradients for ", roots.size(), " roots");
  NoGradGuard no_grad;
  MemoryScope scope("gradients");
  Tensors root_grads;
  for (size_t i = 0; i < roots.size(); i++) {
    const Tensor& root = roots[i];
    LOCKSTEP_CHECK(root.requires_grad(), "[", function, "] a tensor of shape ", root.shape(),
                   " has no gradient: no input of its computation requires one");
    Tensor gradient = grads.empty() ? Tensor() : grads[i];
    if (!gradient.defined()) {
      LOCKSTEP_CHECK(root.numel() == 1, "[", function, "] a tensor of shape ", root.shape(),
                     " needs an explicit gradient; only one with a single element has the default 1");
      gradient = ones(root.shape(), root.dtype(), root.device());
    }
    LOCKSTEP_CHECK(gradient.shape() == root.shape() && gradient.dtype() == root.dtype() &&
                       gradient.device() == root.device(),
                   "[", function, "] got a gradient ", gradient.shape(), " ", gradient.dtype(), " on ",
                   gradient.device(), ", expected ", root.shape(), " ", root.dtype(), " on ", root.device());
    root_grads.push_back(std::move(gradient));
  }
  for (const Tensor& input : inputs)
    LOCKSTEP_CHECK(input.requires_grad(), "[", function, "] an input of shape ", input.shape(),
                   " does not require a gradient");
  return BackwardRun(retain_graph, accumulate).run(roots, root_grads, inputs);
}

}  // namespace

Node::Node(const char* op, int outputs) : op(op), outputs(outputs), sequence(next_sequence()) {}

// What a node owns may own the next node, and so on for a million of them: the outermost destructor takes
// them apart in a loop, the inner ones only hand over what they hold.
Node::~Node() {
  struct Remains {
    std::vector<Edge> edges;
    std::function<Tensors(const Tensors&)> backward;
  };
  thread_local std::vector<Remains>* collecting = nullptr;
  if (edges.empty() && !backward) return;
  if (collecting) {
    collecting->push_back({std::move(edges), std::move(backward)});
    return;
  }
  std::vector<Remains> remains;
  collecting = &remains;
  remains.push_back({std::move(edges), std::move(backward)});
  while (!remains.empty()) {
    Remains last = std::move(remains.back());
    remains.pop_back();
  }
  collecting = nullptr;
}

Saved::Saved(const Tensor& tensor) {
  if (!tensor.defined()) return;
  tensor_ = tensor.detach();
  version_ = tensor.version();
}

const Tensor& Saved::get() const {
  LOCKSTEP_CHECK(!tensor_.defined() || tensor_.version() == version_, "[",
                 running.node ? running.node->op : "autograd",
                 "] a saved tensor was modified in place after the forward pass: shape ", tensor_.shape(),
                 ", version ", tensor_.version(), ", expected ", version_);
  return tensor_;
}

bool needs_grad(std::span<const Tensor> inputs) {
  if (!grad_enabled()) return false;
  for (const Tensor& input : inputs)
    if (input.defined() && input.requires_grad()) return true;
  return false;
}
bool needs_grad(std::initializer_list<Tensor> inputs) {
  return needs_grad(std::span(inputs.begin(), inputs.size()));
}

void check_forward_anomaly(const char* op, const Tensor& y) {
  LOCKSTEP_CHECK(!is_floating(y.dtype()) || !contains_nan(y), "[anomaly] ", op,
                 " made a NaN in its output of shape ", y.shape());
}

std::shared_ptr<Node> make_node(const char* op, std::span<const Tensor> inputs, std::span<Tensor> outputs) {
  auto node = std::make_shared<Node>(op, int(outputs.size()));
  node->edges.resize(inputs.size());
  for (size_t i = 0; i < inputs.size(); i++) {
    const Tensor& input = inputs[i];
    if (!input.defined() || !input.requires_grad()) continue;
    const TensorImpl& impl = *input.handle();
    LOCKSTEP_CHECK(!impl.is_view || input.is_leaf() || impl.view_version == input.version(), "[", op,
                   "] input ", i, " is a view made by ", impl.autograd->node->op,
                   " of a tensor that was modified in place since; make the view again");
    node->edges[i] = {impl.autograd->node, impl.autograd->output, impl.shape, impl.dtype};
  }
  for (size_t i = 0; i < outputs.size(); i++) {
    TensorImpl& impl = *outputs[i].handle();
    LOCKSTEP_ASSERT(!impl.autograd, op, ": an output has a history already");
    if (!is_floating(impl.dtype)) continue;
    impl.autograd = std::make_shared<AutogradMeta>();
    impl.autograd->requires_grad = true;
    impl.autograd->node = node;
    impl.autograd->output = int(i);
  }
  return node;
}

bool Tensor::requires_grad() const {
  const TensorImpl& self = impl();
  return self.autograd && self.autograd->requires_grad;
}

bool Tensor::is_leaf() const {
  const TensorImpl& self = impl();
  return !self.autograd || !self.autograd->node || self.autograd->node->sequence == kLeafSequence;
}

Tensor& Tensor::set_requires_grad(bool value) {
  TensorImpl& self = impl();
  if (value == requires_grad()) return *this;
  LOCKSTEP_CHECK(is_leaf(), "[set_requires_grad] the tensor is the result of ", self.autograd->node->op,
                 "; detach it first");
  LOCKSTEP_CHECK(is_floating(self.dtype), "[set_requires_grad] got ", self.dtype,
                 ", expected a floating-point dtype");
  if (!self.autograd) self.autograd = std::make_shared<AutogradMeta>();
  AutogradMeta& meta = *self.autograd;
  if (!meta.node) {
    meta.node = std::make_shared<Node>("leaf", 1);
    meta.node->sequence = kLeafSequence;
    meta.node->leaf = self.autograd;
    meta.tensor = impl_;
  }
  meta.requires_grad = value;
  return *this;
}

Tensor Tensor::grad() const {
  TensorImpl& self = impl();
  if (!self.autograd) return {};
  std::lock_guard lock(self.autograd->mutex);
  return self.autograd->grad;
}

void Tensor::set_grad(const Tensor& grad) const {
  if (!grad.defined()) {  // a frozen leaf may forget its gradient too
    if (AutogradMeta* meta = impl().autograd.get()) {
      std::lock_guard lock(meta->mutex);
      meta->grad = {};
    }
    return;
  }
  AutogradMeta& meta = leaf_meta("set_grad", *this);
  LOCKSTEP_CHECK(grad.shape() == shape() && grad.dtype() == dtype() && grad.device() == device(),
                 "[set_grad] got ", grad.shape(), " ", grad.dtype(), " on ", grad.device(), ", expected ",
                 shape(), " ", dtype(), " on ", device());
  std::lock_guard lock(meta.mutex);
  meta.grad = grad;
}

void Tensor::backward(const Tensor& grad, bool retain_graph) const {
  lockstep::backward({this, 1}, {&grad, 1}, retain_graph);
}

void backward(std::span<const Tensor> roots, std::span<const Tensor> grads, bool retain_graph) {
  run_backward("backward", roots, grads, {}, retain_graph, true);
}

Tensor accumulation_target(size_t input) {
  LOCKSTEP_ASSERT(running.run && input < running.node->edges.size(), "input ", input);
  return running.run->accumulation_target(running.node->edges[input]);
}

Tensors grad(std::span<const Tensor> roots, std::span<const Tensor> inputs, std::span<const Tensor> grads,
             bool retain_graph) {
  return run_backward("grad", roots, grads, inputs, retain_graph, false);
}

int64_t add_post_accumulate_hook(const Tensor& leaf, Hook hook) {
  static std::atomic<int64_t> next_id{0};
  AutogradMeta& meta = leaf_meta("add_post_accumulate_hook", leaf);
  std::lock_guard lock(meta.mutex);
  meta.hooks.emplace_back(next_id++, std::move(hook));
  return meta.hooks.back().first;
}

void remove_post_accumulate_hook(const Tensor& leaf, int64_t id) {
  AutogradMeta& meta = leaf_meta("remove_post_accumulate_hook", leaf);
  std::lock_guard lock(meta.mutex);
  std::erase_if(meta.hooks, [id](const auto& hook) { return hook.first == id; });
}

}  // namespace lockstep
