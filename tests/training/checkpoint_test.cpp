#include "lockstep/training/checkpoint.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <random>
#include <set>

#include "tests/training/kill_test.h"
#include "tests/training/small_disk.h"
#include "tests/training/test_files.h"

namespace lockstep {
namespace {

using testing::expect_error;
using testing::read_bytes;
using testing::SmallDisk;
using testing::TempFolder;

Tensor filled(int64_t elements, double value) {
  return from_vector(
      std::vector<float>(size_t(elements), float(value)));  // no threads: forked processes call this
}

// All of it says `step`, so that a mixture of two would show.
Checkpoint at_step(int64_t step, int64_t elements = 1000) {
  Checkpoint c;
  c.model = {{"conv.weight", filled(elements, double(step))},
             {"fc.bias", from_vector<double>({double(step), 0, 1})}};
  c.optimizer = {{"conv.weight.momentum", filled(elements, -double(step))}, {"step", scalar<int64_t>(step)}};
  c.schedule = {{"last", scalar<double>(0.1 * double(step))}};
  c.random = {uint64_t(step) + UINT64_MAX / 2, uint64_t(step)};
  c.epoch = step / 10;
  c.batch = step % 10;
  c.step = step;
  c.metadata = {{"arguments", "--epochs 3"}, {"model", "lenet"}};
  return c;
}

void expect_at_step(const Checkpoint& c, int64_t step, int64_t elements = 1000) {
  Checkpoint expected = at_step(step, elements);
  for (auto part : {&Checkpoint::model, &Checkpoint::optimizer, &Checkpoint::schedule}) {
    ASSERT_EQ((c.*part).size(), (expected.*part).size());
    for (size_t i = 0; i < (c.*part).size(); i++) {
      const auto& [name, x] = (c.*part)[i];
      const auto& [expected_name, y] = (expected.*part)[i];
      EXPECT_EQ(name, expected_name);
      EXPECT_EQ(x.dtype(), y.dtype());
      ASSERT_EQ(x.shape(), y.shape());
      EXPECT_EQ(std::memcmp(x.raw_data(), y.raw_data(), x.bytes()), 0) << name;
    }
  }
  EXPECT_EQ(c.random, expected.random);
  EXPECT_EQ(c.epoch, expected.epoch);
  EXPECT_EQ(c.batch, expected.batch);
  EXPECT_EQ(c.step, step);
  EXPECT_EQ(c.metadata, expected.metadata);
}

std::set<std::string> names_in(const std::string& folder) {
  std::set<std::string> names;
  for (auto& entry : std::filesystem::directory_iterator(folder))
    names.insert(entry.path().filename().string());
  return names;
}

TEST(Checkpoint, round_trip) {
  TempFolder folder;
  std::string checkpoints = folder.file("run/checkpoints");
  std::string path = save_checkpoint(checkpoints, at_step(123));
  EXPECT_EQ(path, checkpoints + "/checkpoint-000123.safetensors");
  for (const std::string& from : {path, checkpoints}) {
    Checkpoint c = load_checkpoint(from);
    expect_at_step(c, 123);
    EXPECT_EQ(c.path, path);
    EXPECT_TRUE(c.problems.empty());
  }
  EXPECT_EQ(read_safetensors(path)[0].first, "model.conv.weight");
}

TEST(Checkpoint, keeps_the_last_ones) {
  TempFolder folder;
  for (int64_t step : {9, 10, 999999, 1000000, 1000001}) save_checkpoint(folder.path(), at_step(step), 2);
  EXPECT_EQ(names_in(folder.path()),
            (std::set<std::string>{"checkpoint-1000000.safetensors", "checkpoint-1000001.safetensors"}));
  EXPECT_EQ(load_checkpoint(folder.path()).step, 1000001);
  for (int64_t step : {1000002, 1000003}) save_checkpoint(folder.path(), at_step(step), 0);
  EXPECT_EQ(names_in(folder.path()).size(), 4u);
  save_checkpoint(folder.path(), at_step(1000003), 1);  // the same step again
  EXPECT_EQ(names_in(folder.path()), (std::set<std::string>{"checkpoint-1000003.safetensors"}));
}

TEST(Checkpoint, a_run_that_went_back_supersedes_its_future) {
  TempFolder folder;
  for (int64_t step : {10, 20, 30}) save_checkpoint(folder.path(), at_step(step));
  save_checkpoint(folder.path(), at_step(12), 1);
  EXPECT_EQ(names_in(folder.path()), (std::set<std::string>{"checkpoint-000012.safetensors",
                                                            "checkpoint-000020.safetensors.superseded",
                                                            "checkpoint-000030.safetensors.superseded"}));
  expect_at_step(load_checkpoint(folder.path()), 12);
}

TEST(Checkpoint, damaged_newest_is_told_and_the_previous_is_used) {
  TempFolder folder(TempFolder::Where::memory);
  for (int64_t step : {1, 2, 3}) save_checkpoint(folder.path(), at_step(step));
  std::string newest = folder.file("checkpoint-000003.safetensors"), bytes = read_bytes(newest);
  // Every eleventh byte, of the header and of the data; a changed space of the padding is all that may go
  // unseen.
  for (size_t at = 0; at < bytes.size(); at += 11) {
    std::string damaged = bytes;
    damaged[at] ^= 4;
    folder.write("checkpoint-000003.safetensors", damaged);
    Checkpoint c = load_checkpoint(folder.path());
    EXPECT_EQ(c.step, 2) << "byte " << at;
    ASSERT_EQ(c.problems.size(), 1u);
    EXPECT_NE(c.problems[0].find(newest), std::string::npos);
    expect_error([&] { load_checkpoint(newest); }, {newest});
  }
  folder.write("checkpoint-000003.safetensors", "");
  folder.write("checkpoint-000002.safetensors", bytes.substr(0, bytes.size() / 2));
  Checkpoint c = load_checkpoint(folder.path());
  expect_at_step(c, 1);
  EXPECT_EQ(c.problems.size(), 2u);
  folder.write("checkpoint-000001.safetensors", "x");
  expect_error([&] { load_checkpoint(folder.path()); },
               {"no usable checkpoint", "checkpoint-000001", "checkpoint-000002", "checkpoint-000003"});
}

TEST(Checkpoint, something_else_is_refused) {
  TempFolder folder;
  expect_error([&] { load_checkpoint(folder.path()); }, {"no checkpoint-*.safetensors", folder.path()});
  expect_error([&] { load_checkpoint(folder.file("nowhere")); }, {"nowhere", "No such file"});
  std::string weights = folder.file("weights.safetensors");
  write_safetensors(weights, {{"w", zeros({2})}});
  expect_error([&] { load_checkpoint(weights); }, {weights, "no checkpoint"});
  write_safetensors(weights, {{"w", zeros({2})}}, {{"lockstep.format", "checkpoint 2"}});
  expect_error([&] { load_checkpoint(weights); }, {weights, "checkpoint 2", "checkpoint 1"});
  expect_error([&] { load_checkpoint(folder.write("digit.png", "\x89PNG not a checkpoint at all")); },
               {"digit.png", "header"});

  folder.write("checkpoint-abc.safetensors", "not by us");
  folder.write("checkpoint-7.safetensors.bak", "not by us");
  expect_error([&] { load_checkpoint(folder.path()); }, {"no checkpoint-*.safetensors"});
  Checkpoint bad = at_step(1);
  bad.metadata["lockstep.step"] = "7";
  expect_error([&] { save_checkpoint(folder.path(), bad); }, {"lockstep.step", "reserved"});
  bad = at_step(1);
  bad.model.emplace_back("w", Tensor());
  expect_error([&] { save_checkpoint(folder.path(), bad); }, {"model.w", "undefined"});
  expect_error([&] { save_checkpoint(folder.path(), at_step(-1)); }, {"step -1"});
  expect_error([&] { save_checkpoint(folder.path(), at_step(1), -1); }, {"keep_last -1"});
  expect_error([&] { save_checkpoint(weights, at_step(1)); }, {weights});
}

TEST(Cases, C55_kill_while_saving) {
  constexpr int64_t kElements = 50000;  // 200 kB of weights and as much of momentum
  TempFolder folder(TempFolder::Where::memory);
  save_checkpoint(folder.path(), at_step(0, kElements), 2);
  std::minstd_rand random(1);
  int64_t last = 0, advanced = 0;
  for (int kill = 0; kill < 200; kill++) {
    testing::kill_while_writing(std::chrono::microseconds(random() % 8000), [&](int i) {
      save_checkpoint(folder.path(), at_step(last + 1 + i, kElements), 2);
    });
    Checkpoint c = load_checkpoint(folder.path());
    ASSERT_TRUE(c.problems.empty()) << c.problems[0];
    ASSERT_GE(c.step, last);
    expect_at_step(c, c.step, kElements);
    if (::testing::Test::HasFailure()) return;
    advanced += c.step > last;
    last = c.step;
  }
  EXPECT_GT(advanced, 20) << "the kills came before anything was saved";
  save_checkpoint(folder.path(), at_step(last + 1, kElements), 2);
  EXPECT_EQ(names_in(folder.path()).size(), 2u) << "what the killed ones left is gone";
}

TEST(Cases, C55_full_disk) {
  TempFolder folder;
  SmallDisk disk(folder.path(), 1 << 20);
  if (!disk.mounted()) GTEST_SKIP() << "mounting a small file system needs root";
  save_checkpoint(folder.path(), at_step(1, 80000));  // 640 kB
  std::string before = read_bytes(folder.file("checkpoint-000001.safetensors"));
  for (int64_t step : {2, 1})
    expect_error([&] { save_checkpoint(folder.path(), at_step(step, 80000)); },
                 {concat("checkpoint-00000", step, ".safetensors"), "No space left on device"});
  EXPECT_EQ(read_bytes(folder.file("checkpoint-000001.safetensors")), before);
  EXPECT_EQ(names_in(folder.path()).size(), 1u);
  expect_at_step(load_checkpoint(folder.path()), 1, 80000);
}

}  // namespace
}  // namespace lockstep
