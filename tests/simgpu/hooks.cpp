// The compiler turns each load and store of a kernel compiled with -fsanitize=thread into a call of one of
// these functions. They are ours, not ThreadSanitizer's: its library is not linked.
#include <sys/mman.h>

#include <cstdint>
#include <string>

#include "simgpu/executor.h"
#include "simgpu/memory.h"
#include "simgpu/race.h"
#include "simgpu/report.h"
#include "simgpu/shadow.h"
#include "simgpu/world.h"

// Made by the linker: the program's image, its zero-initialised variables (where the __shared__ ones of
// kernels are), and the section of threadIdx and its like.
extern "C" {
extern char __executable_start, __bss_start, _end;
extern char __start_simgpu_builtin, __stop_simgpu_builtin;
}

namespace simgpu {
namespace {

// Shared memory belongs to a block: what an earlier block left in a cell counts as nothing.
struct SharedCell {
  uint64_t block = 0;  // whose this is
  uint8_t written = 0;
  Cell cell = {};
};

SharedCell& shared_cell(uintptr_t address) {
  // For all zero-initialised variables of the program, the dynamic shared memory of the executor among them.
  static SharedCell* const cells = [] {
    void* p = mmap(nullptr, (static_cast<size_t>(&_end - &__bss_start) / 8 + 2) * sizeof(SharedCell),
                   PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    return static_cast<SharedCell*>(p);
  }();
  SharedCell& c = cells[address / 8 - reinterpret_cast<uintptr_t>(&__bss_start) / 8];
  if (c.block != running->block_serial) c = SharedCell{running->block_serial, 0, {}};
  return c;
}

[[gnu::cold, gnu::noinline]] void report_host_pointer(uintptr_t address, size_t bytes, bool write) {
  (void)address;
  report("host pointer",
         std::string("a kernel ") + (write ? "writes " : "reads ") + std::to_string(bytes) +
             " bytes of ordinary host memory",
         *running);
}

void on_access(uintptr_t address, size_t bytes, uint8_t flags) {
  if (running == nullptr || !running->traced) return;
  const auto* p = reinterpret_cast<const char*>(address);
  if (address - arena_base < kSpanBytes) {
    check_access(address, bytes, flags);
  } else if (on_fiber_stack(p) || (&__start_simgpu_builtin <= p && p < &__stop_simgpu_builtin)) {
    return;
  } else if (near_dynamic_shared(p)) {
    if (!in_dynamic_shared(p, bytes))
      report("out of bounds", "reaches beyond its dynamic shared memory", *running);
    check_shared(address, bytes, flags);
  } else if (&__bss_start <= p && p < &_end) {
    check_shared(address, bytes, flags);
  } else if (!(&__executable_start <= p && p < &__bss_start) || (flags & kWrite)) {
    report_host_pointer(address, bytes, flags & kWrite);
  }
}

}  // namespace

void check_shared(uintptr_t address, size_t bytes, uint8_t flags) {
  for (size_t done = 0; done < bytes;) {
    const uintptr_t at = address + done;
    const size_t n = std::min(bytes - done, 8 - (at & 7));
    const auto mask = static_cast<uint8_t>((0xffu >> (8 - n)) << (at & 7));
    SharedCell& c = shared_cell(at);
    if (flags != kWrite && (c.written & mask) != mask) [[unlikely]]
      report("uninitialised", "reads shared memory that its block has not written", *running);
    c.written |= mask;
    record_access(c.cell, mask, flags, at);
    done += n;
  }
}

void note_atomic(void* address, size_t bytes) {
  on_access(reinterpret_cast<uintptr_t>(address), bytes, kWrite | kAtomic);
}

}  // namespace simgpu

extern "C" {

#define SIMGPU_HOOKS(n)                                                                                   \
  void __tsan_read##n(void* p) { simgpu::on_access(reinterpret_cast<uintptr_t>(p), n, simgpu::kRead); }   \
  void __tsan_write##n(void* p) { simgpu::on_access(reinterpret_cast<uintptr_t>(p), n, simgpu::kWrite); } \
  void __tsan_unaligned_read##n(void* p) { __tsan_read##n(p); }                                           \
  void __tsan_unaligned_write##n(void* p) { __tsan_write##n(p); }                                         \
  void __tsan_volatile_read##n(void* p) { __tsan_read##n(p); }                                            \
  void __tsan_volatile_write##n(void* p) { __tsan_write##n(p); }
SIMGPU_HOOKS(1)
SIMGPU_HOOKS(2)
SIMGPU_HOOKS(4)
SIMGPU_HOOKS(8)
SIMGPU_HOOKS(16)
#undef SIMGPU_HOOKS

void __tsan_read_range(void* p, size_t n) {
  simgpu::on_access(reinterpret_cast<uintptr_t>(p), n, simgpu::kRead);
}
void __tsan_write_range(void* p, size_t n) {
  simgpu::on_access(reinterpret_cast<uintptr_t>(p), n, simgpu::kWrite);
}
void __tsan_init() {}
void __tsan_func_entry(void*) {}
void __tsan_func_exit() {}
void __tsan_vptr_read(void**) {}
void __tsan_vptr_update(void**, void*) {}
}
