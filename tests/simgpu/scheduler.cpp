#include "simgpu/scheduler.h"

#include <algorithm>
#include <chrono>

#include "simgpu/capture.h"
#include "simgpu/memory.h"
#include "simgpu/race.h"
#include "simgpu/report.h"
#include "simgpu/shadow.h"

namespace simgpu {
namespace {

bool at_head(const Op& op) { return !op.stream->queue.empty() && op.stream->queue.front().get() == &op; }

bool runnable(const Stream& s) {
  if (s.queue.empty()) return false;
  const Op& op = *s.queue.front();
  if (op.state != Op::queued) return false;
  if (op.target) return op.target->state == Op::done;
  if (op.meeting && !op.meeting->done)
    for (const auto& peer : op.meeting->ops)
      if (!peer || (peer->state == Op::queued && !at_head(*peer))) return false;
  return true;
}

// A stream whose head can run and brings `op` nearer, or null. `depth` bounds circular waits.
Stream* next_toward(const Op& op, int depth) {
  if (op.state != Op::queued || depth > 1000) return nullptr;
  Stream* s = op.stream;
  if (runnable(*s)) return s;
  const Op& head = *s->queue.front();
  if (head.target) return next_toward(*head.target, depth + 1);
  if (head.meeting)
    for (const auto& peer : head.meeting->ops)
      if (peer && !at_head(*peer))
        if (Stream* found = next_toward(*peer, depth + 1)) return found;
  return nullptr;
}

Stream* luckiest() {
  Stream* best = nullptr;
  for (const auto& s : world().streams)
    if (runnable(*s) && (best == nullptr || s->luck > best->luck)) best = s.get();
  return best;
}

void run_head(Stream* s) {
  World& w = world();
  const std::shared_ptr<Op> op = s->queue.front();
  op->state = Op::active;
  op->start_us = std::max(s->now_us, op->host_us);
  if (op->target) op->start_us = std::max(op->start_us, op->target->end_us);
  op->end_us = op->start_us;
  if (op->work && w.lost == cudaSuccess) {
    if (op->work->kind == Work::callback) {
      // Host code: it must find the lock free and the arenas closed.
      close_arenas();
      std::unique_lock<std::mutex>* lock = host.lock;
      host.in_callback = true;
      host.lock = nullptr;
      lock->unlock();
      op->work->run(*op);
      lock->lock();
      host.lock = lock;
      host.in_callback = false;
    } else if (op->work->kind == Work::device) {
      open_arenas();
      Running actor;
      actor.who.op = op->id;
      actor.device = s->device;
      actor.whole_op = true;
      running = &actor;
      begin_checking(*op);
      if (w.config.check) check_ranges(*op);
      if (op->work->run) op->work->run(*op);
      running = nullptr;
    }
    op->end_us = op->start_us + op->work->cost_us;
  }
  if (op->meeting && !op->meeting->done) {
    Meeting& m = *op->meeting;
    for (const auto& peer : m.ops)
      m.end_us = std::max({m.end_us, peer->host_us, peer->stream->now_us, op->end_us});
    if (m.run && w.lost == cudaSuccess) {
      open_arenas();
      m.run(m);
    }
    m.done = true;
  }
  if (op->meeting) op->end_us = std::max(op->end_us, op->meeting->end_us);
  if (op->work && op->work->kind == Work::device)
    w.spans.push_back({op->work->name, s->device, static_cast<int>(s->index), op->start_us, op->end_us});
  s->now_us = op->end_us;
  op->state = Op::done;
  op->target.reset();  // else a chain of waits would keep every operation alive
  op->meeting.reset();
  s->queue.pop_front();
  w.changed.notify_all();
}

std::string describe_blockage() {
  std::string text;
  for (const auto& s : world().streams) {
    if (s->queue.empty()) continue;
    const Op& head = *s->queue.front();
    text += "; " + describe_stream(*s) + " waits ";
    if (head.target) {
      text += "for " + describe_stream(*head.target->stream);
    } else if (head.meeting) {
      text += "in " + head.meeting->name + " for rank";
      for (size_t r = 0; r < head.meeting->ops.size(); ++r)
        if (!head.meeting->ops[r]) text += " " + std::to_string(r) + " (which has not called it)";
        else if (!at_head(*head.meeting->ops[r])) text += " " + std::to_string(r);
    } else {
      text += "for a host callback";
    }
  }
  return text;
}

}  // namespace

Stream* make_stream(int device, unsigned flags, int priority) {
  World& w = world();
  auto s = std::make_unique<Stream>();
  s->index = static_cast<uint32_t>(w.streams.size());
  s->device = device, s->flags = flags, s->priority = priority;
  s->luck = static_cast<uint32_t>(w.rng.next() >> 32);
  w.streams.push_back(std::move(s));
  return w.streams.back().get();
}

Stream* stream_of(cudaStream_t handle, const char* call) {
  World& w = world();
  if (handle == nullptr || handle == cudaStreamLegacy || handle == cudaStreamPerThread) {
    if (w.config.strict) report("misuse", std::string(call) + " uses the NULL stream");
    return w.null_streams[static_cast<size_t>(host.device)];
  }
  auto* s = reinterpret_cast<Stream*>(handle);
  const bool known =
      std::any_of(w.streams.begin(), w.streams.end(), [&](const auto& p) { return p.get() == s; });
  if (known && !s->destroyed) return s;
  report("misuse", std::string(call) + (known ? " is given a destroyed stream, " + describe_stream(*s)
                                              : " is given a handle that is no stream"));
  return nullptr;
}

namespace {

std::shared_ptr<Op> issue(Stream* stream, std::shared_ptr<Op> op) {
  World& w = world();
  op->stream = stream;
  op->id = static_cast<uint32_t>(w.past.size());
  op->number = ++stream->issued;
  op->clock = stream->clock;
  op->clock.join(w.host_clock);
  if (op->target) op->clock.join(op->target->clock);
  op->clock.set(stream->index, op->number);
  op->host_us = w.host_us;
  stream->clock = op->clock;
  stream->last = op;
  stream->queue.push_back(op);
  static const auto nothing = std::make_shared<const Work>();
  w.past.push_back({stream->index, op->number, stream->device, op->work ? op->work : nothing});
  if (op->work) guard_pinned(*op);
  w.changed.notify_all();
  return op;
}

}  // namespace

std::shared_ptr<Op> enqueue(Stream* stream, std::shared_ptr<const Work> work) {
  auto op = std::make_shared<Op>();
  op->work = std::move(work);
  if (stream->capture != nullptr) return capture_op(stream, std::move(op));
  return issue(stream, std::move(op));
}

std::shared_ptr<Op> enqueue(Stream* stream, std::string name, std::vector<Range> ranges,
                            std::function<void(Op&)> run, double cost_us) {
  auto work = std::make_shared<Work>();
  work->name = std::move(name);
  work->ranges = std::move(ranges);
  work->run = std::move(run);
  work->cost_us = cost_us;
  return enqueue(stream, std::move(work));
}

std::shared_ptr<Op> enqueue_wait(Stream* stream, const std::shared_ptr<Op>& target) {
  auto op = std::make_shared<Op>();
  op->target = target;
  if (stream->capture != nullptr || target->capture != nullptr) return capture_wait(stream, std::move(op));
  return issue(stream, std::move(op));
}

std::shared_ptr<Op> enqueue_meeting(Stream* stream, const std::shared_ptr<Meeting>& meeting, int rank,
                                    std::vector<Range> ranges) {
  auto work = std::make_shared<Work>();
  work->name = meeting->name;
  work->ranges = std::move(ranges);
  work->cost_us = 10;
  auto op = std::make_shared<Op>();
  op->work = std::move(work);
  op->meeting = meeting;
  meeting->ops[static_cast<size_t>(rank)] = op;
  return issue(stream, std::move(op));
}

std::shared_ptr<Op> record_event(Event* event, Stream* stream) {
  static const auto marker = std::make_shared<const Work>(Work{"event record", Work::marker, {}, {}, 0});
  event->record = enqueue(stream, marker);
  return event->record;
}

bool wait_for_host(const std::function<bool()>& ready) {
  World& w = world();
  close_arenas();
  std::unique_lock<std::mutex>& lock = *host.lock;
  host.lock = nullptr;
  ++w.waiting_threads;
  const auto limit = std::chrono::steady_clock::now() + std::chrono::milliseconds(w.config.patience_ms);
  bool ok = true;
  // If every host thread that ever called waits, nobody is left to add work; a thread that has yet to make
  // its first call gets a moment.
  const auto alone_limit =
      std::chrono::steady_clock::now() + std::chrono::milliseconds(w.config.patience_ms / 10);
  while (!ready()) {
    const auto now = std::chrono::steady_clock::now();
    if (now >= limit || (now >= alone_limit && w.waiting_threads >= w.host_threads)) {
      ok = false;
      break;
    }
    w.changed.wait_for(lock, std::chrono::milliseconds(10));
  }
  --w.waiting_threads;
  host.lock = &lock;
  return ok;
}

cudaError_t wait_for(const std::shared_ptr<Op>& op) {
  World& w = world();
  if (!op) return cudaSuccess;
  if (op->capture != nullptr) return cudaErrorCapturedEvent;
  while (op->state != Op::done) {
    Stream* s = w.config.policy == Policy::lazy ? next_toward(*op, 0) : luckiest();
    if (s != nullptr) {
      run_head(s);
      if (w.config.policy == Policy::random && w.rng.chance(4)) s->luck = static_cast<uint32_t>(w.rng.next());
      continue;
    }
    if (wait_for_host([&] { return op->state == Op::done || next_toward(*op, 0) != nullptr; })) continue;
    report("deadlock", "the host waits for " + describe_stream(*op->stream) + " and nothing can run" +
                           describe_blockage());
    w.lost = cudaErrorLaunchTimeout;
    return w.lost;
  }
  host_learns(*op);
  w.host_us = std::max(w.host_us, op->end_us);
  return w.lost;
}

bool run_toward(const std::shared_ptr<Op>& op) {
  while (Stream* s = next_toward(*op, 0)) run_head(s);
  return op->state == Op::done;
}

void host_learns(const Op& op) {
  world().host_clock.join(op.clock);
  refresh_pinned();
}

void make_progress() {
  World& w = world();
  if (w.config.policy == Policy::lazy) return;
  if (w.config.policy == Policy::random && !w.rng.chance(3)) return;
  int budget = w.config.policy == Policy::eager ? 1 << 30 : static_cast<int>(1 + w.rng.below(3));
  while (budget-- > 0) {
    Stream* s = luckiest();
    if (s == nullptr) return;
    run_head(s);
    if (w.config.policy == Policy::random && w.rng.chance(4)) s->luck = static_cast<uint32_t>(w.rng.next());
  }
}

}  // namespace simgpu
