// Means over an epoch.
#pragma once

#include <cstdint>
#include <limits>

namespace lockstep {

// The mean of a value over samples, from the means of batches of any sizes: a short last batch counts for
// what it holds.
class Mean {
 public:
  void add(double batch_mean, int64_t samples) {
    if (samples <= 0) return;  // an empty batch has no mean: 0 * NaN must not spoil the rest
    sum_ += batch_mean * double(samples);
    samples_ += samples;
  }
  double value() const {
    return samples_ ? sum_ / double(samples_) : std::numeric_limits<double>::quiet_NaN();
  }
  int64_t samples() const { return samples_; }
  void reset() { *this = Mean(); }

 private:
  double sum_ = 0;
  int64_t samples_ = 0;
};

}  // namespace lockstep
