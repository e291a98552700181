#include "simgpu/memory.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cstring>
#include <map>
#include <new>

#include "simgpu/report.h"
#include "simgpu/shadow.h"

namespace simgpu {

uintptr_t arena_base = 0;

namespace {

constexpr size_t kPage = 4096;
constexpr unsigned char kFresh = 0xff;  // NaN in every float type, -1 in integers
constexpr unsigned char kRedZone = 0xa5;

struct Arena {
  uintptr_t base = 0;
  size_t used = 0;    // from the start; whole pages
  size_t opened = 0;  // bytes accessible now
  size_t live_bytes = 0;
};
Arena arenas[kMaxDevices + 1];
std::map<uintptr_t, Allocation> allocations;  // by base
int allocation_count = 0;
char* pinned_alias = nullptr;  // the pinned range a second time, for the simulator itself

size_t round_up(size_t n, size_t to) { return (n + to - 1) / to * to; }

void check_red_zone(const Allocation& a) {
  if (a.arena == kPinned) return;
  const auto* zone = reinterpret_cast<const unsigned char*>(a.base) + a.bytes;
  const size_t size = round_up(a.bytes, kAlign) + kAlign - a.bytes;
  size_t spoiled = 0;
  for (size_t i = 0; i < size; ++i) spoiled += zone[i] != kRedZone;
  if (spoiled > 0)
    report("out of bounds", std::to_string(spoiled) + " bytes behind allocation " + std::to_string(a.number) +
                                " (" + std::to_string(a.bytes) + " bytes, device " + std::to_string(a.arena) +
                                ") were overwritten");
}

}  // namespace

void start_memory() {
  void* p = mmap(nullptr, kSpanBytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (p == MAP_FAILED) throw std::bad_alloc();
  arena_base = reinterpret_cast<uintptr_t>(p);
  for (int i = 0; i <= kMaxDevices; ++i) arenas[i].base = arena_base + static_cast<size_t>(i) * kArenaBytes;

  // Pinned memory is mapped twice, so that a copy can run while the host's view of the page is closed.
  const int file = memfd_create("simgpu-pinned", MFD_CLOEXEC);
  if (file < 0 || ftruncate(file, static_cast<off_t>(kArenaBytes)) != 0) throw std::bad_alloc();
  void* view = mmap(reinterpret_cast<void*>(arenas[kPinned].base), kArenaBytes, PROT_READ | PROT_WRITE,
                    MAP_SHARED | MAP_FIXED | MAP_NORESERVE, file, 0);
  void* alias = mmap(nullptr, kArenaBytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, file, 0);
  if (view == MAP_FAILED || alias == MAP_FAILED) throw std::bad_alloc();
  close(file);
  pinned_alias = static_cast<char*>(alias);
}

void reset_memory() {
  open_arenas();
  for (const auto& [base, a] : allocations)
    if (!a.freed) check_red_zone(a);
  forget_pinned();
  allocations.clear();
  allocation_count = 0;
  for (Arena& arena : arenas) {
    if (arena.used == 0) continue;
    reset_shadow(arena.base - arena_base, arena.used);
    void* p = reinterpret_cast<void*>(arena.base);
    if (&arena == &arenas[kPinned]) {
      madvise(pinned_alias, arena.used, MADV_REMOVE);
      mprotect(p, arena.used, PROT_READ | PROT_WRITE);
    } else {
      madvise(p, arena.used, MADV_DONTNEED);
      mprotect(p, arena.used, PROT_NONE);
    }
    arena.used = arena.opened = arena.live_bytes = 0;
  }
}

void* allocate(int index, size_t bytes) {
  Arena& arena = arenas[index];
  const bool pinned = index == kPinned;
  // Pinned blocks have whole pages to themselves, for protection goes by pages.
  const size_t size = pinned ? round_up(bytes, kPage) + kPage : round_up(bytes, kAlign) + 2 * kAlign;
  if (!pinned && arena.live_bytes + bytes > world().config.memory_bytes) return nullptr;
  static size_t fill[kMaxDevices + 1];  // exact end of what is in use
  if (arena.used == 0) fill[index] = 0;
  if (fill[index] + size > kArenaBytes) return nullptr;
  const uintptr_t base = arena.base + fill[index] + (pinned ? 0 : kAlign);
  fill[index] += size;
  arena.used = std::max(arena.used, round_up(fill[index], kPage));
  arena.live_bytes += bytes;

  if (!pinned) {
    open_arenas();
    auto* p = reinterpret_cast<unsigned char*>(base);
    std::memset(p, kFresh, bytes);
    std::memset(p + bytes, kRedZone, round_up(bytes, kAlign) + kAlign - bytes);
  }
  shadow_allocate(base, bytes, pinned);
  Allocation a;
  a.base = base, a.bytes = bytes, a.arena = index, a.number = ++allocation_count;
  allocations[base] = a;
  return reinterpret_cast<void*>(base);
}

std::string release(void* p, int index, const char* by) {
  auto it = allocations.find(reinterpret_cast<uintptr_t>(p));
  if (it == allocations.end()) {
    return in_arena(p) ? "a pointer into the middle of a block: " + describe_address(p)
                       : "a pointer that was never allocated";
  }
  Allocation& a = it->second;
  if (a.freed) return "a block that " + a.freed_by + " had freed: " + describe_address(p);
  if ((a.arena == kPinned) != (index == kPinned)) return "memory of the other kind: " + describe_address(p);
  if (by != nullptr)
    index == kPinned ? check_pinned_free(a.base, a.bytes, by) : check_free(a.base, a.bytes, by);
  if (a.arena != kPinned) {
    open_arenas();
    check_red_zone(a);
    std::memset(p, kFresh, a.bytes);
  }
  shadow_free(a.base, a.bytes);
  arenas[a.arena].live_bytes -= a.bytes;
  a.freed = true;
  a.freed_by = by != nullptr ? by : "cudaFreeAsync";
  return "";
}

const Allocation* find_allocation(const void* p) {
  const auto address = reinterpret_cast<uintptr_t>(p);
  auto after = allocations.upper_bound(address);
  const Allocation* next = after == allocations.end() ? nullptr : &after->second;
  const Allocation* before = after == allocations.begin() ? nullptr : &std::prev(after)->second;
  if (before != nullptr && address < before->base + before->bytes) return before;
  if (before == nullptr || next == nullptr) return before != nullptr ? before : next;
  return address - (before->base + before->bytes) < next->base - address ? before : next;
}

std::string describe_address(const void* p) {
  const int index = arena_of(p);
  if (index < 0) return "ordinary host memory";
  const Allocation* a = find_allocation(p);
  const std::string where = index == kPinned ? "pinned memory" : "device " + std::to_string(index);
  if (a == nullptr) return "no allocation of " + where;
  const auto offset = static_cast<int64_t>(reinterpret_cast<uintptr_t>(p) - a->base);
  const std::string block = "allocation " + std::to_string(a->number) + " (" + std::to_string(a->bytes) +
                            " bytes, " + where + (a->freed ? ", freed by " + a->freed_by : "") + ")";
  if (offset < 0) return std::to_string(-offset) + " bytes before " + block;
  if (offset >= static_cast<int64_t>(a->bytes))
    return std::to_string(offset - static_cast<int64_t>(a->bytes)) + " bytes past the end of " + block;
  return "byte " + std::to_string(offset) + " of " + block;
}

void open_arenas() {
  for (int i = 0; i < kMaxDevices; ++i) {
    Arena& arena = arenas[i];
    if (arena.opened >= arena.used) continue;
    mprotect(reinterpret_cast<void*>(arena.base), arena.used, PROT_READ | PROT_WRITE);
    arena.opened = arena.used;
  }
}

void close_arenas() {
  for (int i = 0; i < kMaxDevices; ++i) {
    Arena& arena = arenas[i];
    if (arena.opened == 0) continue;
    mprotect(reinterpret_cast<void*>(arena.base), arena.opened, PROT_NONE);
    arena.opened = 0;
  }
}

void* host_view(void* p) {
  return arena_of(p) == kPinned ? pinned_alias + (reinterpret_cast<uintptr_t>(p) - arenas[kPinned].base) : p;
}
const void* host_view(const void* p) { return host_view(const_cast<void*>(p)); }

size_t live_in(int arena) { return arenas[arena].live_bytes; }

size_t live_bytes(int device) {
  std::lock_guard guard(world().mutex);
  return live_in(device);
}

}  // namespace simgpu
