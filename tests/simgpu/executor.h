// Runs a kernel: block by block, the threads of a block as fibers. A fiber runs one thread after another;
// only when a thread parks at a barrier or in a warp collective does the next one start on another fiber, so
// a kernel without barriers is a plain loop.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <string>
#include <vector>

#include "simgpu/rng.h"
#include "simgpu/running.h"

namespace simgpu {

struct Kernel {
  const void* function = nullptr;
  std::string name;
  void (*thunk)(const void*, void* const*) = nullptr;
  std::vector<size_t> sizes;  // of the parameters
  bool instrumented = false;
  size_t max_dynamic_shared_bytes = 48 * 1024;
};

// Null if `function` was never registered.
Kernel* find_kernel(const void* function);

constexpr int kMaxThreads = 1024;
constexpr size_t kMaxSharedBytes = 227 * 1024;

struct Launch {
  const Kernel* kernel = nullptr;
  std::vector<std::byte> args;  // copies of the parameters, each 16-byte aligned
  std::vector<size_t> offsets;  // where each begins
  dim3 grid, block;
  size_t shared_bytes = 0;
};

// cudaSuccess, or why the kernel could not finish, which is then reported too. Needs the world's lock.
cudaError_t execute(const Launch& launch, Running& actor, Rng& rng);

bool on_fiber_stack(const void* address);
bool in_dynamic_shared(const void* address, size_t bytes);  // within what the launch asked for
bool near_dynamic_shared(const void* address);              // within the largest block of it there could be

}  // namespace simgpu
