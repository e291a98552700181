// The device language for a plain C++ compiler: force-included before every .cu of the simulated build.
// Types, half precision and the runtime API are NVIDIA's own headers; this adds what only nvcc provides. What
// is missing here fails to compile, which is the intended way to learn of it.
#pragma once

#define LOCKSTEP_SIMGPU 1
// One block runs at a time, so a block's shared variables can be ordinary static ones.
#undef __shared__
#define __shared__ static
#define __launch_bounds__(...)

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <cmath>
#include <cstdint>
#include <type_traits>

#undef __cluster_dims__
#define __cluster_dims__(...)
#undef __maxnreg__
#define __maxnreg__(...)

// Variables, not macros: cudaLaunchConfig_t has members of these names. In a section of their own, which the
// checker ignores.
#define SIMGPU_BUILTIN __attribute__((section("simgpu_builtin")))
extern uint3 threadIdx SIMGPU_BUILTIN;
extern uint3 blockIdx SIMGPU_BUILTIN;
extern uint3 blockDim SIMGPU_BUILTIN;
extern uint3 gridDim SIMGPU_BUILTIN;
constexpr int warpSize = 32;

#define SIMGPU_UNCHECKED __attribute__((no_sanitize("thread")))

namespace simgpu {

void* dynamic_shared();
// Waits for the lanes of `mask`, then returns what lane `source` gave (its own value if source is no lane of
// it).
uint64_t shuffle(unsigned mask, uint64_t value, int source);
unsigned ballot(unsigned mask, bool predicate);
void sync_warp(unsigned mask);
unsigned lane_id();
unsigned live_lanes();
void note_atomic(void* address, size_t bytes);

using Thunk = void (*)(const void* kernel, void* const* args);
void register_kernel(const void* kernel, const char* signature, Thunk thunk, const size_t* sizes, int count,
                     bool instrumented);

template <class... P, size_t... I>
SIMGPU_UNCHECKED void call_kernel(const void* kernel, void* const* args, std::index_sequence<I...>) {
  reinterpret_cast<void (*)(P...)>(const_cast<void*>(kernel))(*static_cast<std::decay_t<P>*>(args[I])...);
}
template <class... P>
SIMGPU_UNCHECKED void kernel_thunk(const void* kernel, void* const* args) {
  call_kernel<P...>(kernel, args, std::index_sequence_for<P...>{});
}

// Done by nvcc's own registration for real: tells the runtime the size of each parameter.
template <class... P>
void register_kernel(void (*kernel)(P...), const char* signature) {
  static_assert((std::is_trivially_copyable_v<std::decay_t<P>> && ...),
                "kernel parameters are copied bytewise");
  static const size_t sizes[] = {sizeof(std::decay_t<P>)..., 0};
#ifdef __SANITIZE_THREAD__
  constexpr bool instrumented = true;
#else
  constexpr bool instrumented = false;
#endif
  register_kernel(reinterpret_cast<const void*>(kernel), signature, &kernel_thunk<P...>, sizes, sizeof...(P),
                  instrumented);
}

// Threads of a kernel run one at a time, so a plain read, change and write is atomic.
template <class T, class F>
SIMGPU_UNCHECKED __attribute__((noinline)) T atomic_update(T* address, F change) {
  note_atomic(address, sizeof(T));
  const T old = *address;
  *address = change(old);
  return old;
}

}  // namespace simgpu

// Out of line, so that the place of the call is known.
void __syncthreads();
int __syncthreads_count(int predicate);
int __syncthreads_and(int predicate);
int __syncthreads_or(int predicate);
inline void __syncwarp(unsigned mask = 0xffffffffu) { simgpu::sync_warp(mask); }
inline unsigned __activemask() { return simgpu::live_lanes(); }
inline unsigned __ballot_sync(unsigned mask, int predicate) { return simgpu::ballot(mask, predicate != 0); }
inline int __any_sync(unsigned mask, int predicate) { return __ballot_sync(mask, predicate) != 0; }
inline int __all_sync(unsigned mask, int predicate) { return __ballot_sync(mask, !predicate) == 0; }
inline void __threadfence() {}
inline void __threadfence_block() {}

namespace simgpu {
template <class T>
SIMGPU_UNCHECKED T shuffle_value(unsigned mask, T value, int source) {
  static_assert(sizeof(T) <= 8);
  uint64_t bits = 0;
  __builtin_memcpy(&bits, &value, sizeof(T));
  bits = shuffle(mask, bits, source);
  __builtin_memcpy(&value, &bits, sizeof(T));
  return value;
}
}  // namespace simgpu

template <class T>
T __shfl_sync(unsigned mask, T value, int lane, int width = 32) {
  const int first = static_cast<int>(simgpu::lane_id()) & ~(width - 1);
  return simgpu::shuffle_value(mask, value, first + (lane & (width - 1)));
}
template <class T>
T __shfl_down_sync(unsigned mask, T value, unsigned delta, int width = 32) {
  const int lane = static_cast<int>(simgpu::lane_id()), last = lane | (width - 1);
  const int source = lane + static_cast<int>(delta);
  return simgpu::shuffle_value(mask, value, source > last ? lane : source);
}
template <class T>
T __shfl_up_sync(unsigned mask, T value, unsigned delta, int width = 32) {
  const int lane = static_cast<int>(simgpu::lane_id()), first = lane & ~(width - 1);
  const int source = lane - static_cast<int>(delta);
  return simgpu::shuffle_value(mask, value, source < first ? lane : source);
}
template <class T>
T __shfl_xor_sync(unsigned mask, T value, int lane_mask, int width = 32) {
  const int lane = static_cast<int>(simgpu::lane_id()), source = lane ^ lane_mask;
  return simgpu::shuffle_value(mask, value, source > (lane | (width - 1)) ? lane : source);
}

template <class T>
T atomicAdd(T* p, std::type_identity_t<T> v) {
  return simgpu::atomic_update(p, [v](T old) { return static_cast<T>(old + v); });
}
template <class T>
T atomicSub(T* p, std::type_identity_t<T> v) {
  return simgpu::atomic_update(p, [v](T old) { return static_cast<T>(old - v); });
}
template <class T>
T atomicExch(T* p, std::type_identity_t<T> v) {
  return simgpu::atomic_update(p, [v](T) { return v; });
}
template <class T>
T atomicMin(T* p, std::type_identity_t<T> v) {
  return simgpu::atomic_update(p, [v](T old) { return v < old ? v : old; });
}
template <class T>
T atomicMax(T* p, std::type_identity_t<T> v) {
  return simgpu::atomic_update(p, [v](T old) { return old < v ? v : old; });
}
template <class T>
T atomicOr(T* p, std::type_identity_t<T> v) {
  return simgpu::atomic_update(p, [v](T old) { return static_cast<T>(old | v); });
}
template <class T>
T atomicAnd(T* p, std::type_identity_t<T> v) {
  return simgpu::atomic_update(p, [v](T old) { return static_cast<T>(old & v); });
}
template <class T>
T atomicCAS(T* p, std::type_identity_t<T> expected, std::type_identity_t<T> desired) {
  return simgpu::atomic_update(p, [=](T old) { return old == expected ? desired : old; });
}

#include "simgpu/device_math.h"
