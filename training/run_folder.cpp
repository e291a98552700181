#include "lockstep/training/run_folder.h"

#include <cerrno>
#include <charconv>
#include <cmath>
#include <cstring>
#include <ctime>
#include <nlohmann/json.hpp>

#include "lockstep/runtime/check.h"
#include "lockstep/training/atomic_file.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;

std::string system_reason() { return std::strerror(errno); }

std::string join(const std::vector<std::string>& columns) {
  std::string line;
  for (const std::string& column : columns) line += (line.empty() ? "" : ",") + column;
  return line;
}

// The shortest decimal number that reads back as the same double.
std::string shortest(double value) {
  char text[32];
  auto [end, error] = std::to_chars(text, text + sizeof text, value);
  return std::string(text, end);
}

}  // namespace

Report& Report::set(const std::string& name, Value value) {
  for (auto& [field, old] : fields_)
    if (field == name) {
      old = std::move(value);
      return *this;
    }
  fields_.emplace_back(name, std::move(value));
  return *this;
}

std::string Report::to_json() const {
  nlohmann::ordered_json json = nlohmann::ordered_json::object();
  for (const auto& [name, value] : fields_) std::visit([&](const auto& v) { json[name] = v; }, value);
  // A path need not be UTF-8; what is not is replaced rather than refused at the end of a run.
  return json.dump(2, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
}

RunFolder::RunFolder(const fs::path& path) : path_(path) {
  std::error_code error;
  fs::create_directories(path_, error);
  LOCKSTEP_CHECK(!error && fs::is_directory(path_), "[run folder] cannot make the folder ", path_.string(),
                 ": ", error ? error.message() : "there is a file of that name");
  // Found out now, not after the first epoch.
  fs::path probe = path_ / ".probe";
  errno = 0;
  std::ofstream file(probe);
  bool writable = file.put('\n').flush().good();
  std::string reason = system_reason();
  file.close();
  fs::remove(probe, error);
  LOCKSTEP_CHECK(writable, "[run folder] cannot write to the folder ", path_.string(), ": ", reason);
}

fs::path RunFolder::dated_path(const fs::path& parent, const std::string& job) {
  std::time_t now = std::time(nullptr);
  std::tm local{};
  localtime_r(&now, &local);
  char date[32];
  std::strftime(date, sizeof date, "%Y-%m-%d-%H%M%S", &local);
  fs::path first = parent / (job + "-" + date), path = first;
  for (int number = 2; fs::exists(path); number++) path = first.string() + "-" + std::to_string(number);
  return path;
}

void RunFolder::write_config(std::string_view toml) const { write_file_atomically(config().string(), toml); }

void RunFolder::write_report(const Report& report) const {
  write_file_atomically(this->report().string(), report.to_json());
}

MetricsFile::MetricsFile(const fs::path& path, std::vector<std::string> columns, int64_t last_step)
    : path_(path), columns_(columns.size()) {
  std::string header = join(columns), kept = header + "\n";
  std::ifstream old(path);
  if (std::string line; std::getline(old, line)) {
    LOCKSTEP_CHECK(line == header, "[metrics] ", path.string(), " has the columns '", line, "', expected '",
                   header, "'");
    // eof() after getline: the line has no end, so the program was stopped while it wrote it.
    while (std::getline(old, line) && !old.eof()) {
      int64_t step = 0;
      auto [end, error] = std::from_chars(line.data(), line.data() + line.size(), step);
      if (error == std::errc() && *end == ',' && step <= last_step) kept += line + "\n";
    }
  }
  old.close();
  write_file_atomically(path.string(), kept);
  errno = 0;
  file_.open(path, std::ios::app);
  LOCKSTEP_CHECK(file_.is_open(), "[metrics] cannot open ", path.string(), ": ", system_reason());
}

void MetricsFile::append(const std::vector<double>& values) {
  LOCKSTEP_CHECK(values.size() == columns_, "[metrics] a row of ", values.size(), " values, expected ",
                 columns_);
  std::string row;
  for (size_t i = 0; i < values.size(); i++) {
    if (i > 0) row += ",";
    if (!std::isnan(values[i])) row += shortest(values[i]);
  }
  errno = 0;
  file_ << row << "\n" << std::flush;
  LOCKSTEP_CHECK(file_.good(), "[metrics] cannot write to ", path_.string(), ": ", system_reason());
}

}  // namespace lockstep
