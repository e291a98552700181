// Kills a process while it writes, to see what is left.
#pragma once

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/types.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <thread>

namespace lockstep::testing {

// A child process calls `write(i)` for i = 0, 1, ... until it is killed, `delay` after its start. The child
// is a fork, so `write` must start no threads.
template <class F>
void kill_while_writing(std::chrono::microseconds delay, F&& write) {
  int started[2];
  ASSERT_EQ(pipe(started), 0);
  pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    try {
      if (::write(started[1], "x", 1) != 1) _exit(2);
      for (int i = 0;; i++) write(i);
    } catch (const std::exception& error) {
      (void)!::write(STDERR_FILENO, error.what(), strlen(error.what()));
    }
    _exit(3);
  }
  ::close(started[1]);
  char byte;
  EXPECT_EQ(::read(started[0], &byte, 1), 1);
  ::close(started[0]);
  std::this_thread::sleep_for(delay);
  ::kill(child, SIGKILL);
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL)
      << "the child ended by itself, with status " << status;
}

}  // namespace lockstep::testing
