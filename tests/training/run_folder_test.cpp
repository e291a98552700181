#include "lockstep/training/run_folder.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/resource.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <nlohmann/json.hpp>
#include <sstream>

#include "lockstep/runtime/check.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;

class RunFolderTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = (fs::temp_directory_path() / "lockstep-run-XXXXXX").string();
    folder_ = mkdtemp(pattern.data());
  }
  void TearDown() override { fs::remove_all(folder_); }
  static std::string read(const fs::path& path) {
    std::ifstream file(path);
    return std::string(std::istreambuf_iterator<char>(file), {});
  }
  fs::path folder_;
};

std::string message_of(const std::function<void()>& action) {
  try {
    action();
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

TEST_F(RunFolderTest, MakesTheFolderAndLeavesNothingElse) {
  RunFolder run(folder_ / "a" / "b");
  EXPECT_TRUE(fs::is_directory(folder_ / "a" / "b"));
  EXPECT_TRUE(fs::is_empty(run.path()));
}

TEST_F(RunFolderTest, AFileInTheWayIsNamed) {
  std::ofstream(folder_ / "file") << "x";
  std::string message = message_of([&] { RunFolder run(folder_ / "file"); });
  EXPECT_NE(message.find((folder_ / "file").string()), std::string::npos) << message;
  message = message_of([&] { RunFolder run(folder_ / "file" / "below"); });
  EXPECT_NE(message.find("Not a directory"), std::string::npos) << message;
}

TEST_F(RunFolderTest, AFolderThatCannotBeWrittenToIsNamed) {
  // Root may write to a folder of any mode, but not here.
  std::string message = message_of([&] { RunFolder run("/proc/1"); });
  EXPECT_NE(message.find("/proc/1"), std::string::npos) << message;
}

TEST_F(RunFolderTest, DatedPathsDoNotCollide) {
  fs::path first = RunFolder::dated_path(folder_, "mnist");
  fs::create_directories(first);
  fs::path second = RunFolder::dated_path(folder_, "mnist");
  EXPECT_NE(first, second);
  EXPECT_TRUE(first.filename().string().starts_with("mnist-20")) << first;
}

TEST_F(RunFolderTest, ReportIsJsonInOrder) {
  Report report;
  report.set("test_accuracy", 0.99)
      .set("epochs", int64_t(3))
      .set("data", std::string("a \"b\" \xff"))
      .set("ok", true);
  report.set("test_loss", std::numeric_limits<double>::quiet_NaN()).set("epochs", int64_t(4));
  RunFolder run(folder_ / "run");
  run.write_report(report);
  std::string text = read(run.report());
  auto json = nlohmann::json::parse(text);
  EXPECT_EQ(json["test_accuracy"], 0.99);
  EXPECT_EQ(json["epochs"], 4);
  EXPECT_TRUE(json["test_loss"].is_null());
  EXPECT_EQ(json["ok"], true);
  EXPECT_LT(text.find("test_accuracy"), text.find("epochs"));
  EXPECT_EQ(std::distance(fs::directory_iterator(run.path()), {}), 1) << "a temporary file was left";
}

TEST_F(RunFolderTest, MetricsReadBackTheSameBits) {
  double value = 0.1f / 3.0f;
  {
    MetricsFile metrics(folder_ / "metrics.csv", {"step", "loss", "accuracy"});
    metrics.append({1, value, std::nan("")});
    // On disk now, not when the file is closed.
    std::string text = read(folder_ / "metrics.csv");
    EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 2);
  }
  std::istringstream text(read(folder_ / "metrics.csv"));
  std::string header, row;
  std::getline(text, header);
  std::getline(text, row);
  EXPECT_EQ(header, "step,loss,accuracy");
  ASSERT_TRUE(row.starts_with("1,") && row.ends_with(",")) << row;
  EXPECT_EQ(std::stod(row.substr(2)), value);
}

TEST_F(RunFolderTest, ResumedMetricsHoldEachStepOnce) {
  fs::path path = folder_ / "metrics.csv";
  {
    MetricsFile metrics(path, {"step", "loss"});
    for (int step = 1; step <= 5; step++) metrics.append({double(step), 1.5});
  }
  std::ofstream(path, std::ios::app) << "6,0.2";  // the program was killed here
  {
    MetricsFile metrics(path, {"step", "loss"}, 3);
    metrics.append({4, 2.5});
  }
  EXPECT_EQ(read(path), "step,loss\n1,1.5\n2,1.5\n3,1.5\n4,2.5\n");
}

TEST_F(RunFolderTest, MetricsOfAnotherKindAreRefusedAndKept) {
  fs::path path = folder_ / "metrics.csv";
  std::ofstream(path) << "time,loss\n1,2\n";
  std::string message = message_of([&] { MetricsFile metrics(path, {"step", "loss"}); });
  EXPECT_NE(message.find("time,loss"), std::string::npos) << message;
  EXPECT_EQ(read(path), "time,loss\n1,2\n");
}

// A limit on the size of files stands in for a full disk: the write fails half-way in the same manner.
TEST_F(RunFolderTest, AFullDiskIsAnError) {
  fs::path path = folder_ / "metrics.csv";
  MetricsFile metrics(path, {"step"});
  rlimit before{};
  getrlimit(RLIMIT_FSIZE, &before);
  auto handler = signal(SIGXFSZ, SIG_IGN);
  rlimit small = before;
  small.rlim_cur = 1000;
  setrlimit(RLIMIT_FSIZE, &small);
  std::string message = message_of([&] {
    for (int step = 0; step < 1000; step++) metrics.append({double(step)});
  });
  setrlimit(RLIMIT_FSIZE, &before);
  signal(SIGXFSZ, handler);
  EXPECT_NE(message.find("cannot write to " + path.string() + ": File too large"), std::string::npos)
      << message;
}

TEST_F(RunFolderTest, ARowOfTheWrongLengthIsRefused) {
  MetricsFile metrics(folder_ / "metrics.csv", {"step"});
  EXPECT_THROW(metrics.append({1, 2}), Error);
  EXPECT_EQ(read(folder_ / "metrics.csv"), "step\n");
}

}  // namespace
}  // namespace lockstep
