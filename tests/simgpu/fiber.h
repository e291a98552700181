// Fibers: the threads of a block, each with a stack of its own, on one thread of the operating system.
// x86-64 switches in a dozen instructions; elsewhere, or with SIMGPU_UCONTEXT defined, <ucontext.h> does it,
// slower by two system calls.
#pragma once

#include <cstddef>

#if !defined(__x86_64__) && !defined(SIMGPU_UCONTEXT)
#define SIMGPU_UCONTEXT
#endif
#ifdef SIMGPU_UCONTEXT
#include <ucontext.h>
#endif

namespace simgpu {

// Where a fiber, or the thread that runs them, continues when it is switched to.
struct Context {
#ifdef SIMGPU_UCONTEXT
  ucontext_t state;
#else
  void* stack_pointer = nullptr;
#endif
};

// Makes `context` start `entry` on the given stack when first switched to. `entry` must never return.
void make_context(Context& context, void* stack, size_t bytes, void (*entry)());
void switch_context(Context& from, Context& to);

// Stacks of fibers in one range of addresses, each with an inaccessible page below it.
class Stacks {
 public:
  static constexpr size_t kBytes = 64 * 1024;
  explicit Stacks(int count);
  ~Stacks();
  Stacks(const Stacks&) = delete;
  Stacks& operator=(const Stacks&) = delete;
  void* stack(int index) const;  // lowest usable byte
  bool contains(const void* address) const;

 private:
  static constexpr size_t kGuard = 4096;
  char* base_;
  size_t total_;
};

}  // namespace simgpu
