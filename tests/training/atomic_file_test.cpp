#include "lockstep/training/atomic_file.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>

#include <algorithm>
#include <cstring>
#include <random>

#include "tests/training/kill_test.h"
#include "tests/training/small_disk.h"
#include "tests/training/test_files.h"

namespace lockstep {
namespace {

using testing::expect_error;
using testing::read_bytes;
using testing::SmallDisk;
using testing::TempFolder;

int64_t files_in(const std::string& folder) {
  return std::distance(std::filesystem::directory_iterator(folder), {});
}

TEST(AtomicFile, writes_and_replaces) {
  TempFolder folder;
  std::string path = folder.file("notes.txt");
  write_file_atomically(path, "first");
  EXPECT_EQ(read_bytes(path), "first");
  write_file_atomically(path, [](FileWriter& file) {
    for (int i = 0; i < 1000; i++) file.write("0123456789");
    file.write("", 0);
  });
  EXPECT_EQ(read_bytes(path).size(), 10000u);
  write_file_atomically(path, "");
  EXPECT_EQ(read_bytes(path), "");
  EXPECT_EQ(files_in(folder.path()), 1);
}

TEST(AtomicFile, an_error_leaves_the_old_file) {
  TempFolder folder;
  std::string path = folder.write("notes.txt", "old");
  auto throwing = [](FileWriter& file) {
    file.write("half of the new");
    throw Error("the model is not ready");
  };
  expect_error([&] { write_file_atomically(path, throwing); }, {"the model is not ready"});
  EXPECT_EQ(read_bytes(path), "old");
  EXPECT_EQ(files_in(folder.path()), 1);

  expect_error([&] { write_file_atomically(folder.file("no/such/file"), "x"); },
               {"no/such/file", "No such file"});
  std::filesystem::create_directories(folder.file("full/of/things"));
  expect_error([&] { write_file_atomically(folder.file("full"), "x"); }, {"full", "directory"});
  EXPECT_EQ(files_in(folder.path()), 2);
}

TEST(AtomicFile, file_size_limit) {
  TempFolder folder;
  std::string path = folder.write("notes.txt", "old");
  rlimit before;
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
  auto old_handler = signal(SIGXFSZ, SIG_IGN);
  rlimit small{64 << 10, before.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &small), 0);
  expect_error([&] { write_file_atomically(path, std::string(1 << 20, 'x')); }, {path, "File too large"});
  setrlimit(RLIMIT_FSIZE, &before);
  signal(SIGXFSZ, old_handler);
  EXPECT_EQ(read_bytes(path), "old");
  EXPECT_EQ(files_in(folder.path()), 1);
}

TEST(AtomicFile, full_and_read_only_disk) {
  TempFolder folder;
  SmallDisk disk(folder.path(), 1 << 20);
  if (!disk.mounted()) GTEST_SKIP() << "mounting a small file system needs root";
  std::string path = folder.file("notes.txt");
  write_file_atomically(path, std::string(600 << 10, 'a'));
  expect_error([&] { write_file_atomically(path, std::string(600 << 10, 'b')); },
               {path, "No space left on device"});
  EXPECT_EQ(read_bytes(path), std::string(600 << 10, 'a'));
  EXPECT_EQ(files_in(folder.path()), 1);
  write_file_atomically(path, std::string(400 << 10, 'c'));  // the room is there again
  EXPECT_EQ(read_bytes(path), std::string(400 << 10, 'c'));

  if (!disk.make_read_only()) GTEST_SKIP() << "the file system cannot be made read-only";
  expect_error([&] { write_file_atomically(path, "new"); }, {path, "Read-only file system"});
  EXPECT_EQ(read_bytes(path), std::string(400 << 10, 'c'));
}

TEST(AtomicFile, stray_temporaries_go_but_not_those_in_use) {
  TempFolder folder;
  std::string path = folder.file("run-1.bin");
  folder.write("run-1.bin.tmp-4711-0", "left by a killed process");
  folder.write("other.bin.tmp-4711-0", "not ours");
  write_file_atomically(path, [&](FileWriter& file) {
    file.write("new");
    EXPECT_EQ(files_in(folder.path()), 3);
    remove_stray_temporaries(folder.path(), "run-");
    EXPECT_EQ(files_in(folder.path()), 2);
  });
  EXPECT_EQ(read_bytes(path), "new");
  EXPECT_EQ(read_bytes(folder.file("other.bin.tmp-4711-0")), "not ours");
  remove_stray_temporaries(folder.file("nowhere"), "");
}

// Kills `write(path, bytes)` at random moments. True as soon as what is left is neither an old nor a new
// file.
template <class F>
bool kill_damages(F&& write, int kills) {
  constexpr size_t kBytes = 1 << 20;
  TempFolder folder(TempFolder::Where::memory);
  std::string path = folder.write("letters", std::string(kBytes, 'a'));
  std::minstd_rand random(1);
  for (int kill = 0; kill < kills; kill++) {
    testing::kill_while_writing(std::chrono::microseconds(random() % 8000),
                                [&](int i) { write(path, std::string(kBytes, char('a' + i % 26))); });
    std::string left = read_bytes(path);
    if (left.size() != kBytes || left.find_first_not_of(left[0]) != left.npos) return true;
  }
  return false;
}

TEST(AtomicFile, a_kill_leaves_the_old_file_or_the_new_one) {
  EXPECT_FALSE(kill_damages(
      [](const std::string& path, std::string_view bytes) { write_file_atomically(path, bytes); }, 100));
}

TEST(Planted, a_write_that_is_not_atomic_is_caught) {
  EXPECT_TRUE(kill_damages(
      [](const std::string& path, std::string_view bytes) { std::ofstream(path, std::ios::binary) << bytes; },
      1000));
}

}  // namespace
}  // namespace lockstep
