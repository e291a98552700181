// What a thread carries implicitly. parallel_for hands the caller's state to its workers and takes it back
// afterwards, so that a pool thread neither misses the caller's no_grad nor leaks it into its next task.
#pragma once

namespace lockstep {

class Generator;

struct ThreadState {
  bool grad_enabled = true;
  bool anomaly = false;
  const char* memory_tag = "activations";  // see MemoryScope
  Generator* generator = nullptr;          // null: the process-wide one
};

ThreadState& thread_state();

// Sets the state of this thread for the guard's life.
class ThreadStateGuard {
 public:
  explicit ThreadStateGuard(const ThreadState& state) : previous_(thread_state()) { thread_state() = state; }
  ~ThreadStateGuard() { thread_state() = previous_; }
  ThreadStateGuard(const ThreadStateGuard&) = delete;
  ThreadStateGuard& operator=(const ThreadStateGuard&) = delete;

 private:
  ThreadState previous_;
};

}  // namespace lockstep
