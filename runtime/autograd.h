// Reverse-mode automatic differentiation (Griewank & Walther 2008).
//
// An op computes its result y and calls record(): that makes a node with one edge per input. backward() walks
// the nodes from the last made to the first, without recursion; a node runs when all its gradients have come
// in. Leaves run as soon as they are complete, so that hooks (data-parallel all-reduces) start while the rest
// of backward runs on.
//
// The lambda given to record returns one gradient per input, undefined where none is needed; the engine adds
// contributions up, sums broadcast axes away, and releases the lambda's captures once it has run.
// Captures are what stays alive: hold tensors in Saved, which checks that they were not changed in place
// meanwhile.
//
//   Tensor exp(const Tensor& x) {
//     Tensor y = ...;
//     return record("exp", y, {x}, [y = Saved(y)](const Tensor& dy) -> Tensors { return {mul(dy, y)}; });
//   }
//
// Threads: graphs may be built and run backward in any thread, several at a time; leaves may be shared
// between them.
#pragma once

#include <cmath>
#include <functional>
#include <initializer_list>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "lockstep/runtime/tensor.h"
#include "lockstep/runtime/thread_state.h"

namespace lockstep {

struct Node;

// Where an input's gradient goes, and what it must look like. An empty node: the input needs none.
struct Edge {
  std::shared_ptr<Node> node;
  int output = 0;  // which output of `node` the input was
  Shape shape;
  DType dtype = DType::float32;
};

struct Node {
  Node(const char* op, int outputs);
  ~Node();  // iterative: a chain of a million nodes does not recurse

  const char* op;
  int outputs;
  uint64_t sequence;  // later made, larger; a leaf has the largest of all
  bool released = false;
  std::vector<Edge> edges;
  std::function<Tensors(const Tensors& dy)> backward;  // empty for a leaf and after release
  std::weak_ptr<AutogradMeta> leaf;
};

using Hook = std::function<void(const Tensor& leaf)>;

struct AutogradMeta {
  bool requires_grad = false;
  std::shared_ptr<Node> node;
  int output = 0;
  Tensor grad;  // leaves only, guarded by mutex
  std::vector<std::pair<int64_t, Hook>> hooks;
  std::weak_ptr<TensorImpl> tensor;  // the leaf itself, for hooks
  std::mutex mutex;
};

inline bool grad_enabled() { return thread_state().grad_enabled; }

class GradModeGuard {
 public:
  explicit GradModeGuard(bool enabled) : previous_(grad_enabled()) { thread_state().grad_enabled = enabled; }
  ~GradModeGuard() { thread_state().grad_enabled = previous_; }
  GradModeGuard(const GradModeGuard&) = delete;
  GradModeGuard& operator=(const GradModeGuard&) = delete;

 private:
  bool previous_;
};
// Nothing is recorded in this thread for the guard's life.
class NoGradGuard : public GradModeGuard {
 public:
  NoGradGuard() : GradModeGuard(false) {}
};

// Anomaly mode: the first op, forward or backward, that makes a NaN is an Error that names it. Slow: every
// result is read.
class AnomalyGuard {
 public:
  AnomalyGuard() : previous_(thread_state().anomaly) { thread_state().anomaly = true; }
  ~AnomalyGuard() { thread_state().anomaly = previous_; }
  AnomalyGuard(const AnomalyGuard&) = delete;
  AnomalyGuard& operator=(const AnomalyGuard&) = delete;

 private:
  bool previous_;
};

// A tensor kept for backward: same storage, no history (so a node that saves its own output is no cycle).
// Reading it throws if the storage was changed in place since.
class Saved {
 public:
  Saved() = default;
  explicit Saved(const Tensor& tensor);
  const Tensor& get() const;
  operator const Tensor&() const { return get(); }
  bool defined() const { return tensor_.defined(); }

 private:
  Tensor tensor_;
  uint64_t version_ = 0;
};

// Would an op with these inputs be recorded? Ops ask it before work that only backward needs.
bool needs_grad(std::initializer_list<Tensor> inputs);
bool needs_grad(std::span<const Tensor> inputs);

// The untyped part of record: makes the node and marks the outputs. Checks for NaN in anomaly mode.
void check_forward_anomaly(const char* op, const Tensor& y);
std::shared_ptr<Node> make_node(const char* op, std::span<const Tensor> inputs, std::span<Tensor> outputs);

template <class F>
Tensor record(const char* op, Tensor y, std::span<const Tensor> inputs, F&& backward) {
  if (thread_state().anomaly) [[unlikely]]
    check_forward_anomaly(op, y);
  if (needs_grad(inputs))
    make_node(op, inputs, {&y, 1})->backward = [f = std::forward<F>(backward)](const Tensors& dy) {
      return f(dy[0]);
    };
  return y;
}
template <class F>
Tensor record(const char* op, Tensor y, std::initializer_list<Tensor> inputs, F&& backward) {
  return record(op, std::move(y), std::span<const Tensor>(inputs.begin(), inputs.size()),
                std::forward<F>(backward));
}
// Several outputs: the lambda gets one gradient per output, undefined for those that did not take part.
template <class F>
Tensors record_many(const char* op, Tensors ys, std::span<const Tensor> inputs, F&& backward) {
  if (thread_state().anomaly) [[unlikely]]
    for (const Tensor& y : ys) check_forward_anomaly(op, y);
  if (needs_grad(inputs)) make_node(op, inputs, ys)->backward = std::forward<F>(backward);
  return ys;
}

// Runs backward from `roots`, with `grads` their gradients (empty, or undefined entries: 1 for roots of one
// element). Leaves get .grad, added to what is there. Unless retain_graph, everything saved is released on
// the way and a second backward through it is an Error.
void backward(std::span<const Tensor> roots, std::span<const Tensor> grads = {}, bool retain_graph = false);

// For the lambda of a node, while it runs: the gradient that leaf number `input` has already, to be added to
// in place (beta = 1 of a matrix product), so that accumulating over micro-batches costs no extra pass. The
// lambda adds to it and returns this same tensor. Undefined where that is not possible; then the lambda
// returns a tensor of its own as usual.
Tensor accumulation_target(size_t input);

// Gradients of `roots` with respect to `inputs` (leaves or not), returned instead of accumulated; no .grad
// changes and no hook fires. Undefined where an input does not take part.
Tensors grad(std::span<const Tensor> roots, std::span<const Tensor> inputs,
             std::span<const Tensor> grads = {}, bool retain_graph = false);

// Calls hook(leaf) each time the gradient of `leaf` is complete in a backward, after it has been accumulated.
int64_t add_post_accumulate_hook(const Tensor& leaf, Hook hook);
void remove_post_accumulate_hook(const Tensor& leaf, int64_t id);

}  // namespace lockstep
