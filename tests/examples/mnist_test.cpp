// examples/mnist as a person runs it, on made digits: resuming, interrupting, mistakes. $1 of the whole:
// LOCKSTEP_MNIST_PROGRAM.
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <sstream>
#include <thread>

#include "tests/examples/made_digits.h"
#include "tests/examples/program.h"

namespace lockstep::test {
namespace {

namespace fs = std::filesystem;
using Words = std::vector<std::string>;

class MnistProgram : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = (fs::temp_directory_path() / "lockstep-mnist-XXXXXX").string();
    folder_ = mkdtemp(pattern.data());
    write_made_mnist(folder_ / "data", 320, 100);
  }
  void TearDown() override { fs::remove_all(folder_); }

  Words words(const Words& flags) const {
    Words all = {LOCKSTEP_MNIST_PROGRAM};
    all.insert(all.end(), flags.begin(), flags.end());
    return all;
  }
  // A run of 20 steps an epoch, each of them logged, with its own folder.
  Words training(const std::string& run, const Words& flags) const {
    Words all = words({"--data", (folder_ / "data").string(), "--run-dir", (folder_ / run).string(),
                       "--batch-size", "16", "--log-every", "1"});
    all.insert(all.end(), flags.begin(), flags.end());
    return all;
  }
  static std::string read(const fs::path& path) {
    std::ifstream file(path);
    return std::string(std::istreambuf_iterator<char>(file), {});
  }
  // What must not depend on threads or on being resumed: all of metrics.csv but the columns that tell the
  // time.
  std::string bits(const std::string& run) const {
    std::istringstream rows(read(folder_ / run / "metrics.csv"));
    std::string kept;
    for (std::string row; std::getline(rows, row);)
      kept += row.substr(0, row.rfind(',', row.rfind(',') - 1)) + "\n";
    return kept;
  }
  nlohmann::json report(const std::string& run) const {
    return nlohmann::json::parse(read(folder_ / run / "report.json"));
  }
  int checkpoints(const std::string& run) const {
    std::error_code error;
    int count = 0;
    for (const auto& entry : fs::directory_iterator(folder_ / run / "checkpoints", error))
      count += entry.path().extension() == ".safetensors";
    return count;
  }
  // Starts a run and sends a signal once it has saved a checkpoint.
  Result interrupt(const Words& command, const std::string& run, int signal) const {
    Program program(command);
    while (program.running() && checkpoints(run) == 0)
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    program.send(signal);
    return program.wait();
  }
  void expect_one_line(const Result& result, int code, const Words& parts) const {
    EXPECT_EQ(result.code, code) << result.out << result.error;
    EXPECT_EQ(std::count(result.error.begin(), result.error.end(), '\n'), 1) << result.error;
    for (const std::string& part : parts)
      EXPECT_NE(result.error.find(part), std::string::npos) << result.error << "lacks " << part;
  }

  fs::path folder_;
};

TEST_F(MnistProgram, TrainsAndReports) {
  Result result = run(training("run", {"--epochs", "4", "--lr", "0.02"}));
  ASSERT_EQ(result.code, 0) << result.error;
  nlohmann::json json = report("run");
  EXPECT_GE(json["test_accuracy"], 0.9);
  EXPECT_EQ(json["epochs"], 4);
  for (const char* field : {"test_loss", "train_images_per_second", "seconds", "peak_memory_bytes"}) {
    ASSERT_TRUE(json[field].is_number()) << field;
    EXPECT_GT(json[field].get<double>(), 0) << field;
  }
  EXPECT_NE(json["data"].get<std::string>().find((folder_ / "data").string()), std::string::npos);
  EXPECT_EQ(result.out.find('\r'), std::string::npos) << "a progress bar in a pipe";
  EXPECT_NE(result.out.find("epoch 4/4"), std::string::npos) << result.out;
  std::string rows = bits("run");
  EXPECT_EQ(std::count(rows.begin(), rows.end(), '\n'), 81);
}

TEST_F(MnistProgram, TheSameBitsForAnyNumberOfThreadsAndWorkers) {
  ASSERT_EQ(run(training("one", {"--epochs", "1", "--threads", "1", "--workers", "0"})).code, 0);
  ASSERT_EQ(run(training("two", {"--epochs", "1", "--threads", "2", "--workers", "3"})).code, 0);
  EXPECT_EQ(bits("one"), bits("two"));
  ASSERT_EQ(run(training("other", {"--epochs", "1", "--seed", "2"})).code, 0);
  EXPECT_NE(bits("one"), bits("other"));
}

