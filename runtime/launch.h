// How a kernel is launched, from .cu files only:
//   launch<row_sum_kernel<float>>(grid, block, shared_bytes, stream, x, y, n);
// Never kernel<<<...>>>, so that the same file compiles with nvcc and, for the simulated device of the tests,
// with a plain C++ compiler. The kernel is a template argument so that its name is known at compile time.
//
// Rules that make a .cu run on both: `__shared__` variables have no initialiser; dynamic shared memory is
// declared by LOCKSTEP_DYNAMIC_SHARED; no NULL stream; no memcpy or memset inside a kernel.
#pragma once

#include <cuda_runtime.h>

#include <utility>

#include "lockstep/runtime/cuda_check.h"

// Declares `name` as a pointer to the block's dynamic shared memory, inside a kernel.
#ifdef LOCKSTEP_SIMGPU
#define LOCKSTEP_DYNAMIC_SHARED(T, name) T* name = static_cast<T*>(::simgpu::dynamic_shared())
#else
#define LOCKSTEP_DYNAMIC_SHARED(T, name)                        \
  extern __shared__ __align__(16) char lockstep_shared_bytes[]; \
  T* name = reinterpret_cast<T*>(lockstep_shared_bytes)
#endif

namespace lockstep {

template <auto kernel>
constexpr const char* kernel_signature() {
  return __PRETTY_FUNCTION__;
}

template <class... Parameters, class... Args>
cudaError_t enqueue_kernel([[maybe_unused]] const char* signature, void (*kernel)(Parameters...), dim3 grid,
                           dim3 block, size_t shared_bytes, cudaStream_t stream, Args&&... args) {
#ifdef LOCKSTEP_SIMGPU
  ::simgpu::register_kernel(kernel, signature);
#endif
  cudaLaunchConfig_t config{};
  config.gridDim = grid;
  config.blockDim = block;
  config.dynamicSmemBytes = shared_bytes;
  config.stream = stream;
  return cudaLaunchKernelEx(&config, kernel, std::forward<Args>(args)...);
}

// Throws Error if the launch is refused. What goes wrong while the kernel runs is reported by a later call.
template <auto kernel, class... Args>
void launch(dim3 grid, dim3 block, size_t shared_bytes, cudaStream_t stream, Args&&... args) {
  const char* signature = kernel_signature<kernel>();
  const cudaError_t status =
      enqueue_kernel(signature, kernel, grid, block, shared_bytes, stream, std::forward<Args>(args)...);
  if (status != cudaSuccess) [[unlikely]]
    cuda_check(status, signature, "launch", 0);
}

// Must come before a launch with more than 48 KiB of dynamic shared memory.
template <auto kernel>
void allow_dynamic_shared(size_t bytes) {
#ifdef LOCKSTEP_SIMGPU
  ::simgpu::register_kernel(kernel, kernel_signature<kernel>());
#endif
  CUDA_CHECK(cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel),
                                  cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(bytes)));
}

}  // namespace lockstep
