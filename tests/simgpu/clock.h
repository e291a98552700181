// Vector clocks: one component for each stream, counting its operations. Operation a happens before b if b's
// clock has reached a's number in a's stream. (Fidge 1988, Mattern 1989.)
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

namespace simgpu {

class Clock {
 public:
  uint32_t at(uint32_t stream) const { return stream < seen_.size() ? seen_[stream] : 0; }
  void set(uint32_t stream, uint32_t number) {
    if (stream >= seen_.size()) seen_.resize(stream + 1);
    seen_[stream] = number;
  }
  void join(const Clock& other) {
    if (other.seen_.size() > seen_.size()) seen_.resize(other.seen_.size());
    for (size_t i = 0; i < other.seen_.size(); ++i) seen_[i] = std::max(seen_[i], other.seen_[i]);
  }

 private:
  std::vector<uint32_t> seen_;
};

}  // namespace simgpu
