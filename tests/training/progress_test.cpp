#include "lockstep/training/progress.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <sstream>
#include <vector>

namespace lockstep {
namespace {

// A clock that the test moves.
struct Clock {
  double now = 100;
  ProgressOptions options(std::ostream& out, bool terminal) {
    ProgressOptions options;
    options.out = &out;
    options.terminal = terminal;
    options.seconds = [this] { return now; };
    return options;
  }
};

TEST(Progress, PlainLinesEveryFewSecondsAndAtTheEndOfAnEpoch) {
  Clock clock;
  std::ostringstream out;
  Progress progress(2, 10, clock.options(out, false));
  progress.begin_epoch(0);
  for (int step = 0; step < 10; step++) {
    clock.now += 1;
    progress.step(0.5, 0.25, 64);
  }
  progress.end_epoch("test accuracy 98.00 %");
  std::string text = out.str();
  EXPECT_EQ(text.find('\r'), std::string::npos);
  EXPECT_EQ(text.find('\x1b'), std::string::npos);
  // Ten seconds, a line each five: two lines, then the epoch's.
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 3) << text;
  EXPECT_NE(text.find("epoch 1/2   50 %  loss 0.5000  accuracy 25.00 %  64 images/s  0:15 left"),
            std::string::npos)
      << text;
  EXPECT_NE(text.find("epoch 1/2  test accuracy 98.00 %\n"), std::string::npos) << text;
}

TEST(Progress, TerminalRedrawsOneLineAtMostTenTimesASecond) {
  Clock clock;
  std::ostringstream out;
  {
    Progress progress(1, 1000, clock.options(out, true));
    progress.begin_epoch(0);
    for (int step = 0; step < 1000; step++) {
      clock.now += 0.001;
      progress.step(1, 0, 1);
    }
  }
  std::string text = out.str();
  EXPECT_EQ(text.find('\n'), std::string::npos);
  auto redraws = std::count(text.begin(), text.end(), '\r') - 1;  // one more clears the line at the end
  EXPECT_GE(redraws, 8);
  EXPECT_LE(redraws, 10);
  EXPECT_TRUE(text.ends_with("\r\x1b[K"));
}

TEST(Progress, QuietShowsMessagesOnly) {
  Clock clock;
  std::ostringstream out;
  ProgressOptions options = clock.options(out, false);
  options.quiet = true;
  Progress progress(1, 2, options);
  progress.begin_epoch(0);
  clock.now += 60;
  progress.step(1, 1, 1);
  progress.end_epoch("hidden");
  progress.message("saved");
  EXPECT_EQ(out.str(), "saved\n");
}

TEST(Progress, SpeedLeavesOutTheTimeBetweenEpochs) {
  Clock clock;
  std::ostringstream out;
  Progress progress(2, 2, clock.options(out, false));
  for (int epoch = 0; epoch < 2; epoch++) {
    progress.begin_epoch(epoch);
    for (int step = 0; step < 2; step++) {
      clock.now += 0.5;
      progress.step(1, 1, 100);
    }
    clock.now += 1000;  // an evaluation
    progress.end_epoch("");
  }
  EXPECT_DOUBLE_EQ(progress.samples_per_second(), 200);
  EXPECT_DOUBLE_EQ(progress.training_seconds(), 2);
  EXPECT_EQ(progress.samples(), 400);
}

TEST(Progress, TimeLeftOfAResumedRunCountsFromWhereItBegan) {
  Clock clock;
  std::ostringstream out;
  Progress progress(4, 10, clock.options(out, false));
  progress.begin_epoch(2, 5);  // 25 of 40 steps are done
  clock.now += 10;
  progress.step(1, 1, 1);
  EXPECT_NE(out.str().find("2:20 left"), std::string::npos) << out.str();  // 14 steps of 10 s
}

TEST(Progress, NumbersForPeople) {
  EXPECT_EQ(format_count(0), "0");
  EXPECT_EQ(format_count(999), "999");
  EXPECT_EQ(format_count(1000), "1,000");
  EXPECT_EQ(format_count(-1234567), "-1,234,567");
  EXPECT_EQ(format_count(-123), "-123");
  EXPECT_EQ(format_duration(0.4), "0:00");
  EXPECT_EQ(format_duration(59.6), "1:00");
  EXPECT_EQ(format_duration(3723), "1:02:03");
  EXPECT_EQ(format_duration(1e300), "?");
  EXPECT_EQ(format_duration(-1), "?");
}

TEST(Progress, MemoryOfTheProcess) {
  size_t before = resident_bytes();
  EXPECT_GT(before, 1u << 20);
  std::vector<char> block(64 << 20, 1);
  EXPECT_GE(resident_bytes(), before + (60u << 20) + size_t(block[1234]) - 1);
  EXPECT_GE(peak_resident_bytes(), before + (60u << 20));
}

}  // namespace
}  // namespace lockstep
