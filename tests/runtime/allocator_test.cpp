#include "lockstep/runtime/allocator.h"

#include <gtest/gtest.h>

#include <cstring>
#include <random>
#include <thread>

#include "tests/ops/op_harness.h"
#include "tests/runtime/toy_ops.h"

namespace lockstep {
namespace {

constexpr size_t kMiB = size_t(1) << 20;

MemoryStats stats() { return memory_stats("cpu"); }

// No cache and no ceiling, before and after.
struct CleanAllocator {
  CleanAllocator() { reset(); }
  ~CleanAllocator() { reset(); }
  static void reset() {
    for (Device device : {Device("cpu"), Device("meta")}) {
      set_memory_ceiling(device, SIZE_MAX);
      empty_cache(device);
      reset_peak_memory(device);
    }
  }
};

class Allocator : public testing::Test {
 private:
  CleanAllocator clean_;

 protected:
  const MemoryStats start_ = stats();
};

TEST_F(Allocator, AlignmentAndContents) {
  std::vector<Memory> blocks;
  std::mt19937 random(1);
  for (int i = 0; i < 500; i++) {
    const size_t bytes = i % 10 == 0 ? 1 + random() % (4 * kMiB) : 1 + random() % 5000;
    Memory& block = blocks.emplace_back("cpu", bytes);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(block.data()) % 64, 0u);
    EXPECT_EQ(block.bytes(), bytes);
    std::memset(block.data(), i % 251, bytes);
    if (i % 3 == 0) {  // holes to be filled again
      std::swap(blocks[random() % blocks.size()], blocks.back());
      blocks.pop_back();
    }
  }
  for (const Memory& block : blocks) {
    const auto* bytes = static_cast<const unsigned char*>(block.data());
    for (size_t i = 0; i < block.bytes(); i++) ASSERT_EQ(bytes[i], bytes[0]) << "blocks overlap";
  }
}

TEST_F(Allocator, FreedMemoryIsReused) {
  for (size_t bytes : {size_t(100), 300 * size_t(1024), 5 * kMiB}) {
    void* first;
    {
      Memory block("cpu", bytes);
      first = block.data();
    }
    Memory again("cpu", bytes);
    EXPECT_EQ(again.data(), first);
  }
}

TEST_F(Allocator, NeighboursMergeAgain) {
  {
    std::vector<Memory> parts;
    for (int i = 0; i < 32; i++) parts.emplace_back("cpu", 64 * 1024);
  }
  const MemoryStats before = stats();
  EXPECT_EQ(before.largest_free_bytes, 2 * kMiB);
  Memory large("cpu", kMiB);
  EXPECT_EQ(stats().system_allocations, before.system_allocations);
}

TEST_F(Allocator, StatisticsCount) {
  {
    Memory a("cpu", 1000), b("cpu", 3 * kMiB);
    const MemoryStats now = stats();
    EXPECT_GE(now.current_bytes - start_.current_bytes, 1000 + 3 * kMiB);
    EXPECT_LE(now.current_bytes - start_.current_bytes, 1024 + 3 * kMiB + 65536);
    EXPECT_EQ(now.allocations - start_.allocations, 2);
    EXPECT_GE(now.reserved_bytes, now.current_bytes);
    EXPECT_EQ(now.peak_bytes, now.current_bytes);
    Memory moved = std::move(a);
    EXPECT_EQ(a.data(), nullptr);
    EXPECT_EQ(stats().current_bytes, now.current_bytes);
  }
  const MemoryStats after = stats();
  EXPECT_EQ(after.current_bytes, start_.current_bytes);
  EXPECT_GE(after.peak_bytes, start_.current_bytes + 3 * kMiB);
  EXPECT_GE(after.reserved_bytes, 5 * kMiB);  // kept
  EXPECT_GE(after.largest_free_bytes, 3 * kMiB);
  reset_peak_memory("cpu");
  EXPECT_EQ(stats().peak_bytes, stats().current_bytes);
  empty_cache("cpu");
  EXPECT_EQ(stats().reserved_bytes, start_.reserved_bytes);
}

TEST_F(Allocator, TagsSayWhoHolds) {
  auto held = [](const char* name) {
    for (const auto& tag : stats().tags)
      if (tag.name == name) return tag.bytes;
    return size_t(0);
  };
  const size_t activations = held("activations");
  MemoryScope scope("parameters");
  Memory parameters("cpu", 4 * kMiB);
  Memory state;
  {
    MemoryScope inner("optimizer state");
    state = Memory("cpu", 2 * kMiB);
  }
  Memory more("cpu", kMiB);
  EXPECT_EQ(held("parameters"), 5 * kMiB);
  EXPECT_EQ(held("optimizer state"), 2 * kMiB);
  EXPECT_EQ(held("activations"), activations);
  state = {};
  EXPECT_EQ(held("optimizer state"), 0u);
}

// A training step with the same shapes each time asks the system for nothing once it has run.
TEST_F(Allocator, NoSystemAllocationsInASteadyLoop) {
  using namespace test;
  Tensor w = leaf(std::vector<double>(1000, 0.1), {1000});
  auto step = [&] {
    Tensor loss = total(exponential(product(w, scaled(w, 2))));
    loss.backward();
    w.set_grad({});
  };
  step();
  const MemoryStats warm = stats();
  for (int i = 0; i < 200; i++) step();
  EXPECT_EQ(stats().system_allocations, warm.system_allocations);
  EXPECT_EQ(stats().reserved_bytes, warm.reserved_bytes);
  EXPECT_EQ(stats().current_bytes, warm.current_bytes);
  EXPECT_GT(stats().allocations, warm.allocations + 200);
}

TEST_F(Allocator, CeilingAndReport) {
  set_memory_ceiling("cpu", stats().reserved_bytes + 64 * kMiB);
  MemoryScope scope("parameters");
  Memory held("cpu", 40 * kMiB);
  try {
    Memory too_much("cpu", 30 * kMiB);
    FAIL() << "the ceiling did not hold";
  } catch (const OutOfMemory& error) {
    EXPECT_EQ(error.requested_bytes(), 30 * kMiB);
    EXPECT_GE(error.stats().current_bytes, 40 * kMiB);
    const std::string text = error.what();
    for (const char* part : {"[memory] out of memory on cpu: asked 30.0 MiB", "held ", "peak ", "reserved ",
                             "ceiling ", "largest free block ", "held by parameters: 40.0 MiB",
                             "what would help", "batch", "accumulating", "autocast", "checkpointing"})
      EXPECT_NE(text.find(part), std::string::npos) << part << " in:\n" << text;
  }
  Memory fits("cpu", 20 * kMiB);
  EXPECT_NE(fits.data(), nullptr);
  set_memory_ceiling("cpu", SIZE_MAX);
  Memory lifted("cpu", 30 * kMiB);
  EXPECT_NE(lifted.data(), nullptr);
}

TEST_F(Allocator, CachedSegmentsAreGivenBackBeforeFailing) {
  set_memory_ceiling("cpu", stats().reserved_bytes + 64 * kMiB);
  for (size_t bytes : {20 * kMiB, 30 * kMiB, 50 * kMiB, 60 * kMiB, 2 * kMiB, 63 * kMiB})
    Memory block("cpu", bytes);
  std::vector<Memory> small;
  for (int i = 0; i < 60; i++) small.emplace_back("cpu", kMiB - 64);
  EXPECT_THROW(Memory("cpu", 30 * kMiB), OutOfMemory);
  small.clear();
  EXPECT_NO_THROW(Memory("cpu", 60 * kMiB));
}

TEST_F(Allocator, AbsurdRequestsAreErrors) {
  EXPECT_THROW(Memory("cpu", SIZE_MAX), OutOfMemory);
  EXPECT_THROW(Memory("cpu", SIZE_MAX / 2 - 5), OutOfMemory);
  EXPECT_THROW(empty({int64_t(1) << 60}), OutOfMemory);
  EXPECT_THROW(empty({int64_t(1) << 61}), Error);
  EXPECT_THROW(empty({int64_t(1) << 40, int64_t(1) << 40}), Error);
  EXPECT_EQ(stats().current_bytes, start_.current_bytes);
  EXPECT_NO_THROW(Memory("cpu", 100));
}

TEST_F(Allocator, ZeroBytes) {
  Memory nothing("cpu", 0);
  EXPECT_EQ(nothing.data(), nullptr);
  EXPECT_EQ(stats().allocations, start_.allocations);
  EXPECT_EQ(zeros({0, 3}).numel(), 0);
  EXPECT_THROW(Memory("cuda:1", 0), Error);
}

TEST_F(Allocator, MetaCountsAndAllocatesNothing) {
  const MemoryStats meta = memory_stats("meta");
  Tensor huge = empty({1 << 20, 1 << 20}, DType::float32, "meta");  // 4 TiB
  EXPECT_EQ(huge.storage()->data, nullptr);
  EXPECT_EQ(memory_stats("meta").current_bytes - meta.current_bytes, size_t(4) << 40);
  EXPECT_EQ(stats().current_bytes, start_.current_bytes);
  EXPECT_EQ(stats().reserved_bytes, start_.reserved_bytes);
  huge = {};
  EXPECT_EQ(memory_stats("meta").current_bytes, meta.current_bytes);
  EXPECT_EQ(memory_stats("meta").peak_bytes, meta.current_bytes + (size_t(4) << 40));
  set_memory_ceiling("meta", meta.current_bytes + 1000);
  EXPECT_THROW(empty({1000}, DType::float32, "meta"), OutOfMemory);
  EXPECT_NO_THROW(empty({200}, DType::float32, "meta"));
}

TEST_F(Allocator, ThreadsShareOneCache) {
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; t++)
    threads.emplace_back([t] {
      std::mt19937 random{unsigned(t)};
      std::vector<Memory> mine;
      for (int i = 0; i < 2000; i++) {
        Memory& block = mine.emplace_back("cpu", 1 + random() % 20000);
        std::memset(block.data(), t, block.bytes());
        if (mine.size() > 20) mine.erase(mine.begin() + random() % 20);
        for (const Memory& m : mine) ASSERT_EQ(*static_cast<const char*>(m.data()), t);
      }
    });
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(stats().current_bytes, start_.current_bytes);
}

