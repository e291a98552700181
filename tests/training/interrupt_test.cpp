#include "lockstep/training/interrupt.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include "lockstep/runtime/check.h"

namespace lockstep {
namespace {

sighandler_t handler_of(int number) {
  struct sigaction action = {};
  sigaction(number, nullptr, &action);
  return action.sa_handler;
}

TEST(Interrupt, NotesTheFirstSignalAndRestoresTheHandlers) {
  ASSERT_EQ(handler_of(SIGTERM), SIG_DFL);
  {
    InterruptGuard guard;
    EXPECT_EQ(guard.signal(), 0);
    raise(SIGTERM);
    EXPECT_EQ(guard.signal(), SIGTERM);
    raise(SIGINT);
    EXPECT_EQ(guard.signal(), SIGTERM);
  }
  EXPECT_EQ(handler_of(SIGTERM), SIG_DFL);
  EXPECT_EQ(handler_of(SIGINT), SIG_DFL);
  InterruptGuard again;
  EXPECT_EQ(again.signal(), 0);
}

TEST(Interrupt, NothingIsInstalledUnlessAsked) {
  EXPECT_EQ(handler_of(SIGINT), SIG_DFL);
  EXPECT_EQ(handler_of(SIGTERM), SIG_DFL);
}

TEST(Interrupt, ASecondGuardIsRefusedAndTheFirstStays) {
  InterruptGuard guard;
  EXPECT_THROW(InterruptGuard(), Error);
  raise(SIGINT);
  EXPECT_EQ(guard.signal(), SIGINT);
}

TEST(Interrupt, WhatTheCallerIgnoresStaysIgnored) {
  auto previous = signal(SIGINT, SIG_IGN);
  {
    InterruptGuard guard;
    raise(SIGINT);
    EXPECT_EQ(guard.signal(), 0);
  }
  EXPECT_EQ(handler_of(SIGINT), SIG_IGN);
  signal(SIGINT, previous);
}

TEST(Interrupt, ASecondSignalEndsTheProcess) {
  pid_t child = fork();
  if (child == 0) {
    InterruptGuard guard;
    raise(SIGTERM);
    raise(SIGTERM);
    _exit(0);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFSIGNALED(status));
  EXPECT_EQ(WTERMSIG(status), SIGTERM);
}

}  // namespace
}  // namespace lockstep
