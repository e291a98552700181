// The one block of threads that is being executed: its threads, their fibers, its barrier and its warps'
// collectives. Private to the executor.
#pragma once

#include <memory>
#include <vector>

#include "simgpu/executor.h"
#include "simgpu/fiber.h"

namespace simgpu {

struct DeviceThread {
  enum State : uint8_t { fresh, active, at_barrier, in_warp, ready, exited };
  State state = fresh;
  uint16_t warp_epoch = 0;
  int fiber = -1;
  const void* site = nullptr;  // where it waits
  int predicate = 0;     // given to the barrier; afterwards how many of the waiting threads gave a true one
  int participants = 0;  // that waited
};

// Lanes of one warp that wait for each other in the same collective.
struct Rendezvous {
  enum Kind : uint8_t { shuffle, ballot, sync };
  unsigned mask = 0;  // 0: not in use
  Kind kind = shuffle;
  unsigned arrived = 0;
  int unread = 0;              // lanes that have yet to fetch their result
  uint64_t* values = nullptr;  // by lane
};

struct Block {
  Stacks stacks{kMaxThreads};
  Context main;
  Context fibers[kMaxThreads];
  std::vector<int> idle, built;  // fibers without a thread; fibers made in this launch
  int unbuilt = 0;               // the first fiber not made yet

  void (*fiber_main)() = nullptr;
  const Kernel* kernel = nullptr;
  void* const* args = nullptr;
  Running* actor = nullptr;
  Rng* rng = nullptr;

  int count = 0, next = 0, exited = 0;
  std::vector<int> order;  // of starting threads
  DeviceThread threads[kMaxThreads];
  static constexpr int kOpen = 8;  // collectives of one warp at a time
  Rendezvous rendezvous[kMaxThreads / 32][kOpen];
  uint64_t lane_values[kMaxThreads / 32][kOpen][32];
  std::vector<int> ready;             // threads that may go on
  int fiber = -1, thread = -1;        // running now
  cudaError_t aborted = cudaSuccess;  // why the kernel was given up

  void begin_launch(const Kernel* kernel, void* const* args, Running& actor, Rng& rng);
  void end_launch();
  bool run(void (*fiber_main)());  // one block; false if it was given up

  void begin_thread(int index);
  void end_thread();
  void park(DeviceThread::State state, const void* site);
  Rendezvous* meet(unsigned mask, Rendezvous::Kind kind, uint64_t value, const void* site);

 private:
  Context& next_context();  // of a thread to start or to continue; else the main one, which knows what to do
  void become(int thread_index);
  bool release_barrier();
  void report_deadlock();
};

extern Block block;

// From the fault handler: leaves the running kernel for good.
[[noreturn]] void abort_kernel(cudaError_t status);

enum class Combine { none, count, all, any };
int barrier(Combine combine, int predicate, const void* site);

}  // namespace simgpu