// Nothing here touches the memory: no page of it is ever really there.
TEST(Cases, C44_fragmentation_with_changing_sizes) {
  CleanAllocator clean;
  set_memory_ceiling("cpu", stats().reserved_bytes + 1024 * kMiB);
  std::mt19937 random(44);
  for (bool large_first : {true, false})
    for (int round = 0; round < 100; round++) {
      std::vector<Memory> small;
      size_t small_bytes = 0;
      auto allocate_small = [&] {
        for (int i = 0; i < 200; i++) {
          const size_t bytes = round == 0 ? kMiB : kMiB / 2 + random() % kMiB;
          if (small_bytes + bytes > 380 * kMiB)
            break;  // 600 and these must fit in 1024, with what rounding costs
          small_bytes += bytes;
          small.emplace_back("cpu", bytes);
        }
      };
      ASSERT_NO_THROW({
        if (large_first) Memory("cpu", 600 * kMiB);
        allocate_small();
        Memory again("cpu", 600 * kMiB);
        if (!large_first) {
          small.clear();
          small_bytes = 0;
          allocate_small();
        }
      }) << "round "
         << round;
      if (round % 2) std::shuffle(small.begin(), small.end(), random);
    }

  // A small request does not sit in a big cached block.
  empty_cache("cpu");
  { Memory big("cpu", 600 * kMiB); }
  Memory little("cpu", 10000);
  EXPECT_EQ(stats().largest_free_bytes, 600 * kMiB);
  Memory middle("cpu", 3 * kMiB);
  EXPECT_EQ(stats().largest_free_bytes, 600 * kMiB);
  try {
    Memory held("cpu", 600 * kMiB);
    Memory too_much("cpu", 500 * kMiB);
    FAIL() << "expected to run out of memory";
  } catch (const OutOfMemory& error) {
    const std::string text = error.what();
    for (const char* part : {"asked 500.0 MiB", "held ", "reserved ", "largest free block "})
      EXPECT_NE(text.find(part), std::string::npos) << text;
  }
}

