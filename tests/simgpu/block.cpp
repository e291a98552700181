#include "simgpu/block.h"

#include <algorithm>
#include <numeric>

#include "simgpu/device.h"
#include "simgpu/report.h"

namespace simgpu {

void Block::begin_launch(const Kernel* k, void* const* a, Running& r, Rng& generator) {
  kernel = k, args = a, actor = &r, rng = &generator;
  count = static_cast<int>(blockDim.x * blockDim.y * blockDim.z);
  // Fibers are made anew for each launch: an idle one may hold, in a register, the thread-local base of the
  // thread that launched before.
  idle.clear();
  unbuilt = 0;
  aborted = cudaSuccess;
  order.resize(static_cast<size_t>(count));
}

void Block::end_launch() { kernel = nullptr; }

bool Block::run(void (*entry)()) {
  fiber_main = entry;
  std::iota(order.begin(), order.end(), 0);
  const uint32_t mode = rng->below(3);
  if (mode == 1) std::reverse(order.begin(), order.end());
  if (mode == 2) shuffle_order(order, *rng);
  next = 0, exited = 0;
  std::fill_n(threads, count, DeviceThread{});
  for (int warp = 0; warp * 32 < count; ++warp)
    for (int r = 0; r < kOpen; ++r) {
      rendezvous[warp][r].mask = 0;
      rendezvous[warp][r].values = lane_values[warp][r];
    }
  ready.clear();
  actor->who.epoch = 0;

  while (exited < count) {
    if (next < count || !ready.empty()) {
      switch_context(main, next_context());
      if (thread < 0) idle.push_back(fiber);
    } else if (!release_barrier()) {
      report_deadlock();
      aborted = cudaErrorLaunchTimeout;
    }
    if (aborted != cudaSuccess) return false;
  }
  return true;
}

Context& Block::next_context() {
  if (next < count) {
    if (idle.empty()) {
      make_context(fibers[unbuilt], stacks.stack(unbuilt), Stacks::kBytes, fiber_main);
      idle.push_back(unbuilt++);
    }
    fiber = idle.back();
    idle.pop_back();
  } else if (!ready.empty()) {
    const int t = ready.back();
    ready.pop_back();
    threads[t].state = DeviceThread::active;
    fiber = threads[t].fiber;
  } else {
    return main;
  }
  return fibers[fiber];
}

void Block::become(int index) {
  thread = index;
  const auto i = static_cast<unsigned>(index);
  threadIdx = {i % blockDim.x, i / blockDim.x % blockDim.y, i / blockDim.x / blockDim.y};
  actor->who.thread = static_cast<uint16_t>(index);
  actor->who.warp_epoch = threads[index].warp_epoch;
}

void Block::begin_thread(int index) {
  threads[index].state = DeviceThread::active;
  threads[index].fiber = fiber;
  become(index);
}

void Block::end_thread() {
  threads[thread].state = DeviceThread::exited;
  ++exited;
  thread = -1;
}

void Block::park(DeviceThread::State state, const void* site) {
  const int self = thread;
  threads[self].state = state;
  threads[self].site = site;
  Context& mine = fibers[threads[self].fiber];
  switch_context(mine, next_context());
  become(self);
}

bool Block::release_barrier() {
  int waiting = 0, result_count = 0;
  const void* site = nullptr;
  bool divergent = false;
  for (int t = 0; t < count; ++t) {
    if (threads[t].state != DeviceThread::at_barrier) continue;
    ++waiting;
    result_count += threads[t].predicate != 0;
    if (site != nullptr && site != threads[t].site) divergent = true;
    site = threads[t].site;
  }
  if (waiting == 0 || waiting + exited != count) return false;
  if (divergent)
    report("barrier", kernel->name + ": threads of one block wait at different __syncthreads calls", *actor);
  if (exited > 0)
    report("barrier",
           kernel->name + ": __syncthreads passes only because " + std::to_string(exited) + " of " +
               std::to_string(count) + " threads had already returned",
           *actor);
  ++actor->who.epoch;
  for (int t = 0; t < count; ++t) {
    if (threads[t].state != DeviceThread::at_barrier) continue;
    threads[t].state = DeviceThread::ready;
    threads[t].predicate = result_count;
    threads[t].participants = waiting;
    ready.push_back(t);
  }
  const uint32_t mode = rng->below(3);
  if (mode == 1) std::reverse(ready.begin(), ready.end());
  if (mode == 2) shuffle_order(ready, *rng);
  return true;
}

void Block::report_deadlock() {
  int at_barrier = 0, in_warp = 0;
  for (int t = 0; t < count; ++t) {
    at_barrier += threads[t].state == DeviceThread::at_barrier;
    in_warp += threads[t].state == DeviceThread::in_warp;
  }
  report("deadlock",
         kernel->name + ": the block cannot go on: " + std::to_string(at_barrier) +
             " threads wait at __syncthreads, " + std::to_string(in_warp) +
             " in a warp collective whose other lanes never come, " + std::to_string(exited) +
             " have returned",
         *actor);
}

void abort_kernel(cudaError_t status) {
  block.aborted = status;
  switch_context(block.fibers[block.fiber], block.main);
  __builtin_unreachable();
}

Rendezvous* Block::meet(unsigned mask, Rendezvous::Kind kind, uint64_t value, const void* site) {
  const int lane = thread % 32, warp = thread / 32;
  const auto fault = [&](const std::string& what) {
    report("barrier", kernel->name + ": warp collective " + what, *actor);
    return nullptr;
  };
  if ((mask >> lane & 1u) == 0) return fault("called by a lane that its mask does not name");
  const int lanes = std::min(32, count - warp * 32);
  if (lanes < 32 && (mask >> lanes) != 0) return fault("whose mask names lanes that the block does not have");
  Rendezvous *r = nullptr, *unused = nullptr;
  for (Rendezvous& candidate : rendezvous[warp]) {
    if (candidate.mask == mask && candidate.kind == kind && candidate.arrived != mask &&
        (candidate.arrived >> lane & 1u) == 0) {
      r = &candidate;
      break;
    }
    if (candidate.mask == 0 && unused == nullptr) unused = &candidate;
  }
  if (r == nullptr) {
    r = unused;
    if (r == nullptr) return fault("too divergent: more than 8 open in one warp");
    r->mask = mask, r->kind = kind, r->arrived = 0, r->unread = 0;
  }
  r->values[lane] = value;
  r->arrived |= 1u << lane;
  ++r->unread;
  if (r->arrived != mask) {
    park(DeviceThread::in_warp, site);
  } else {
    for (int l = 0; l < 32; ++l)
      if (l != lane && (mask >> l & 1u) != 0) {
        threads[warp * 32 + l].state = DeviceThread::ready;
        ready.push_back(warp * 32 + l);
      }
  }
  if (--r->unread == 0) r->mask = 0;  // the last reader; its values stay valid until the next meeting
  return r;
}

int barrier(Combine combine, int predicate, const void* site) {
  DeviceThread& self = block.threads[block.thread];
  self.predicate = predicate;
  block.park(DeviceThread::at_barrier, site);
  switch (combine) {
    case Combine::all: return self.predicate == self.participants;
    case Combine::any: return self.predicate > 0;
    default: return self.predicate;
  }
}

uint64_t shuffle(unsigned mask, uint64_t value, int source) {
  const int lane = block.thread % 32;
  Rendezvous* r = block.meet(mask, Rendezvous::shuffle, value, __builtin_return_address(0));
  if (r == nullptr || source == lane) return value;
  if ((mask >> source & 1u) == 0) {
    report("barrier", block.kernel->name + ": shuffle reads a lane that its mask does not name",
           *block.actor);
    return ~uint64_t{0};
  }
  return r->values[source];
}

unsigned ballot(unsigned mask, bool predicate) {
  Rendezvous* r = block.meet(mask, Rendezvous::ballot, predicate, __builtin_return_address(0));
  unsigned result = 0;
  for (int l = 0; r != nullptr && l < 32; ++l)
    if ((mask >> l & 1u) != 0 && r->values[l] != 0) result |= 1u << l;
  return result;
}

void sync_warp(unsigned mask) {
  block.meet(mask, Rendezvous::sync, 0, __builtin_return_address(0));
  block.actor->who.warp_epoch = ++block.threads[block.thread].warp_epoch;
}

unsigned lane_id() { return static_cast<unsigned>(block.thread) % 32; }

unsigned live_lanes() {
  unsigned mask = 0;
  const int first = block.thread / 32 * 32;
  for (int l = 0; l < 32 && first + l < block.count; ++l)
    if (block.threads[first + l].state != DeviceThread::exited) mask |= 1u << l;
  return mask;
}

}  // namespace simgpu

// Out of line and without tail calls: the address that each returns to tells barriers apart.
void __syncthreads() { simgpu::barrier(simgpu::Combine::none, 0, __builtin_return_address(0)); }
int __syncthreads_count(int predicate) {
  return simgpu::barrier(simgpu::Combine::count, predicate, __builtin_return_address(0));
}
int __syncthreads_and(int predicate) {
  return simgpu::barrier(simgpu::Combine::all, predicate, __builtin_return_address(0));
}
int __syncthreads_or(int predicate) {
  return simgpu::barrier(simgpu::Combine::any, predicate, __builtin_return_address(0));
}
