#include "simgpu/shadow.h"

#include <sys/mman.h>

#include <cstring>
#include <new>
#include <string>

#include "simgpu/executor.h"
#include "simgpu/memory.h"
#include "simgpu/race.h"
#include "simgpu/report.h"
#include "simgpu/world.h"

namespace simgpu {
namespace {

// By cell, that is by (address - arena_base) / 8. Untouched parts take no memory.
Cell* cells = nullptr;
uint8_t* allocated = nullptr;  // one bit for each byte of the cell
uint8_t* written = nullptr;

template <class T>
T* reserve(size_t count) {
  void* p = mmap(nullptr, count * sizeof(T), PROT_READ | PROT_WRITE,
                 MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (p == MAP_FAILED) throw std::bad_alloc();
  return static_cast<T*>(p);
}

size_t cell_of(uintptr_t address) { return (address - arena_base) / 8; }

// Calls f(cell, mask of the bytes of it).
template <class F>
void for_cells(uintptr_t address, size_t bytes, F f) {
  const uintptr_t end = address + bytes;
  for (uintptr_t at = address & ~uintptr_t{7}; at < end; at += 8) {
    unsigned mask = 0xff;
    if (at < address) mask &= 0xffu << (address - at);
    if (at + 8 > end) mask &= 0xffu >> (at + 8 - end);
    f(cell_of(at), static_cast<uint8_t>(mask));
  }
}

void set_bits(uint8_t* map, uintptr_t base, size_t bytes, bool on) {
  for_cells(base, bytes, [&](size_t cell, uint8_t mask) {
    map[cell] = static_cast<uint8_t>(on ? map[cell] | mask : map[cell] & ~mask);
  });
}

std::string direction(bool write) { return write ? "writes " : "reads "; }

[[gnu::cold, gnu::noinline]] void report_bad_address(uintptr_t address, bool write) {
  const auto* p = reinterpret_cast<const void*>(address);
  const Allocation* a = find_allocation(p);
  const bool freed = a != nullptr && a->freed && address >= a->base && address < a->base + a->bytes;
  report(freed ? "use after free" : "out of bounds",
         describe_op(running->who.op) + " " + direction(write) + describe_address(p),
         std::to_string(running->who.op) + (a != nullptr ? "/" + std::to_string(a->number) : "") +
             direction(write));
}

[[gnu::cold, gnu::noinline]] void report_uninitialised(uintptr_t address) {
  const Allocation* a = find_allocation(reinterpret_cast<const void*>(address));
  report("uninitialised",
         describe_op(running->who.op) + " reads " + describe_address(reinterpret_cast<const void*>(address)) +
             ", which nothing has written",
         std::to_string(running->who.op) + "/" + std::to_string(a != nullptr ? a->number : 0));
}

[[gnu::cold, gnu::noinline]] void report_peer(int arena) {
  report("out of bounds", describe_op(running->who.op) + " reaches memory of device " +
                              std::to_string(arena) + " without cudaDeviceEnablePeerAccess");
}

void check_cell(size_t index, uint8_t mask, uint8_t flags) {
  const uintptr_t address = arena_base + index * 8;
  if (const unsigned bad = mask & ~allocated[index]; bad != 0) [[unlikely]] {
    report_bad_address(address + static_cast<unsigned>(__builtin_ctz(bad)), flags & kWrite);
    written[index] |= mask;  // once is enough
  }
  if (flags != kWrite && (written[index] & mask) != mask) [[unlikely]] {
    if (!world().uninstrumented)
      report_uninitialised(address + static_cast<unsigned>(__builtin_ctz(mask & ~written[index])));
    written[index] |= mask;  // say it once
  }
  if (flags & kWrite) written[index] |= mask;
  record_access(cells[index], mask, flags, address);
}

}  // namespace

void start_shadow() {
  cells = reserve<Cell>(kSpanBytes / 8);
  allocated = reserve<uint8_t>(kSpanBytes / 8);
  written = reserve<uint8_t>(kSpanBytes / 8);
}

void reset_shadow(size_t offset, size_t bytes) {
  madvise(cells + offset / 8, bytes / 8 * sizeof(Cell), MADV_DONTNEED);
  std::memset(allocated + offset / 8, 0, bytes / 8);
  std::memset(written + offset / 8, 0, bytes / 8);
}

void shadow_allocate(uintptr_t base, size_t bytes, bool initialised) {
  set_bits(allocated, base, bytes, true);
  set_bits(written, base, bytes, initialised);
}

void shadow_free(uintptr_t base, size_t bytes) { set_bits(allocated, base, bytes, false); }

void check_access(uintptr_t address, size_t bytes, uint8_t flags) {
  const int arena = arena_of(reinterpret_cast<const void*>(address));
  if (arena != running->device) [[unlikely]] {
    if (arena == kPinned) {
      if (!running->whole_op)
        report("host pointer",
               describe_op(running->who.op) + " follows a pointer to pinned host memory: " +
                   describe_address(reinterpret_cast<const void*>(address)),
               std::to_string(running->who.op));
    } else if (!world().peers.contains({running->device, arena}) && !running->whole_op) {
      report_peer(arena);
    }
  }
  if (!running->whole_op && bytes <= 16 && (bytes & (bytes - 1)) == 0 && address % bytes != 0) [[unlikely]]
    report("misaligned",
           describe_op(running->who.op) + " accesses " + std::to_string(bytes) + " bytes at " +
               describe_address(reinterpret_cast<const void*>(address)),
           std::to_string(running->who.op));
  const uintptr_t offset = address & 7;
  if (offset + bytes <= 8) {
    const auto mask = static_cast<uint8_t>((0xffu >> (8 - bytes)) << offset);
    check_cell(cell_of(address), mask, flags);
  } else {
    for_cells(address, bytes, [&](size_t cell, uint8_t mask) { check_cell(cell, mask, flags); });
  }
}

void check_ranges(const Op& op) {
  for (const Range& r : op.work->ranges) {
    if (!in_arena(r.base) || r.width == 0) continue;
    const auto base = reinterpret_cast<uintptr_t>(r.base);
    if (r.pitch == r.width || r.rows == 1) check_access(base, r.width * r.rows, r.write ? kWrite : kRead);
    else
      for (size_t row = 0; row < r.rows; ++row)
        check_access(base + row * r.pitch, r.width, r.write ? kWrite : kRead);
  }
}

void check_free(uintptr_t base, size_t bytes, const char* by) {
  const World& w = world();
  uint32_t told = 0;
  for_cells(base, bytes, [&](size_t index, uint8_t mask) {
    for (const Slot& s : cells[index].slots) {
      if ((s.mask & mask) == 0 || s.op == told) continue;
      const World::Past& p = w.past[s.op];
      if (w.host_clock.at(p.stream) >= p.number) continue;
      told = s.op;
      report("use after free", std::string(by) + " frees " +
                                   describe_address(reinterpret_cast<const void*>(base)) +
                                   " though the host has not waited for " + describe_op(s.op));
    }
  });
}

}  // namespace simgpu