TEST_F(MnistProgram, TheConfigOfARunRepeatsIt) {
  ASSERT_EQ(
      run(training("first", {"--epochs", "1", "--lr", "0.02", "--optimizer", "adamw", "--seed", "9"})).code,
      0);
  Result again = run(words({"--config", (folder_ / "first" / "config.toml").string(), "--run-dir",
                            (folder_ / "second").string()}));
  ASSERT_EQ(again.code, 0) << again.error;
  EXPECT_EQ(bits("first"), bits("second"));
}

// 40 steps in one go against a run that is stopped in the middle of an epoch and goes on in another process,
// with dropout, shuffling, augmentation and momentum.
class MnistResume : public MnistProgram, public ::testing::WithParamInterface<int> {};

TEST_P(MnistResume, C59_bit_exact) {
  Words flags = {"--epochs", "2", "--model", "cnn", "--shift", "1", "--save-every", "3"};
  ASSERT_EQ(run(training("whole", flags)).code, 0);
  Result stopped = interrupt(training("parts", flags), "parts", GetParam());
  ASSERT_EQ(stopped.code, 128 + GetParam()) << stopped.out << stopped.error;
  ASSERT_FALSE(fs::exists(folder_ / "parts" / "report.json"));
  ASSERT_NE(bits("parts"), bits("whole"));
  if (GetParam() != SIGKILL) {
    EXPECT_NE(stopped.out.find("--resume " + (folder_ / "parts").string()), std::string::npos) << stopped.out;
  }
  Result resumed = run(words({"--resume", (folder_ / "parts").string()}));
  ASSERT_EQ(resumed.code, 0) << resumed.error;
  EXPECT_EQ(bits("parts"), bits("whole"));
  EXPECT_EQ(report("parts")["test_loss"], report("whole")["test_loss"]);
}

INSTANTIATE_TEST_SUITE_P(Cases, MnistResume, ::testing::Values(SIGTERM, SIGINT, SIGKILL),
                         [](const auto& info) { return std::string(sigabbrev_np(info.param)); });

TEST_F(MnistProgram, ResumingAFinishedRunSaysSo) {
  ASSERT_EQ(run(training("run", {"--epochs", "1"})).code, 0);
  std::string before = bits("run");
  Result again = run(words({"--resume", (folder_ / "run").string()}));
  EXPECT_EQ(again.code, 0) << again.error;
  EXPECT_EQ(bits("run"), before);
}

TEST_F(MnistProgram, MistakesAreOneLineAndCodeTwo) {
  std::string data = (folder_ / "data").string();
  expect_one_line(run(words({"--frobnicate"})), 2, {"--frobnicate"});
  expect_one_line(run(words({"--epochs", "many"})), 2, {"--epochs", "many", "expected a whole number"});
  expect_one_line(run(words({"--lr", "-1"})), 2, {"--lr", "-1", "expected a number"});
  expect_one_line(run(words({"--lr", "nan"})), 2, {"--lr", "nan"});
  expect_one_line(run(words({"--batch-size", "0"})), 2, {"--batch-size", "'0'"});
  expect_one_line(run(words({"--optimizer", "lion"})), 2, {"--optimizer", "lion", "sgd,adam,adamw"});
  expect_one_line(run(words({"--model", "vgg"})), 2, {"--model", "vgg", "lenet,cnn"});
  expect_one_line(run(words({"--data", data, "--device", "cuda"})), 2, {"cuda"});
  expect_one_line(run(words({"--data", data, "--device", "meta"})), 2, {"meta", "cpu"});
  expect_one_line(run(words({"--config", "/nowhere.toml"})), 2, {"/nowhere.toml"});
  expect_one_line(run(words({"--data", "/nowhere"})), 2, {"/nowhere"});
  expect_one_line(run(words({"--data", folder_.string()})), 2, {folder_.string(), "train-images-idx3-ubyte"});
  expect_one_line(run(words({"--resume", "/nowhere"})), 2, {"/nowhere"});
  expect_one_line(run(words({"--resume", folder_.string()})), 2, {folder_.string()});
  expect_one_line(run(words({"--predict", "x.png"})), 2, {"--resume"});
}

