// Element types. float16 is IEEE 754 binary16, bfloat16 the upper half of a float32; both are storage types:
// kernels load them, compute in float and store with round-to-nearest-even.
#pragma once

#include <bit>
#include <cstdint>
#include <iosfwd>
#include <string_view>
#include <type_traits>

#include "lockstep/runtime/check.h"
#ifdef __F16C__
#include <immintrin.h>
#endif

namespace lockstep {

enum class DType : uint8_t { float64, float32, float16, bfloat16, int64, int32, uint8, boolean };

struct float16 {
  uint16_t bits = 0;
  float16() = default;
  float16(float value) : bits(from_float(value)) {}
  operator float() const { return to_float(bits); }
  static uint16_t from_float(float value);
  static float to_float(uint16_t bits);
};

struct bfloat16 {
  uint16_t bits = 0;
  bfloat16() = default;
  bfloat16(float value) : bits(from_float(value)) {}
  operator float() const { return std::bit_cast<float>(uint32_t(bits) << 16); }
  static uint16_t from_float(float value) {
    uint32_t word = std::bit_cast<uint32_t>(value);
    uint32_t rounded = (word + 0x7fffu + ((word >> 16) & 1)) >> 16;
    bool nan = (word & 0x7fffffffu) > 0x7f800000u;
    return uint16_t(nan ? (word >> 16) | 0x40u : rounded);
  }
};

inline float float16::to_float(uint16_t bits) {
#ifdef __F16C__
  return _cvtsh_ss(bits);
#else
  uint32_t sign = uint32_t(bits & 0x8000u) << 16, rest = bits & 0x7fffu;
  if (rest >= 0x7c00u)
    return std::bit_cast<float>(sign | 0x7f800000u | ((rest & 0x3ffu) << 13) |
                                (rest > 0x7c00u ? 0x400000u : 0u));
  // Multiplying by 2^112 moves the exponent bias from 15 to 127 and makes subnormals normal.
  return std::bit_cast<float>(sign | std::bit_cast<uint32_t>(std::bit_cast<float>(rest << 13) * 0x1p112f));
#endif
}

inline uint16_t float16::from_float(float value) {
#ifdef __F16C__
  return _cvtss_sh(value, _MM_FROUND_TO_NEAREST_INT);
#else
  uint32_t word = std::bit_cast<uint32_t>(value), sign = (word >> 16) & 0x8000u;
  float magnitude = std::bit_cast<float>(word & 0x7fffffffu);
  if (!(magnitude < 65520.0f)) return uint16_t(sign | (magnitude != magnitude ? 0x7e00u : 0x7c00u));
  if (magnitude < 0x1p-14f)  // subnormal: adding 0.5 leaves the rounded mantissa in the low bits
    return uint16_t(sign | (std::bit_cast<uint32_t>(magnitude + 0.5f) - 0x3f000000u));
  uint32_t bits = std::bit_cast<uint32_t>(magnitude);
  bits += 0xfffu + ((bits >> 13) & 1) - (112u << 23);
  return uint16_t(sign | (bits >> 13));
#endif
}

size_t element_size(DType dtype);    // bytes
std::string_view name(DType dtype);  // "float32", ... (bool is "bool")
std::ostream& operator<<(std::ostream& out, DType dtype);

inline bool is_floating(DType dtype) { return dtype <= DType::bfloat16; }

template <class T>
struct DTypeOf;
template <>
struct DTypeOf<double> {
  static constexpr DType value = DType::float64;
};
template <>
struct DTypeOf<float> {
  static constexpr DType value = DType::float32;
};
template <>
struct DTypeOf<float16> {
  static constexpr DType value = DType::float16;
};
template <>
struct DTypeOf<bfloat16> {
  static constexpr DType value = DType::bfloat16;
};
template <>
struct DTypeOf<int64_t> {
  static constexpr DType value = DType::int64;
};
template <>
struct DTypeOf<int32_t> {
  static constexpr DType value = DType::int32;
};
template <>
struct DTypeOf<uint8_t> {
  static constexpr DType value = DType::uint8;
};
template <>
struct DTypeOf<bool> {
  static constexpr DType value = DType::boolean;
};
template <class T>
inline constexpr DType dtype_of = DTypeOf<T>::value;

// The type in which values of T are computed: float for the 16-bit types, T itself otherwise.
template <class T>
using Compute = std::conditional_t<std::is_same_v<T, float16> || std::is_same_v<T, bfloat16>, float, T>;

// *y = value. In a loop over 16-bit elements say this rather than y[i] = T(value): assigning an object keeps GCC from
// vectorising.
template <class T>
inline void store(T* y, Compute<T> value) {
  if constexpr (std::is_same_v<T, Compute<T>>) *y = value;
  else y->bits = T::from_float(value);
}

// Calls f.template operator()<T>() with the C++ type of `dtype`:  dispatch_float(x.dtype(), [&]<class T>() {
// ... });
template <class F>
decltype(auto) dispatch_float(DType dtype, F&& f) {
  switch (dtype) {
    case DType::float64: return f.template operator()<double>();
    case DType::float32: return f.template operator()<float>();
    case DType::float16: return f.template operator()<float16>();
    case DType::bfloat16: return f.template operator()<bfloat16>();
    default: throw_error(concat("expected a floating-point dtype, got ", name(dtype)));
  }
}

template <class F>
decltype(auto) dispatch_all(DType dtype, F&& f) {
  switch (dtype) {
    case DType::int64: return f.template operator()<int64_t>();
    case DType::int32: return f.template operator()<int32_t>();
    case DType::uint8: return f.template operator()<uint8_t>();
    case DType::boolean: return f.template operator()<bool>();
    default: return dispatch_float(dtype, f);
  }
}

template <class F>
decltype(auto) dispatch_index(DType dtype, F&& f) {
  switch (dtype) {
    case DType::int64: return f.template operator()<int64_t>();
    case DType::int32: return f.template operator()<int32_t>();
    case DType::uint8: return f.template operator()<uint8_t>();
    default: throw_error(concat("expected an integer dtype, got ", name(dtype)));
  }
}

}  // namespace lockstep
