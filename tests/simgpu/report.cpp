#include "simgpu/report.h"

#include <cstdio>
#include <map>
#include <mutex>

#include "simgpu/world.h"

namespace simgpu {
namespace {

struct Book {
  std::mutex mutex;
  std::vector<Report> reports;
  std::map<std::string, size_t> index;  // kind and key -> place in reports

  // A program that never asked still hears of them.
  ~Book() {
    for (const Report& r : reports)
      std::fprintf(stderr, "simgpu: [%s] %s\n", r.kind.c_str(), r.message.c_str());
  }
};

Book& book() {
  static Book instance;
  return instance;
}

}  // namespace

void report(const std::string& kind, const std::string& message, const std::string& key) {
  Book& b = book();
  std::lock_guard lock(b.mutex);
  auto [it, added] = b.index.try_emplace(kind + '\n' + (key.empty() ? message : key), b.reports.size());
  if (added) b.reports.push_back({kind, message + " [seed " + std::to_string(world().config.seed) + "]"});
  else ++b.reports[it->second].count;
}

void report(const std::string& kind, const std::string& message, const Running& actor) {
  report(kind, describe_op(actor.who.op) + ": " + message, message);
}

std::vector<Report> take_reports() {
  if (host.last_error != cudaSuccess)
    report("dropped error", std::string(host.failed_call) + " returned " + cudaGetErrorName(host.last_error) +
                                " and nobody called cudaGetLastError since");
  host.last_error = cudaSuccess;
  Book& b = book();
  std::lock_guard lock(b.mutex);
  b.index.clear();
  return std::move(b.reports);
}

std::string describe(const std::vector<Report>& reports) {
  std::string text;
  for (const Report& r : reports) {
    text += "[" + r.kind + "] " + r.message;
    if (r.count > 1) text += " (" + std::to_string(r.count) + " times)";
    text += '\n';
  }
  return text;
}

}  // namespace simgpu
