#pragma once

#include <cstdint>
#include <utility>
#include <vector>

namespace simgpu {

// Small deterministic generator (splitmix64, Steele et al. 2014), the same on every platform.
struct Rng {
  uint64_t state = 1;
  uint64_t next() {
    uint64_t z = (state += 0x9e3779b97f4a7c15u);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
  }
  uint32_t below(uint32_t n) { return static_cast<uint32_t>(((next() >> 32) * n) >> 32); }
  bool chance(uint32_t one_in) { return below(one_in) == 0; }
};

template <class T>
void shuffle_order(std::vector<T>& items, Rng& rng) {
  for (size_t i = items.size(); i > 1; --i)
    std::swap(items[i - 1], items[rng.below(static_cast<uint32_t>(i))]);
}

}  // namespace simgpu
