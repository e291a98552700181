// Addresses. Each simulated device owns one range of them, one more range is pinned host memory; all lie side
// by side, so that the shadow of an address is found by arithmetic. A device's range is inaccessible except
// while device work runs, so a host that follows a device pointer faults and is told so. Blocks are never
// reused before reset; behind each lies a red zone.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "simgpu/op.h"
#include "simgpu/world.h"

namespace simgpu {

constexpr size_t kArenaBytes = size_t{8} << 30;
constexpr int kPinned = kMaxDevices;  // number of the pinned range
constexpr size_t kSpanBytes = kArenaBytes * (kMaxDevices + 1);
constexpr size_t kAlign = 256;

extern uintptr_t arena_base;  // of all ranges

inline bool in_arena(const void* p) { return reinterpret_cast<uintptr_t>(p) - arena_base < kSpanBytes; }
// Which range: a device, kPinned, or -1 for ordinary host memory.
inline int arena_of(const void* p) {
  const uintptr_t offset = reinterpret_cast<uintptr_t>(p) - arena_base;
  return offset < kSpanBytes ? static_cast<int>(offset / kArenaBytes) : -1;
}

struct Allocation {
  uintptr_t base = 0;
  size_t bytes = 0;
  int arena = 0;
  int number = 0;  // in order of allocation
  bool freed = false;
  std::string freed_by;
};

void start_memory();
void reset_memory();

// Null if there is no room.
void* allocate(int arena, size_t bytes);
size_t live_in(int arena);
// What the caller got wrong, or empty. `by` names the call; null if the free is itself an ordered operation.
std::string release(void* p, int arena, const char* by);
const Allocation* find_allocation(const void* p);  // that contains p, or that ends or begins nearest to it
// "byte 400 of allocation 3 (400 bytes, device 0)"
std::string describe_address(const void* p);

void open_arenas();   // before device work
void close_arenas();  // before the host goes on

// Where the simulator itself reaches host memory: pinned pages may be closed to the host.
void* host_view(void* p);
const void* host_view(const void* p);
// Pinned bytes that `op` uses are closed to the host until it has synchronised with `op`.
void guard_pinned(const Op& op);
void refresh_pinned();  // after the host clock has advanced
void forget_pinned();   // at reset
void check_pinned_free(uintptr_t base, size_t bytes, const char* by);
bool pinned_is_guarded(const void* p, bool write, std::string* why);

}  // namespace simgpu
