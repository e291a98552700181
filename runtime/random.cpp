#include "lockstep/runtime/random.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numbers>

#include "lockstep/runtime/parallel.h"
#include "lockstep/runtime/thread_state.h"

namespace lockstep {

RandomState Generator::state() const {
  std::lock_guard lock(mutex_);
  return state_;
}

void Generator::set_state(const RandomState& state) {
  std::lock_guard lock(mutex_);
  state_ = state;
}

RandomState Generator::reserve(int64_t numbers) {
  std::lock_guard lock(mutex_);
  RandomState start = state_;
  state_.offset += uint64_t(numbers + 3) / 4;
  return start;
}

Generator& generator() {
  static Generator& process_wide = *new Generator;  // never destroyed: used by whatever ends last
  Generator* own = thread_state().generator;
  return own ? *own : process_wide;
}

void manual_seed(uint64_t seed) { generator().set_state({seed, 0}); }

GeneratorGuard::GeneratorGuard(Generator& generator) : previous_(thread_state().generator) {
  thread_state().generator = &generator;
}
GeneratorGuard::~GeneratorGuard() { thread_state().generator = previous_; }

void uniform_(Tensor& x, double low, double high) {
  LOCKSTEP_CHECK(is_floating(x.dtype()), "[uniform_] got ", x.dtype(), ", expected a floating-point dtype");
  LOCKSTEP_CHECK(low <= high, "[uniform_] got low ", low, " above high ", high);
  LOCKSTEP_CHECK(x.is_contiguous(), "[uniform_] expected a contiguous tensor, got strides ", x.strides());
  LOCKSTEP_DISPATCH(current_stream(x.device()), uniform_fill, x, low, high, generator().reserve(x.numel()));
  x.bump_version();
}

void normal_(Tensor& x, double mean, double std) {
  LOCKSTEP_CHECK(is_floating(x.dtype()), "[normal_] got ", x.dtype(), ", expected a floating-point dtype");
  LOCKSTEP_CHECK(std >= 0, "[normal_] got std ", std, ", expected at least 0");
  LOCKSTEP_CHECK(x.is_contiguous(), "[normal_] expected a contiguous tensor, got strides ", x.strides());
  LOCKSTEP_DISPATCH(current_stream(x.device()), normal_fill, x, mean, std, generator().reserve(x.numel()));
  x.bump_version();
}

Tensor rand(const Shape& shape, DType dtype, Device device) {
  Tensor x = empty(shape, dtype, device);
  uniform_(x);
  return x;
}

Tensor randn(const Shape& shape, DType dtype, Device device) {
  Tensor x = empty(shape, dtype, device);
  normal_(x);
  return x;
}

namespace cpu {
namespace {

// x[i] = value(block, lane) for all elements, four to a block; chunks end on whole blocks.
template <class T, class F>
void fill_blocks(Tensor& x, const RandomState& start, F value) {
  T* out = x.data<T>();
  parallel_for(x.numel(), kElementGrain, [&](int64_t begin, int64_t end) {
    const Philox philox{start.seed};
    for (int64_t i = begin; i < end; i += 4) {
      auto words = philox(start.offset + uint64_t(i) / 4);
      for (int lane = 0; lane < 4 && i + lane < end; lane++)
        out[i + lane] = T(Compute<T>(value(words, lane)));
    }
  });
}

// The largest value of T below `limit`.
template <class T>
double largest_below(double limit) {
  T x = T(Compute<T>(limit));
  if (double(x) < limit) return double(x);
  if constexpr (std::is_same_v<T, Compute<T>>) {
    return double(std::nextafter(x, -std::numeric_limits<T>::infinity()));
  } else {
    // Sign and magnitude: one less towards zero, one more away from it; below zero lies the smallest
    // negative.
    x.bits = (x.bits & 0x7fff) == 0 ? 0x8001 : uint16_t(x.bits & 0x8000 ? x.bits + 1 : x.bits - 1);
    return double(x);
  }
}

}  // namespace

void uniform_fill(Tensor& x, double low, double high, RandomState start, Stream) {
  dispatch_float(x.dtype(), [&]<class T>() {
    // Rounding to T must not reach `high`; an interval with no value of T inside collapses to `low`.
    const double last = std::max(low, largest_below<T>(high));
    fill_blocks<T>(x, start, [=](const std::array<uint32_t, 4>& words, int lane) {
      return std::min(low + (high - low) * double(uniform_float(words[size_t(lane)])), last);
    });
  });
}

void normal_fill(Tensor& x, double mean, double std, RandomState start, Stream) {
  dispatch_float(x.dtype(), [&]<class T>() {
    fill_blocks<T>(x, start, [=](const std::array<uint32_t, 4>& words, int lane) {
      size_t pair = size_t(lane & 2);
      float radius = std::sqrt(-2 * std::log(1 - uniform_float(words[pair])));
      float angle = 2 * std::numbers::pi_v<float> * uniform_float(words[pair + 1]);
      return mean + std * double(radius * (lane & 1 ? std::sin(angle) : std::cos(angle)));
    });
  });
}

}  // namespace cpu
}  // namespace lockstep
