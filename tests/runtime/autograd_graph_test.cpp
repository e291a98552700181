// Graphs that are deep, long-lived, or built in several threads.
#include <gtest/gtest.h>
#include <malloc.h>
#include <pthread.h>
#include <time.h>

#include <functional>
#include <list>
#include <thread>

#include "lockstep/runtime/parallel.h"
#include "lockstep/runtime/random.h"
#include "tests/ops/op_harness.h"
#include "tests/runtime/toy_ops.h"

namespace lockstep {
namespace {

using namespace test;

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr int kDeep = 100000;  // a sanitizer's shadow of a million nodes does not fit everywhere
#else
constexpr int kDeep = 1000000;
#endif

Tensor chain(const Tensor& x, int length) {
  const Tensor one = scalar(1.0);
  Tensor y = x;
  for (int i = 0; i < length; i++) y = plus(y, one);
  return y;
}

void run_on_small_stack(void (*body)()) {
  pthread_attr_t attributes;
  pthread_attr_init(&attributes);
  ASSERT_EQ(pthread_attr_setstacksize(&attributes, 512 * 1024), 0);
  pthread_t thread;
  auto start = [](void* body) -> void* {
    reinterpret_cast<void (*)()>(body)();
    return nullptr;
  };
  ASSERT_EQ(pthread_create(&thread, &attributes, start, reinterpret_cast<void*>(body)), 0);
  pthread_join(thread, nullptr);
  pthread_attr_destroy(&attributes);
}

void backward_and_drop() {
  Tensor x = leaf(0), y = chain(x, kDeep);
  EXPECT_EQ(y.item(), kDeep);
  y.backward();
  EXPECT_EQ(gradient(x), std::vector<double>{1});
}
void drop_without_backward() {
  Tensor x = leaf(0), y = chain(x, kDeep);
  EXPECT_EQ(y.item(), kDeep);
}
void backward_with_retained_graph_and_drop() {
  Tensor x = leaf(0), y = chain(x, kDeep / 4);
  y.backward({}, true);
  y.backward();
  EXPECT_EQ(gradient(x), std::vector<double>{2});
}

TEST(Cases, C35_deep_graph_main_thread) {
  backward_and_drop();
  drop_without_backward();
  backward_with_retained_graph_and_drop();
}

TEST(Cases, C35_deep_graph_small_stack) {
  run_on_small_stack(backward_and_drop);
  run_on_small_stack(drop_without_backward);
  run_on_small_stack(backward_with_retained_graph_and_drop);
}

// A chain through what the nodes captured, not only through their edges: each closure owns the tensor before
// it.
TEST(Cases, C35_deep_graph_owned_by_captures) {
  run_on_small_stack([] {
    Tensor y = leaf(0);
    for (int i = 0; i < kDeep / 4; i++)
      y = record("keeper", y.detach(), {y}, [y](const Tensor& dy) -> Tensors { return {dy}; });
  });
}

double thread_seconds() {
  timespec now;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return double(now.tv_sec) + 1e-9 * double(now.tv_nsec);
}

// Ten times the nodes take ten times as long; a quadratic traversal would take a hundred times. The bound is
// far from both.
TEST(Cases, C35_deep_graph_linear_time) {
  auto seconds = [](int length) {
    const double start = thread_seconds();
    {
      Tensor x = leaf(0);
      chain(x, length).backward();
    }
    return thread_seconds() - start;
  };
  seconds(kDeep / 10);
  const double shorter = seconds(kDeep / 10), longer = seconds(kDeep);
  EXPECT_LT(longer, 40 * shorter);
}

// Growth from step 10 to step 1000 of training, of tensors and of the heap, where keep(loss) is called after
// each step.
void expect_no_growth(const std::function<void(const Tensor& loss)>& keep) {
  Tensor w = leaf(std::vector<double>(4096, 0.01), {4096});
  size_t tensors_at_10 = 0, heap_at_10 = 0;
  auto heap = [] { return size_t(mallinfo2().uordblks); };
  for (int step = 1; step <= 1000; step++) {
    Tensor loss = total(exponential(product(w, scaled(w, 2))));
    loss.backward();
    keep(loss);
    w.set_grad({});
    if (step == 10) tensors_at_10 = memory_stats("cpu").current_bytes, heap_at_10 = heap();
  }
  constexpr size_t kMiB = size_t(1) << 20;
  EXPECT_LT(memory_stats("cpu").current_bytes, tensors_at_10 + kMiB / 4);
  EXPECT_LT(heap(), heap_at_10 + kMiB);
}

TEST(Cases, C43_running_sum_of_losses_keeps_no_activations) {
  Tensor sum = scalar(0.0);
  expect_no_growth([&](const Tensor& loss) { sum = plus(sum, loss); });
  expect_error("backward through a graph that was already released", [&] { sum.backward(); });

  std::list<Tensor> kept;
  expect_no_growth([&](const Tensor& loss) { kept.push_back(loss); });
  expect_error("retain_graph", [&] { kept.front().backward(); });
}

TEST(Cases, C73_modes_reach_pool_threads_and_stay_clean) {
  const int before = num_threads();
  set_num_threads(4);
  const Tensor w = leaf(2);
  constexpr int64_t kTasks = 64;
  auto recorded_tasks = [&] {
    std::vector<char> recorded(kTasks);
    parallel_chunks(kTasks, [&](int64_t i) { recorded[size_t(i)] = scaled(w, 2).requires_grad(); });
    return std::count(recorded.begin(), recorded.end(), 1);
  };
  {
    NoGradGuard no_grad;
    EXPECT_EQ(recorded_tasks(), 0);
  }
  EXPECT_EQ(recorded_tasks(), kTasks);

  // What a task sets, by guard or by hand, does not reach the next one on its thread.
  parallel_chunks(kTasks, [&](int64_t) {
    thread_state().grad_enabled = false;
    thread_state().anomaly = true;
  });
  EXPECT_TRUE(grad_enabled());
  EXPECT_FALSE(thread_state().anomaly);
  EXPECT_EQ(recorded_tasks(), kTasks);

  // A throw inside a guard, here and in a task: the mode is restored everywhere.
  EXPECT_THROW(
      {
        NoGradGuard no_grad;
        parallel_chunks(kTasks, [&](int64_t i) {
          AnomalyGuard anomaly;
          if (i == 17 || i == 40) throw Error(concat("[task] fault in ", i));
        });
      },
      Error);
  EXPECT_TRUE(grad_enabled());
  EXPECT_EQ(recorded_tasks(), kTasks);
  expect_error("[task] fault in 17", [&] {
    parallel_chunks(kTasks, [&](int64_t i) {
      if (i == 17 || i == 40) throw Error(concat("[task] fault in ", i));
    });
  });

  // Generator and memory tag come along too.
  Generator own(5);
  GeneratorGuard generator_guard(own);
  MemoryScope scope("task memory");
  std::vector<char> inherited(kTasks);
  parallel_chunks(kTasks, [&](int64_t i) {
    inherited[size_t(i)] = &generator() == &own && std::string(thread_state().memory_tag) == "task memory";
  });
  EXPECT_EQ(std::count(inherited.begin(), inherited.end(), 1), kTasks);
  set_num_threads(before);
}

TEST(Cases, C73_backward_on_another_thread) {
  Tensor w = leaf({1, 2}, {2}), loss = total(exponential(w));
  NoGradGuard no_grad;  // of this thread only
  std::thread other([&] {
    EXPECT_TRUE(grad_enabled());
    loss.backward();
    Tensor again = total(scaled(w, 2));
    EXPECT_TRUE(again.requires_grad());
    again.backward();
    EXPECT_TRUE(grad_enabled());
  });
  other.join();
  EXPECT_FALSE(grad_enabled());
  EXPECT_NEAR(gradient(w)[1], std::exp(2) + 2, 1e-12);
}

TEST(Cases, C73_pending_error_in_a_guard_restores_the_mode) {
  try {
    NoGradGuard no_grad;
    AnomalyGuard anomaly;
    throw Error("[test] fault");
  } catch (const Error&) {
  }
  EXPECT_TRUE(grad_enabled());
  EXPECT_FALSE(thread_state().anomaly);
}

// One leaf, several threads that each build a graph and run it backward: every contribution arrives, hooks
// are whole.
TEST(Autograd, LeavesAreSharedBetweenThreads) {
  Tensor w = leaf(std::vector<double>(100, 1), {100});
  std::atomic<int> fired{0};
  add_post_accumulate_hook(w, [&](const Tensor&) { fired++; });
  constexpr int kThreads = 8, kRounds = 50;
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; t++)
    threads.emplace_back([&] {
      for (int i = 0; i < kRounds; i++) total(scaled(w, 3)).backward();
    });
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(gradient(w), std::vector<double>(100, 3.0 * kThreads * kRounds));
  EXPECT_EQ(fired, kThreads * kRounds);
}

}  // namespace
}  // namespace lockstep
