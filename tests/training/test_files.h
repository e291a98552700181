// Files for tests: a folder that is removed again, reading and writing whole files, and a check of error
// messages.
#pragma once

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <initializer_list>
#include <sstream>
#include <string>

#include "lockstep/runtime/check.h"

namespace lockstep::testing {

class TempFolder {
 public:
  // In memory: for tests of many small files, to which a disk adds nothing but time.
  enum class Where { disk, memory };
  explicit TempFolder(Where where = Where::disk) {
    std::filesystem::path parent = std::filesystem::temp_directory_path();
    if (where == Where::memory && std::filesystem::is_directory("/dev/shm")) parent = "/dev/shm";
    std::string name = (parent / "lockstep_test_XXXXXX").string();
    LOCKSTEP_CHECK(mkdtemp(name.data()), "no temporary folder ", name);
    path_ = name;
  }
  ~TempFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  TempFolder(const TempFolder&) = delete;
  TempFolder& operator=(const TempFolder&) = delete;
  std::string path() const { return path_.string(); }
  std::string file(const std::string& name) const { return (path_ / name).string(); }
  std::string write(const std::string& name, const std::string& bytes) const {
    std::ofstream(path_ / name, std::ios::binary) << bytes;
    return file(name);
  }

 private:
  std::filesystem::path path_;
};

inline std::string read_bytes(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return std::string(std::istreambuf_iterator<char>(file), {});
}

// `action` must throw lockstep::Error, and its message must have all the parts.
template <class F>
void expect_error(F&& action, std::initializer_list<std::string> parts) {
  try {
    action();
  } catch (const Error& error) {
    for (const std::string& part : parts)
      EXPECT_NE(std::string(error.what()).find(part), std::string::npos)
          << "\"" << part << "\" not in: " << error.what();
    return;
  } catch (const std::exception& error) {
    FAIL() << "threw something else than lockstep::Error: " << error.what();
  }
  FAIL() << "no error, expected one with \"" << (parts.size() ? *parts.begin() : "") << "\"";
}

}  // namespace lockstep::testing
