// Fibers by themselves. Built twice: with the assembly switch of this processor, and with <ucontext.h>.
#include "simgpu/fiber.h"

#include <gtest/gtest.h>

#include <vector>

namespace {

using namespace simgpu;

Context main_context;
std::vector<Context> fibers;
std::vector<int> trace;
std::vector<double> results;
int current = 0;

void yield() { switch_context(fibers[static_cast<size_t>(current)], main_context); }

// Keeps values in registers and on the stack across every switch.
void count_to_three() {
  const int me = current;
  double sum = me;
  for (int i = 1; i <= 3; ++i) {
    volatile char deep[8192];
    deep[0] = static_cast<char>(i);
    deep[8191] = static_cast<char>(i);
    trace.push_back(me * 10 + i);
    yield();
    sum = sum * 2 + deep[0] + deep[8191];
  }
  results[static_cast<size_t>(me)] = sum;
  for (;;) yield();
}

TEST(Fibers, take_turns_and_keep_their_state) {
  constexpr int count = 100;
  Stacks stacks(count);
  fibers = std::vector<Context>(count);
  results.assign(count, 0);
  for (int i = 0; i < count; ++i)
    make_context(fibers[static_cast<size_t>(i)], stacks.stack(i), Stacks::kBytes, count_to_three);
  for (int round = 0; round < 4; ++round)
    for (current = 0; current < count; ++current)
      switch_context(main_context, fibers[static_cast<size_t>(current)]);
  ASSERT_EQ(trace.size(), 3u * count);
  for (int i = 0; i < 3 * count; ++i)
    EXPECT_EQ(trace[static_cast<size_t>(i)], i % count * 10 + i / count + 1);
  for (int i = 0; i < count; ++i) EXPECT_EQ(results[static_cast<size_t>(i)], i * 8.0 + 2 * 4 + 4 * 2 + 6);
}

TEST(Fibers, know_their_stacks) {
  Stacks stacks(2);
  EXPECT_TRUE(stacks.contains(stacks.stack(0)));
  EXPECT_TRUE(stacks.contains(static_cast<char*>(stacks.stack(1)) + Stacks::kBytes - 1));
  int elsewhere;
  EXPECT_FALSE(stacks.contains(&elsewhere));
}

}  // namespace
