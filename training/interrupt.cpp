#include "lockstep/training/interrupt.h"

#include <atomic>

#include "lockstep/runtime/check.h"

namespace lockstep {
namespace {

// Lock-free, so a signal handler may write to it.
std::atomic<int> received{0};
std::atomic<bool> guarded{false};
static_assert(std::atomic<int>::is_always_lock_free);

extern "C" void note_signal(int number) {
  int none = 0;
  received.compare_exchange_strong(none, number);
}

struct sigaction install(int number) {
  struct sigaction ours = {}, previous = {};
  ours.sa_handler = note_signal;
  sigemptyset(&ours.sa_mask);
  // Back to the default after the first signal, so that a second one ends a program that does not listen.
  ours.sa_flags = SA_RESETHAND | SA_RESTART;
  sigaction(number, nullptr, &previous);
  bool ignored = !(previous.sa_flags & SA_SIGINFO) && previous.sa_handler == SIG_IGN;
  if (!ignored) sigaction(number, &ours, nullptr);
  return previous;
}

}  // namespace

InterruptGuard::InterruptGuard() {
  LOCKSTEP_CHECK(!guarded.exchange(true),
                 "[interrupt] there is a second InterruptGuard, expected one at a time");
  received = 0;
  previous_interrupt_ = install(SIGINT);
  previous_terminate_ = install(SIGTERM);
}

InterruptGuard::~InterruptGuard() {
  sigaction(SIGINT, &previous_interrupt_, nullptr);
  sigaction(SIGTERM, &previous_terminate_, nullptr);
  guarded = false;
}

int InterruptGuard::signal() const { return received; }

}  // namespace lockstep
