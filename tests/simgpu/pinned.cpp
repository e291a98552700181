// Pinned host memory that queued work uses is closed to the host, wholly if the work writes it and for
// writing if the work reads it, until the host has synchronised with the work: not until it has merely run.
// A read that comes too early, or a refill, faults in the guilty line. The handler reports it and lets it
// pass. It also tells of hosts that follow device pointers, and of kernels far out of bounds.
#include <signal.h>
#include <sys/mman.h>
#include <ucontext.h>

#include <algorithm>
#include <vector>

#include "simgpu/block.h"
#include "simgpu/memory.h"
#include "simgpu/report.h"

namespace simgpu {
namespace {

constexpr uintptr_t kPage = 4096;

struct Guard {
  uintptr_t begin, end;
  bool write;  // by the device
  uint32_t op, stream, number;
};
std::vector<Guard> guards;

int allowed(uintptr_t page) {
  int access = PROT_READ | PROT_WRITE;
  for (const Guard& g : guards) {
    if (g.end <= page || page + kPage <= g.begin) continue;
    access = g.write ? PROT_NONE : std::min(access, PROT_READ);
    if (access == PROT_NONE) break;
  }
  return access;
}

// One call for each run of pages that are to be alike.
void protect_pages(uintptr_t begin, uintptr_t end) {
  for (uintptr_t first = begin & ~(kPage - 1); first < end;) {
    const int access = allowed(first);
    uintptr_t next = first + kPage;
    while (next < end && allowed(next) == access) next += kPage;
    mprotect(reinterpret_cast<void*>(first), next - first, access);
    first = next;
  }
}

struct sigaction previous_action;

void on_fault(int signal, siginfo_t* info, void* context) {
  const int arena = arena_of(info->si_addr);
  if (arena < 0 && running != nullptr && !running->whole_op) {
    // As on a GPU, the kernel ends here and the context is lost.
    const bool misaligned = info->si_code == SI_KERNEL;  // no address: an aligned instruction on an odd one
    report(misaligned ? "misaligned" : "host pointer",
           misaligned ? "accesses memory at an address that is no multiple of the access's size"
                      : "follows a pointer to no memory at all",
           *running);
    abort_kernel(misaligned ? cudaErrorMisalignedAddress : cudaErrorIllegalAddress);
  }
  if (arena < 0) {  // not ours: let it happen again as if we were not here
    sigaction(SIGSEGV, &previous_action, nullptr);
    if (previous_action.sa_flags & SA_SIGINFO) previous_action.sa_sigaction(signal, info, context);
    return;
  }
  std::unique_lock<std::mutex> lock;
  if (host.lock == nullptr && running == nullptr) lock = std::unique_lock(world().mutex);
  const std::string where = describe_address(info->si_addr);
  auto* page = reinterpret_cast<void*>(reinterpret_cast<uintptr_t>(info->si_addr) & ~(kPage - 1));
  if (running != nullptr) {
    report("out of bounds", "touches " + where, *running);
    mprotect(page, kPage, PROT_READ | PROT_WRITE);
  } else if (arena != kPinned) {
    report("host access", "host code follows a device pointer: " + where);
    open_arenas();
    mprotect(page, kPage, PROT_READ | PROT_WRITE);
  } else {
#ifdef __x86_64__
    const bool write = (static_cast<ucontext_t*>(context)->uc_mcontext.gregs[REG_ERR] & 2) != 0;
#else
    const bool write = true;
#endif
    std::string why;
    if (pinned_is_guarded(info->si_addr, write, &why))
      report("pinned", std::string("the host ") + (write ? "writes " : "reads ") + where + " " + why);
    mprotect(page, kPage, PROT_READ | PROT_WRITE);
  }
}

// Installed once, before main, so that a program's own handler comes after it and may pass faults on.
const bool installed = [] {
  struct sigaction action {};
  action.sa_sigaction = on_fault;
  action.sa_flags = SA_SIGINFO | SA_NODEFER;
  sigemptyset(&action.sa_mask);
  sigaction(SIGSEGV, &action, &previous_action);
  return true;
}();

}  // namespace

bool pinned_is_guarded(const void* p, bool write, std::string* why) {
  const auto address = reinterpret_cast<uintptr_t>(p);
  for (const Guard& g : guards) {
    if (address < g.begin || g.end <= address || !(g.write || write)) continue;
    *why = std::string("while ") + describe_op(g.op) + (g.write ? " writes it" : " reads it") +
           ": nothing has made the host wait for that (cudaEventSynchronize, cudaStreamSynchronize)";
    return true;
  }
  return false;
}

void check_pinned_free(uintptr_t base, size_t bytes, const char* by) {
  for (const Guard& g : guards)
    if (g.begin < base + bytes && base < g.end)
      report("use after free", std::string(by) + " frees " +
                                   describe_address(reinterpret_cast<const void*>(base)) +
                                   " though the host has not waited for " + describe_op(g.op));
}

void guard_pinned(const Op& op) {
  for (const Range& r : op.work->ranges) {
    if (arena_of(r.base) != kPinned) continue;
    const auto begin = reinterpret_cast<uintptr_t>(r.base);
    const uintptr_t end = begin + (r.rows - 1) * r.pitch + r.width;
    guards.push_back({begin, end, r.write, op.id, op.stream->index, op.number});
    protect_pages(begin, end);
  }
}

void refresh_pinned() {
  const Clock& known = world().host_clock;
  std::vector<Guard> over;
  auto kept = std::partition(guards.begin(), guards.end(),
                             [&](const Guard& g) { return known.at(g.stream) < g.number; });
  over.assign(kept, guards.end());
  guards.erase(kept, guards.end());
  for (const Guard& g : over) protect_pages(g.begin, g.end);
}

void forget_pinned() { guards.clear(); }

}  // namespace simgpu
