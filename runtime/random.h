// Counter-based random numbers: Philox4x32-10 (Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2,
// 3"). Element i of a call that starts at offset o is lane i % 4 of block o + i / 4, so the numbers are the
// same for any number of threads and on every device; a state is (seed, offset).
#pragma once

#include <array>
#include <cstdint>
#include <mutex>

#include "lockstep/runtime/kernel.h"
#include "lockstep/runtime/tensor.h"

namespace lockstep {

struct Philox {
  uint64_t seed = 0;
  LOCKSTEP_HD std::array<uint32_t, 4> operator()(uint64_t block, uint64_t stream = 0) const {
    uint32_t x0 = uint32_t(block), x1 = uint32_t(block >> 32), x2 = uint32_t(stream),
             x3 = uint32_t(stream >> 32);
    uint32_t k0 = uint32_t(seed), k1 = uint32_t(seed >> 32);
    for (int round = 0; round < 10; round++) {
      uint64_t a = uint64_t(0xD2511F53u) * x0, b = uint64_t(0xCD9E8D57u) * x2;
      x0 = uint32_t(b >> 32) ^ x1 ^ k0;
      x1 = uint32_t(b);
      x2 = uint32_t(a >> 32) ^ x3 ^ k1;
      x3 = uint32_t(a);
      k0 += 0x9E3779B9u;
      k1 += 0xBB67AE85u;
    }
    return {x0, x1, x2, x3};
  }
};

// In [0, 1), 24 bits.
LOCKSTEP_HD inline float uniform_float(uint32_t word) { return float(word >> 8) * 0x1p-24f; }

struct RandomState {
  uint64_t seed = 0;
  uint64_t offset = 0;  // the next unused block
  friend bool operator==(const RandomState&, const RandomState&) = default;
};

// Thread-safe; what several threads draw at the same time is disjoint but in no fixed order.
class Generator {
 public:
  explicit Generator(uint64_t seed = 0) : state_{seed, 0} {}
  RandomState state() const;
  void set_state(const RandomState& state);
  // Takes the blocks for `numbers` 32-bit numbers and returns the state at which they start.
  RandomState reserve(int64_t numbers);

 private:
  mutable std::mutex mutex_;
  RandomState state_;
};

// The calling thread's generator: the process-wide one unless a GeneratorGuard is active.
Generator& generator();
void manual_seed(uint64_t seed);  // restarts generator() at (seed, 0)

class GeneratorGuard {
 public:
  explicit GeneratorGuard(Generator& generator);
  ~GeneratorGuard();
  GeneratorGuard(const GeneratorGuard&) = delete;
  GeneratorGuard& operator=(const GeneratorGuard&) = delete;

 private:
  Generator* previous_;
};

// In place, from generator(); floating dtypes. Not recorded.
void uniform_(Tensor& x, double low = 0, double high = 1);  // [low, high)
void normal_(Tensor& x, double mean = 0, double std = 1);   // Box & Muller 1958
Tensor rand(const Shape& shape, DType dtype = DType::float32, Device device = {});
Tensor randn(const Shape& shape, DType dtype = DType::float32, Device device = {});

LOCKSTEP_KERNEL(uniform_fill, Tensor& x, double low, double high, RandomState start, Stream s)
LOCKSTEP_KERNEL(normal_fill, Tensor& x, double mean, double std, RandomState start, Stream s)

}  // namespace lockstep
