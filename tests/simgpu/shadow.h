// The checker. It keeps, for every 8 bytes of device and pinned memory, which bytes are allocated, which are
// written, and the latest accesses, and compares each new access with them:
//   between operations: two accesses, one a write, whose operations are not ordered by their clocks;
//   within a kernel: two threads, one writes, not both atomically, with no barrier between.
// Exact to the byte, and independent of the order in which things happen to run.
//
// Kernels compiled with -fsanitize=thread report their accesses through the __tsan_ functions of hooks.cpp.
// Library calls, copies and memsets declare theirs (Range).
#pragma once

#include <cstddef>
#include <cstdint>

#include "simgpu/op.h"
#include "simgpu/running.h"

namespace simgpu {

enum AccessFlags : uint8_t { kRead = 0, kWrite = 1, kAtomic = 2, kManyThreads = 4 };

struct Slot {  // one past access to some of a cell's 8 bytes; 16 bytes
  uint32_t op;
  uint32_t block;
  uint16_t thread;
  uint16_t epoch;
  uint16_t warp_epoch;
  uint8_t mask;  // of the bytes; 0: slot not in use
  uint8_t flags;
};

struct Cell {
  Slot slots[4];
};

void start_shadow();
void reset_shadow(size_t arena_offset, size_t bytes);  // forgets a range
void shadow_allocate(uintptr_t base, size_t bytes, bool initialised);
void shadow_free(uintptr_t base, size_t bytes);

// One access by the running operation to memory of a device or to pinned memory.
void check_access(uintptr_t address, size_t bytes, uint8_t flags);
// One access by a kernel thread to shared memory.
void check_shared(uintptr_t address, size_t bytes, uint8_t flags);
void check_ranges(const Op& op);  // all that a library call declared
// Everything done to these bytes must be known to the host by now; else `by` freed them too early.
void check_free(uintptr_t base, size_t bytes, const char* by);

}  // namespace simgpu
