#include "simgpu/capture.h"

#include <algorithm>
#include <set>

#include "simgpu/libraries.h"
#include "simgpu/report.h"
#include "simgpu/scheduler.h"
#include "simgpu/world.h"

namespace simgpu {
namespace {

struct GraphExec {
  Graph graph;
  std::vector<int> lane_of;    // by node: lanes are the streams that a replay runs on
  std::vector<Stream*> lanes;  // made at the first launch
  int device = 0;
};

std::set<Graph*> graphs;
std::set<GraphExec*> execs;
std::vector<std::unique_ptr<Capture>> captures;

std::shared_ptr<Op> in_capture(Capture* capture, std::shared_ptr<Op> op) {
  op->capture = capture;
  return op;
}

}  // namespace

void reset_graphs() {
  for (Graph* g : graphs) delete g;
  for (GraphExec* e : execs) delete e;
  graphs.clear();
  execs.clear();
  captures.clear();
}

std::shared_ptr<Op> capture_op(Stream* stream, std::shared_ptr<Op> op) {
  Capture* c = stream->capture;
  std::vector<int>& tail = c->tails[stream];
  op->stream = stream;
  if (op->work->kind != Work::marker) {
    c->graph.nodes.push_back({op->work, tail});
    tail = {static_cast<int>(c->graph.nodes.size()) - 1};
  }
  op->nodes = tail;
  return in_capture(c, std::move(op));
}

std::shared_ptr<Op> capture_wait(Stream* stream, std::shared_ptr<Op> op) {
  Capture* c = op->target->capture;
  op->stream = stream;
  if (c == nullptr || (stream->capture != nullptr && stream->capture != c)) {
    report("misuse",
           "a captured " + describe_stream(*stream) + " waits for an event recorded outside its capture");
    stream->capture->invalid = true;
    return in_capture(stream->capture, std::move(op));
  }
  stream->capture = c;  // forked into the capture
  std::vector<int>& tail = c->tails[stream];
  for (int node : op->target->nodes)
    if (std::find(tail.begin(), tail.end(), node) == tail.end()) tail.push_back(node);
  op->nodes = tail;
  return in_capture(c, std::move(op));
}

cudaError_t forbidden_in_capture(Stream* stream, const char* call) {
  for (const auto& c : captures) {
    if (stream != nullptr ? stream->capture != c.get() : c->mode == cudaStreamCaptureModeRelaxed) continue;
    c->invalid = true;
    report("misuse", std::string(call) + " while " + describe_stream(*c->origin) + " is being captured");
    return cudaErrorStreamCaptureUnsupported;
  }
  return cudaSuccess;
}

namespace {

cudaError_t end_capture(Stream* stream, Graph** result) {
  Capture* c = stream->capture;
  *result = nullptr;
  if (c == nullptr) return cudaErrorIllegalState;
  if (c->origin != stream) return cudaErrorStreamCaptureUnmatched;
  cudaError_t status = c->invalid ? cudaErrorStreamCaptureInvalidated : cudaSuccess;
  // Every forked stream must have come back: its last node is an ancestor of the origin's tail.
  std::set<int> reached(c->tails[stream].begin(), c->tails[stream].end());
  for (int n = static_cast<int>(c->graph.nodes.size()) - 1; n >= 0; --n)
    if (reached.contains(n))
      reached.insert(c->graph.nodes[static_cast<size_t>(n)].after.begin(),
                     c->graph.nodes[static_cast<size_t>(n)].after.end());
  for (const auto& [other, tail] : c->tails)
    for (int n : tail)
      if (!reached.contains(n)) {
        report("misuse",
               describe_stream(*other) + " was forked into a capture and not joined before its end");
        status = cudaErrorStreamCaptureUnjoined;
      }
  if (status == cudaSuccess) {
    *result = new Graph(std::move(c->graph));
    graphs.insert(*result);
  }
  for (const auto& s : world().streams)
    if (s->capture == c) s->capture = nullptr;
  std::erase_if(captures, [&](const auto& p) { return p.get() == c; });
  return status;
}

void assign_lanes(GraphExec& exec) {
  std::vector<int> last;  // by lane
  for (size_t n = 0; n < exec.graph.nodes.size(); ++n) {
    int lane = -1;
    for (int dep : exec.graph.nodes[n].after) {
      const int candidate = exec.lane_of[static_cast<size_t>(dep)];
      if (last[static_cast<size_t>(candidate)] == dep) lane = candidate;
    }
    if (lane < 0) {
      lane = static_cast<int>(last.size());
      last.push_back(0);
    }
    exec.lane_of.push_back(lane);
    last[static_cast<size_t>(lane)] = static_cast<int>(n);
  }
  exec.lanes.resize(last.size());
}

void launch_graph(GraphExec& exec, Stream* stream) {
  static const auto marker = std::make_shared<const Work>(Work{"graph launch", Work::marker, {}, {}, 0});
  for (Stream*& lane : exec.lanes)
    if (lane == nullptr) lane = make_stream(stream->device, cudaStreamNonBlocking, stream->priority);
  const std::shared_ptr<Op> start = enqueue(stream, marker);
  for (Stream* lane : exec.lanes) enqueue_wait(lane, start);
  std::vector<std::shared_ptr<Op>> ops;
  for (size_t n = 0; n < exec.graph.nodes.size(); ++n) {
    Stream* lane = exec.lanes[static_cast<size_t>(exec.lane_of[n])];
    for (int dep : exec.graph.nodes[n].after)
      if (ops[static_cast<size_t>(dep)]->stream != lane) enqueue_wait(lane, ops[static_cast<size_t>(dep)]);
    ops.push_back(enqueue(lane, exec.graph.nodes[n].work));
  }
  for (Stream* lane : exec.lanes) enqueue_wait(stream, lane->last);
}

}  // namespace
}  // namespace simgpu

