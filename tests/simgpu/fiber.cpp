#include "simgpu/fiber.h"

#include <sys/mman.h>

#include <cstdint>
#include <new>

namespace simgpu {

#ifdef SIMGPU_UCONTEXT

void make_context(Context& context, void* stack, size_t bytes, void (*entry)()) {
  getcontext(&context.state);
  context.state.uc_stack.ss_sp = stack;
  context.state.uc_stack.ss_size = bytes;
  context.state.uc_link = nullptr;
  makecontext(&context.state, entry, 0);
}

void switch_context(Context& from, Context& to) { swapcontext(&from.state, &to.state); }

#else

// System V calling convention: these six registers and the stack pointer are all that a call preserves.
asm(R"(
  .text
  .p2align 4
  .globl simgpu_switch_stack
  .hidden simgpu_switch_stack
  .type simgpu_switch_stack, @function
simgpu_switch_stack:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
  .size simgpu_switch_stack, .-simgpu_switch_stack
)");
extern "C" void simgpu_switch_stack(void** save, void* load);

void make_context(Context& context, void* stack, size_t bytes, void (*entry)()) {
  // What simgpu_switch_stack pops: six registers, then the return address. The stack is aligned at entry as
  // after a call: 8 bytes off a multiple of 16.
  auto top = (reinterpret_cast<uintptr_t>(stack) + bytes) & ~uintptr_t{15};
  auto** slots = reinterpret_cast<void**>(top) - 8;
  for (int i = 0; i < 8; ++i) slots[i] = nullptr;
  slots[6] = reinterpret_cast<void*>(entry);
  context.stack_pointer = slots;
}

void switch_context(Context& from, Context& to) {
  simgpu_switch_stack(&from.stack_pointer, to.stack_pointer);
}

#endif

Stacks::Stacks(int count) : total_(static_cast<size_t>(count) * (kBytes + kGuard)) {
  void* p = mmap(nullptr, total_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (p == MAP_FAILED) throw std::bad_alloc();
  base_ = static_cast<char*>(p);
  for (int i = 0; i < count; ++i)
    mprotect(base_ + static_cast<size_t>(i) * (kBytes + kGuard), kGuard, PROT_NONE);
}

Stacks::~Stacks() { munmap(base_, total_); }

void* Stacks::stack(int index) const {
  return base_ + static_cast<size_t>(index) * (kBytes + kGuard) + kGuard;
}

bool Stacks::contains(const void* address) const {
  const auto* p = static_cast<const char*>(address);
  return base_ <= p && p < base_ + total_;
}

}  // namespace simgpu