// C45 on the CPU: nothing of the failed step stays behind, and half the batch fits.
TEST_F(Allocator, RecoveryAfterOutOfMemory) {
  using namespace test;
  Tensor w = leaf(2);
  auto step = [&](int64_t batch) {
    Tensor x = ones({batch, 1024}, DType::float64);  // 8 KiB a row
    Tensor y = record("big", x.clone(), {w}, [x = Saved(x)](const Tensor& dy) -> Tensors {
      return {full({}, double(dy.numel()) * x.get().select(0, 0).select(0, 0).item(), DType::float64)};
    });
    Tensor z = record("bigger", y.detach().clone(), {y},
                      [y = Saved(y)](const Tensor& dy) -> Tensors { return {dy.clone()}; });
    z.backward(ones(z.shape(), DType::float64));
    w.set_grad({});
  };
  step(64);
  empty_cache("cpu");
  const size_t before = stats().current_bytes;
  set_memory_ceiling("cpu", stats().reserved_bytes + 12 * kMiB + kMiB / 2);
  size_t reserved_after_first = 0;
  for (int round = 0; round < 20; round++) {
    EXPECT_THROW(step(512), OutOfMemory);  // 4 MiB a tensor
    EXPECT_EQ(stats().current_bytes, before) << "round " << round;
    ASSERT_NO_THROW(step(256)) << "round " << round;
    EXPECT_EQ(stats().current_bytes, before) << "round " << round;
    if (round == 0) reserved_after_first = stats().peak_reserved_bytes;
  }
  EXPECT_EQ(stats().peak_reserved_bytes, reserved_after_first);
}

}  // namespace
}  // namespace lockstep