using namespace simgpu;

extern "C" {

cudaError_t cudaStreamBeginCapture(cudaStream_t handle, cudaStreamCaptureMode mode) {
  SIMGPU_CALL(cudaStreamBeginCapture);
  Stream* stream = stream_of(handle, call.name());
  if (stream == nullptr || handle == nullptr) return finish(cudaErrorStreamCaptureUnsupported);
  if (stream->capture != nullptr) return finish(cudaErrorIllegalState);
  captures.push_back(std::make_unique<Capture>());
  captures.back()->origin = stream;
  captures.back()->mode = mode;
  captures.back()->tails[stream];
  stream->capture = captures.back().get();
  return cudaSuccess;
}

cudaError_t cudaStreamEndCapture(cudaStream_t handle, cudaGraph_t* graph) {
  SIMGPU_CALL(cudaStreamEndCapture);
  Stream* stream = stream_of(handle, call.name());
  if (stream == nullptr) return finish(cudaErrorInvalidResourceHandle);
  return finish(end_capture(stream, reinterpret_cast<Graph**>(graph)));
}

cudaError_t cudaStreamIsCapturing(cudaStream_t handle, cudaStreamCaptureStatus* status) {
  SIMGPU_CALL(cudaStreamIsCapturing);
  Stream* stream = stream_of(handle, call.name());
  if (stream == nullptr) return finish(cudaErrorInvalidResourceHandle);
  *status = stream->capture == nullptr ? cudaStreamCaptureStatusNone
            : stream->capture->invalid ? cudaStreamCaptureStatusInvalidated
                                       : cudaStreamCaptureStatusActive;
  return cudaSuccess;
}

cudaError_t cudaGraphInstantiate(cudaGraphExec_t* exec, cudaGraph_t graph, unsigned long long) {
  SIMGPU_CALL(cudaGraphInstantiate);
  auto* g = reinterpret_cast<Graph*>(graph);
  if (!graphs.contains(g)) return finish(cudaErrorInvalidValue);
  auto* e = new GraphExec{*g, {}, {}, host.device};
  assign_lanes(*e);
  execs.insert(e);
  *exec = reinterpret_cast<cudaGraphExec_t>(e);
  return cudaSuccess;
}

cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t handle) {
  SIMGPU_CALL(cudaGraphLaunch);
  auto* e = reinterpret_cast<GraphExec*>(exec);
  Stream* stream = stream_of(handle, call.name());
  if (!execs.contains(e) || stream == nullptr) return finish(cudaErrorInvalidValue);
  launch_graph(*e, stream);
  return cudaSuccess;
}

cudaError_t cudaGraphGetNodes(cudaGraph_t graph, cudaGraphNode_t* nodes, size_t* count) {
  SIMGPU_CALL(cudaGraphGetNodes);
  auto* g = reinterpret_cast<Graph*>(graph);
  if (!graphs.contains(g) || nodes != nullptr) return finish(cudaErrorInvalidValue);  // the count only
  *count = g->nodes.size();
  return cudaSuccess;
}

cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  SIMGPU_CALL(cudaGraphDestroy);
  auto* g = reinterpret_cast<Graph*>(graph);
  if (graphs.erase(g) == 0) return finish(cudaErrorInvalidValue);
  delete g;
  return cudaSuccess;
}

cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec) {
  SIMGPU_CALL(cudaGraphExecDestroy);
  auto* e = reinterpret_cast<GraphExec*>(exec);
  if (execs.erase(e) == 0) return finish(cudaErrorInvalidValue);
  delete e;
  return cudaSuccess;
}
}
