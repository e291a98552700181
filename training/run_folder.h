// The folder that a run leaves behind:
//
//   runs/mnist-2026-12-01-134512/
//     config.toml     the flags of the run, to be given to --config
//     metrics.csv     one row per logged step and per epoch, on disk as soon as it is written
//     report.json     the result; there is one only if the run came to its end
//     checkpoints/    see checkpoint.h
//
// Errors name the file and the system's reason. Files other than metrics.csv are replaced whole or not at
// all.
#pragma once

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

namespace lockstep {

// The fields of report.json, in order.
class Report {
 public:
  using Value = std::variant<double, int64_t, std::string, bool>;

  Report& set(const std::string& name, Value value);  // replaces a field of that name
  std::string to_json() const;                        // a number that is not finite becomes null

 private:
  std::vector<std::pair<std::string, Value>> fields_;
};

class RunFolder {
 public:
  // Makes the folder and its parents. Throws Error if that cannot be done or if nothing can be written there.
  explicit RunFolder(const std::filesystem::path& path);

  // "<parent>/<job>-YYYY-MM-DD-hhmmss", in local time, with "-2", "-3" ... if that exists.
  static std::filesystem::path dated_path(const std::filesystem::path& parent, const std::string& job);

  const std::filesystem::path& path() const { return path_; }
  std::filesystem::path metrics() const { return path_ / "metrics.csv"; }
  std::filesystem::path report() const { return path_ / "report.json"; }
  std::filesystem::path config() const { return path_ / "config.toml"; }
  std::filesystem::path checkpoints() const { return path_ / "checkpoints"; }

  void write_config(std::string_view toml) const;
  void write_report(const Report& report) const;

 private:
  std::filesystem::path path_;
};

// metrics.csv. Numbers are written with as many digits as it takes to read the same bits back.
class MetricsFile {
 public:
  // Opens `path` for appending. Rows that are there and whose first column, a step, is above `last_step` are
  // dropped, as is a row that was cut off: a run that was killed and resumed leaves each step once. Throws
  // Error if the file has other columns.
  MetricsFile(const std::filesystem::path& path, std::vector<std::string> columns, int64_t last_step = 0);

  // One value per column, the step first; NaN leaves the cell empty. Throws Error if the disk is full.
  void append(const std::vector<double>& values);

 private:
  std::filesystem::path path_;
  size_t columns_;
  std::ofstream file_;
};

}  // namespace lockstep
