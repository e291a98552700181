// What the benchmark programs share: flags, medians, and the one JSON line that compare.py reads.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <map>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>
#include <vector>

#include "lockstep/runtime/parallel.h"
#include "lockstep/training/progress.h"

namespace lockstep::bench {

// "--name value" pairs; a name that is not known is an error.
class Flags {
 public:
  Flags(int argc, char** argv, std::map<std::string, std::string> defaults) : values_(std::move(defaults)) {
    for (int i = 1; i < argc; i += 2) {
      auto known = values_.find(argv[i]);
      if (known == values_.end() || i + 1 == argc)
        throw std::runtime_error("unknown flag or no value: " + std::string(argv[i]));
      known->second = argv[i + 1];
    }
    set_num_threads(std::stoi(values_.at("--threads")));
  }
  const std::string& text(const std::string& name) const { return values_.at(name); }
  int integer(const std::string& name) const { return std::stoi(values_.at(name)); }

 private:
  std::map<std::string, std::string> values_;
};

inline double milliseconds() {
  return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

inline double median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + long(values.size() / 2), values.end());
  return values[values.size() / 2];
}

// The median time of body(), which runs `warmup` times before it counts.
template <class F>
double median_ms(int warmup, int steps, F&& body) {
  std::vector<double> times;
  for (int i = 0; i < warmup + steps; i++) {
    double start = milliseconds();
    body();
    if (i >= warmup) times.push_back(milliseconds() - start);
  }
  return median(times);
}

inline void print_result(nlohmann::json result) {
  result["rss_mb"] = double(peak_resident_bytes()) / 1e6;
  std::puts(result.dump().c_str());
}

// main(): errors to standard error, exit code 1.
template <class F>
int guarded(const char* program, F&& body) {
  try {
    body();
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s: %s\n", program, error.what());
    return 1;
  }
}

}  // namespace lockstep::bench