TEST_F(MnistProgram, DamagedDataAreNamed) {
  fs::resize_file(folder_ / "data" / "mnist" / "train-images-idx3-ubyte", 1000);
  expect_one_line(run(training("run", {})), 2, {"train-images-idx3-ubyte"});
}

TEST_F(MnistProgram, AFolderThatCannotBeWrittenTo) {
  expect_one_line(run(words({"--data", (folder_ / "data").string(), "--run-dir", "/proc/lockstep"})), 2,
                  {"/proc/lockstep"});
}

TEST_F(MnistProgram, ResumeOfSomethingElse) {
  ASSERT_EQ(run(training("run", {"--epochs", "1"})).code, 0);
  std::ofstream(folder_ / "text.safetensors") << "this is no checkpoint";
  expect_one_line(run(words({"--resume", (folder_ / "text.safetensors").string()})), 2, {"text.safetensors"});
  // Flags that contradict the checkpoint are refused, not obeyed and not ignored.
  Words resume = words({"--resume", (folder_ / "run").string()});
  for (const Words& flag : {Words{"--model", "cnn"}, Words{"--batch-size", "32"}, Words{"--seed", "5"}}) {
    Words command = resume;
    command.insert(command.end(), flag.begin(), flag.end());
    expect_one_line(run(command), 2, {flag[0], flag[1]});
  }
}

TEST_F(MnistProgram, AFolderThatHoldsARunIsNotOverwritten) {
  ASSERT_EQ(run(training("run", {"--epochs", "1"})).code, 0);
  std::string before = bits("run");
  expect_one_line(run(training("run", {"--epochs", "1"})), 2, {"--resume", (folder_ / "run").string()});
  EXPECT_EQ(bits("run"), before);
}

TEST_F(MnistProgram, AFullDiskIsAFaultAndTheRunCanBeResumed) {
  Words flags = {"--epochs", "2"};
  ASSERT_EQ(run(training("whole", flags)).code, 0);
  ASSERT_EQ(interrupt(training("run", {"--epochs", "2", "--save-every", "3"}), "run", SIGTERM).code,
            128 + SIGTERM);
  int before = checkpoints("run");
  // Smaller than a checkpoint: saving fails, and what was there stays.
  Result full = run(words({"--resume", (folder_ / "run").string()}), {.file_bytes = 100'000});
  expect_one_line(full, 1, {"checkpoint", "File too large"});
  EXPECT_EQ(checkpoints("run"), before);
  ASSERT_EQ(run(words({"--resume", (folder_ / "run").string()})).code, 0);
  EXPECT_EQ(bits("run"), bits("whole"));
}

TEST_F(MnistProgram, Predicts) {
  ASSERT_EQ(run(training("run", {"--epochs", "5", "--lr", "0.02"})).code, 0);
  write_made_pgm(folder_ / "six.pgm", 6);
  for (const char* flag : {"--resume", "--run-dir"}) {
    Result result =
        run(words({"--predict", (folder_ / "six.pgm").string(), flag, (folder_ / "run").string()}));
    ASSERT_EQ(result.code, 0) << result.error;
    std::istringstream lines(result.out);
    double sum = 0, percent = 0;
    std::string sign;
    for (int digit = 0, expected = 0; expected < 10; expected++) {
      ASSERT_TRUE(lines >> digit >> percent >> sign) << result.out;
      EXPECT_EQ(digit, expected);
      sum += percent;
    }
    EXPECT_NEAR(sum, 100, 0.2);
    EXPECT_NE(result.out.find("this is a 6"), std::string::npos) << result.out;
  }
  std::ofstream(folder_ / "bad.png") << "no image";
  expect_one_line(
      run(words({"--predict", (folder_ / "bad.png").string(), "--resume", (folder_ / "run").string()})), 2,
      {"bad.png"});
  expect_one_line(run(words({"--predict", "/nowhere.png", "--resume", (folder_ / "run").string()})), 2,
                  {"/nowhere.png"});
}

TEST_F(MnistProgram, HelpListsTheFlagsAndDefaults) {
  Result help = run(words({"--help"}));
  EXPECT_EQ(help.code, 0);
  for (const char* part : {"--batch-size INT=64", "--optimizer", "--resume", "--config", "--predict"})
    EXPECT_NE(help.out.find(part), std::string::npos) << part;
}

}  // namespace
}  // namespace lockstep::test
