// Elements of any type as double, for the simulated libraries.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <library_types.h>

#include <cstddef>
#include <cstdint>

namespace simgpu {

enum class Type : uint8_t { f64, f32, f16, bf16, i8, u8, i32, u32, i64, u64 };

// False for a type that is not simulated.
inline bool type_of(cudaDataType t, Type* result) {
  switch (t) {
    case CUDA_R_64F: *result = Type::f64; return true;
    case CUDA_R_32F: *result = Type::f32; return true;
    case CUDA_R_16F: *result = Type::f16; return true;
    case CUDA_R_16BF: *result = Type::bf16; return true;
    default: return false;
  }
}

inline size_t size_of(Type t) {
  switch (t) {
    case Type::f64:
    case Type::i64:
    case Type::u64: return 8;
    case Type::f32:
    case Type::i32:
    case Type::u32: return 4;
    case Type::f16:
    case Type::bf16: return 2;
    default: return 1;
  }
}

inline double load(Type t, const void* base, size_t i) {
  switch (t) {
    case Type::f64: return static_cast<const double*>(base)[i];
    case Type::f32: return static_cast<const float*>(base)[i];
    case Type::f16: return __half2float(static_cast<const __half*>(base)[i]);
    case Type::bf16: return __bfloat162float(static_cast<const __nv_bfloat16*>(base)[i]);
    case Type::i8: return static_cast<const int8_t*>(base)[i];
    case Type::u8: return static_cast<const uint8_t*>(base)[i];
    case Type::i32: return static_cast<const int32_t*>(base)[i];
    case Type::u32: return static_cast<const uint32_t*>(base)[i];
    case Type::i64: return static_cast<double>(static_cast<const int64_t*>(base)[i]);
    case Type::u64: return static_cast<double>(static_cast<const uint64_t*>(base)[i]);
  }
  return 0;
}

inline void store(Type t, void* base, size_t i, double value) {
  switch (t) {
    case Type::f64: static_cast<double*>(base)[i] = value; break;
    case Type::f32: static_cast<float*>(base)[i] = static_cast<float>(value); break;
    case Type::f16: static_cast<__half*>(base)[i] = __float2half(static_cast<float>(value)); break;
    case Type::bf16:
      static_cast<__nv_bfloat16*>(base)[i] = __float2bfloat16(static_cast<float>(value));
      break;
    case Type::i8: static_cast<int8_t*>(base)[i] = static_cast<int8_t>(value); break;
    case Type::u8: static_cast<uint8_t*>(base)[i] = static_cast<uint8_t>(value); break;
    case Type::i32: static_cast<int32_t*>(base)[i] = static_cast<int32_t>(value); break;
    case Type::u32: static_cast<uint32_t*>(base)[i] = static_cast<uint32_t>(value); break;
    case Type::i64: static_cast<int64_t*>(base)[i] = static_cast<int64_t>(value); break;
    case Type::u64: static_cast<uint64_t*>(base)[i] = static_cast<uint64_t>(value); break;
  }
}

}  // namespace simgpu
