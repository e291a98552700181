#include "lockstep/runtime/allocator.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <mutex>
#include <set>

#include "lockstep/runtime/cpu_features.h"
#include "lockstep/runtime/thread_state.h"

#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/asan_interface.h>
#else
#define ASAN_POISON_MEMORY_REGION(address, bytes) (void)0
#define ASAN_UNPOISON_MEMORY_REGION(address, bytes) (void)0
#endif

namespace lockstep {

// A piece of a segment. previous and next are its neighbours in memory, null at the segment's ends.
struct MemoryBlock {
  char* data = nullptr;
  size_t bytes = 0;
  MemoryBlock* previous = nullptr;
  MemoryBlock* next = nullptr;
  const char* tag = nullptr;
  bool free = false;
  bool small = false;

  bool is_whole_segment() const { return !previous && !next; }
};

namespace {

constexpr size_t kAlignment = 64;
constexpr size_t kSmallRequest = size_t(1) << 20;  // up to here requests share segments
constexpr size_t kSmallSegment = size_t(2) << 20;
constexpr size_t kLargeRounding = size_t(64) << 10;
constexpr size_t kSplitRemainder = size_t(1) << 20;  // a smaller rest stays with the block
constexpr size_t kVeryLarge = size_t(32) << 20;      // such a block is not cut for less than a quarter of it
constexpr size_t kHugePage = size_t(2) << 20;

size_t round_up(size_t value, size_t unit) { return (value + unit - 1) / unit * unit; }

// Memory from the system, aligned to huge pages where the segment is that large; null if there is none.
char* system_allocate(size_t bytes) {
  size_t slack = bytes >= kHugePage ? kHugePage : 0;
  void* mapped = mmap(nullptr, bytes + slack, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (mapped == MAP_FAILED) return nullptr;
  char* begin = static_cast<char*>(mapped);
  if (slack == 0) return begin;
  char* aligned = reinterpret_cast<char*>(round_up(reinterpret_cast<size_t>(begin), kHugePage));
  if (aligned > begin) munmap(begin, size_t(aligned - begin));
  if (aligned + bytes < begin + bytes + slack) munmap(aligned + bytes, size_t(begin + slack - aligned));
  madvise(aligned, bytes, MADV_HUGEPAGE);
  return aligned;
}

struct BySize {
  bool operator()(const MemoryBlock* a, const MemoryBlock* b) const {
    return a->bytes != b->bytes ? a->bytes < b->bytes : a->data < b->data;
  }
};

class DeviceMemory {
 public:
  explicit DeviceMemory(Device device) : device_(device) {}

  MemoryBlock* allocate(size_t requested) {
    std::lock_guard lock(mutex_);
    MemoryBlock* block = device_.is_meta() ? allocate_meta(requested) : allocate_cached(requested);
    block->tag = thread_state().memory_tag;
    tag_bytes(block->tag) += block->bytes;
    stats_.current_bytes += block->bytes;
    stats_.peak_bytes = std::max(stats_.peak_bytes, stats_.current_bytes);
    stats_.allocations++;
    return block;
  }

  void release(MemoryBlock* block) noexcept {
    std::lock_guard lock(mutex_);
    tag_bytes(block->tag) -= block->bytes;
    stats_.current_bytes -= block->bytes;
    if (device_.is_meta()) {
      delete block;
      return;
    }
    ASAN_POISON_MEMORY_REGION(block->data, block->bytes);
    auto& pool = pool_of(*block);
    if (MemoryBlock* next = block->next; next && next->free) {
      pool.erase(next);
      absorb_next(block);
    }
    if (MemoryBlock* previous = block->previous; previous && previous->free) {
      pool.erase(previous);
      absorb_next(previous);
      block = previous;
    }
    block->free = true;
    pool.insert(block);
  }

  MemoryStats stats() {
    std::lock_guard lock(mutex_);
    return stats_locked();
  }

  void reset_peak() {
    std::lock_guard lock(mutex_);
    stats_.peak_bytes = stats_.current_bytes;
    stats_.peak_reserved_bytes = stats_.reserved_bytes;
  }

  void set_ceiling(size_t bytes) {
    std::lock_guard lock(mutex_);
    stats_.ceiling_bytes = bytes;
  }

  void empty_cache() {
    std::lock_guard lock(mutex_);
    return_free_segments();
  }

 private:
  using Pool = std::set<MemoryBlock*, BySize>;

  Pool& pool_of(const MemoryBlock& block) { return block.small ? small_ : large_; }

  size_t& tag_bytes(const char* tag) {
    for (auto& [name, bytes] : tags_)
      if (name == tag || std::strcmp(name, tag) == 0) return bytes;
    return tags_.emplace_back(tag, 0).second;
  }

  MemoryBlock* allocate_meta(size_t requested) {
    size_t bytes = round_up(requested, kAlignment);
    if (bytes > stats_.ceiling_bytes - std::min(stats_.ceiling_bytes, stats_.current_bytes))
      throw OutOfMemory(device_, requested, stats_locked());
    return new MemoryBlock{.bytes = bytes};
  }

  MemoryBlock* allocate_cached(size_t requested) {
    if (requested > SIZE_MAX / 2) throw OutOfMemory(device_, requested, stats_locked());
    const bool small = requested <= kSmallRequest;
    const size_t bytes = round_up(requested, small ? kAlignment : kLargeRounding);
    Pool& pool = small ? small_ : large_;
    MemoryBlock* block = nullptr;
    MemoryBlock key{.bytes = bytes};
    if (auto found = pool.lower_bound(&key); found != pool.end() && may_serve(**found, bytes)) {
      block = *found;
      pool.erase(found);
    } else {
      block = new_segment(small ? kSmallSegment : bytes, small, requested);
    }
    block->free = false;
    if (block->bytes - bytes >= (small ? kAlignment : kSplitRemainder)) split(block, bytes);
    ASAN_UNPOISON_MEMORY_REGION(block->data, requested);
    return block;
  }

  static bool may_serve(const MemoryBlock& block, size_t bytes) {
    return block.small || block.bytes < kVeryLarge || bytes >= block.bytes / 4;
  }

  MemoryBlock* new_segment(size_t bytes, bool small, size_t requested) {
    auto fits = [&] {
      return bytes <= stats_.ceiling_bytes && stats_.reserved_bytes <= stats_.ceiling_bytes - bytes;
    };
    auto block = std::make_unique<MemoryBlock>();
    char* data = fits() ? system_allocate(bytes) : nullptr;
    if (!data) {
      return_free_segments();
      data = fits() ? system_allocate(bytes) : nullptr;
    }
    if (!data) throw OutOfMemory(device_, requested, stats_locked());
    ASAN_POISON_MEMORY_REGION(data, bytes);
    *block = {.data = data, .bytes = bytes, .small = small};
    stats_.system_allocations++;
    stats_.reserved_bytes += bytes;
    stats_.peak_reserved_bytes = std::max(stats_.peak_reserved_bytes, stats_.reserved_bytes);
    return block.release();
  }

  void split(MemoryBlock* block, size_t bytes) {
    auto* rest = new MemoryBlock{.data = block->data + bytes,
                                 .bytes = block->bytes - bytes,
                                 .previous = block,
                                 .next = block->next,
                                 .free = true,
                                 .small = block->small};
    if (rest->next) rest->next->previous = rest;
    block->next = rest;
    block->bytes = bytes;
    pool_of(*rest).insert(rest);
  }

  static void absorb_next(MemoryBlock* block) {
    MemoryBlock* next = block->next;
    block->bytes += next->bytes;
    block->next = next->next;
    if (block->next) block->next->previous = block;
    delete next;
  }

  void return_free_segments() {
    for (Pool* pool : {&small_, &large_})
      for (auto it = pool->begin(); it != pool->end();) {
        MemoryBlock* block = *it;
        if (!block->is_whole_segment()) {
          ++it;
          continue;
        }
        it = pool->erase(it);
        ASAN_UNPOISON_MEMORY_REGION(block->data, block->bytes);
        munmap(block->data, block->bytes);
        stats_.reserved_bytes -= block->bytes;
        delete block;
      }
  }

  MemoryStats stats_locked() {
    MemoryStats stats = stats_;
    if (device_.is_meta())
      stats.reserved_bytes = stats.current_bytes, stats.peak_reserved_bytes = stats.peak_bytes;
    for (const Pool* pool : {&small_, &large_})
      if (!pool->empty())
        stats.largest_free_bytes = std::max(stats.largest_free_bytes, (*pool->rbegin())->bytes);
    for (const auto& [name, bytes] : tags_)
      if (bytes > 0) stats.tags.push_back({name, bytes});
    std::sort(stats.tags.begin(), stats.tags.end(),
              [](const auto& a, const auto& b) { return a.bytes > b.bytes; });
    return stats;
  }

  const Device device_;
  std::mutex mutex_;
  Pool small_, large_;
  MemoryStats stats_;
  std::vector<std::pair<const char*, size_t>> tags_;
};

// Never destroyed: tensors in static storage give their memory back after main has returned.
DeviceMemory& memory_of(Device device) {
  static DeviceMemory& cpu = *[] {
    require_supported_processor();
    return new DeviceMemory("cpu");
  }();
  static DeviceMemory& meta = *new DeviceMemory("meta");
  LOCKSTEP_CHECK(device.type != DeviceType::cuda, "[device] ", device,
                 " is not available: this build has no CUDA back end");
  return device.is_cpu() ? cpu : meta;
}

std::string readable(size_t bytes) {
  const char* units[] = {"bytes", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
  double value = double(bytes);
  int unit = 0;
  for (; value >= 1024 && unit < 6; unit++) value /= 1024;
  char text[32];
  std::snprintf(text, sizeof text, unit ? "%.1f %s" : "%.0f %s", value, units[unit]);
  return text;
}

std::string report(Device device, size_t requested, const MemoryStats& stats) {
  std::string text = concat("[memory] out of memory on ", device, ": asked ", readable(requested), ", held ",
                            readable(stats.current_bytes), " (peak ", readable(stats.peak_bytes),
                            "), reserved ", readable(stats.reserved_bytes), ", ceiling ",
                            stats.ceiling_bytes == SIZE_MAX ? "none" : readable(stats.ceiling_bytes),
                            ", largest free block ", readable(stats.largest_free_bytes));
  size_t activations = requested;
  for (const auto& tag : stats.tags) {
    text += concat("\n  held by ", tag.name, ": ", readable(tag.bytes));
    if (tag.name == "activations") activations += tag.bytes;
  }
  // Activations grow with the batch and are what 16-bit storage and recomputation shrink. Recomputing in
  // sqrt(n) segments keeps 2/sqrt(n) of them (Chen et al. 2016): a half is what 16 equal layers give.
  text += concat(
      "\n  what would help: half the batch, or accumulating gradients over two half batches, saves about ",
      readable(activations / 2), "; 16-bit autocast about ", readable(activations / 2),
      "; activation checkpointing about ", readable(activations / 2));
  return text;
}

}  // namespace

OutOfMemory::OutOfMemory(Device device, size_t requested_bytes, const MemoryStats& stats)
    : Error(report(device, requested_bytes, stats)),
      requested_bytes_(requested_bytes),
      stats_(std::make_shared<MemoryStats>(stats)) {}

MemoryStats memory_stats(Device device) { return memory_of(device).stats(); }
void reset_peak_memory(Device device) { memory_of(device).reset_peak(); }
void set_memory_ceiling(Device device, size_t bytes) { memory_of(device).set_ceiling(bytes); }
void empty_cache(Device device) { memory_of(device).empty_cache(); }

MemoryScope::MemoryScope(const char* tag) : previous_(thread_state().memory_tag) {
  thread_state().memory_tag = tag;
}
MemoryScope::~MemoryScope() { thread_state().memory_tag = previous_; }

Memory::Memory(Device device, size_t bytes) : device_(device), bytes_(bytes) {
  DeviceMemory& memory = memory_of(device);  // also for 0 bytes: the device must exist
  if (bytes == 0) return;
  block_ = memory.allocate(bytes);
  data_ = block_->data;
}

Memory::Memory(Memory&& other) noexcept { *this = std::move(other); }

Memory& Memory::operator=(Memory&& other) noexcept {
  std::swap(device_, other.device_);
  std::swap(bytes_, other.bytes_);
  std::swap(data_, other.data_);
  std::swap(block_, other.block_);
  return *this;
}

Memory::~Memory() {
  if (block_) memory_of(device_).release(block_);
}

}  // namespace lockstep
