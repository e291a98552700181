// Ctrl-C and SIGTERM as a question the training loop asks, instead of the end of the process.
//
//   InterruptGuard interrupt;                       // only from here on, and only because we asked for it
//   for (Batch& batch : loader) {
//     step(batch);
//     if (interrupt.signal()) { save(); break; }    // the step is finished, nothing is half-written
//   }
//
// A second signal ends the process at once, as without the guard. A signal that the caller ignores (nohup)
// stays ignored. The handlers found before are put back by the destructor. Thread safety: one guard at a time
// in a process; signal() may be called from any thread.
#pragma once

#include <signal.h>

namespace lockstep {

class InterruptGuard {
 public:
  InterruptGuard();  // throws Error if another guard lives
  ~InterruptGuard();
  InterruptGuard(const InterruptGuard&) = delete;
  InterruptGuard& operator=(const InterruptGuard&) = delete;

  int signal() const;  // the number of the first signal since the guard was made, 0 for none

 private:
  struct sigaction previous_interrupt_, previous_terminate_;
};

}  // namespace lockstep
