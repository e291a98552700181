// Caching allocator: memory given back by a tensor is kept and reused, because page faults (CPU) and
// cudaMalloc (GPU) are what makes a training step slow. In a steady step no memory is asked from the system.
//
// Blocks are 64-byte aligned. Requests up to 1 MiB are cut from 2 MiB segments, larger ones from segments of
// their own; best fit, neighbours merge again. A large free block is not cut for a small request. When memory
// runs out (the system's or the ceiling) all wholly free segments are returned and the request is tried again
// before OutOfMemory is thrown.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "lockstep/runtime/check.h"
#include "lockstep/runtime/device.h"

namespace lockstep {

struct MemoryStats {
  size_t current_bytes = 0;   // held by live tensors (rounded up to blocks)
  size_t peak_bytes = 0;      // largest current_bytes since the start or reset_peak_memory
  size_t reserved_bytes = 0;  // held from the system: live and cached
  size_t peak_reserved_bytes = 0;
  size_t ceiling_bytes = SIZE_MAX;
  size_t largest_free_bytes = 0;   // largest cached block
  int64_t allocations = 0;         // blocks handed out so far
  int64_t system_allocations = 0;  // segments asked from the system so far
  struct Tag {
    std::string name;  // see MemoryScope
    size_t bytes = 0;
  };
  std::vector<Tag> tags;  // who holds current_bytes, largest first
};

// Memory of `device` could not be had. what() is the report: asked, held, by whom, peak, and what would help.
class OutOfMemory : public Error {
 public:
  OutOfMemory(Device device, size_t requested_bytes, const MemoryStats& stats);
  size_t requested_bytes() const { return requested_bytes_; }
  const MemoryStats& stats() const { return *stats_; }

 private:
  size_t requested_bytes_;
  std::shared_ptr<const MemoryStats> stats_;
};

MemoryStats memory_stats(Device device);
void reset_peak_memory(Device device);
// Hard ceiling on reserved_bytes (current_bytes on meta); SIZE_MAX lifts it. What is held already is not
// taken away.
void set_memory_ceiling(Device device, size_t bytes);
void empty_cache(Device device);  // returns wholly free segments to the system

// Names what is allocated in this thread for the guard's life ("parameters", "optimizer state"): the report
// of OutOfMemory is grouped by it. `tag` must be a literal or outlive every tensor allocated under it.
class MemoryScope {
 public:
  explicit MemoryScope(const char* tag);
  ~MemoryScope();
  MemoryScope(const MemoryScope&) = delete;
  MemoryScope& operator=(const MemoryScope&) = delete;

 private:
  const char* previous_;
};

struct MemoryBlock;  // the allocator's own record of a block

// One allocation, given back when it goes. data() is null for 0 bytes and on meta.
class Memory {
 public:
  Memory() = default;
  Memory(Device device, size_t bytes);
  Memory(Memory&& other) noexcept;
  Memory& operator=(Memory&& other) noexcept;
  ~Memory();
  void* data() const { return data_; }
  size_t bytes() const { return bytes_; }

 private:
  Device device_;
  size_t bytes_ = 0;
  void* data_ = nullptr;
  MemoryBlock* block_ = nullptr;
};

}  // namespace lockstep
