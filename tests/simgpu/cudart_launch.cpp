// Kernel launches, host callbacks, and what can be asked of a kernel.
#include <cuda_runtime_api.h>

#include <cstring>

#include "simgpu/executor.h"
#include "simgpu/report.h"
#include "simgpu/scheduler.h"

namespace simgpu {
namespace {

cudaError_t check_shape(const Kernel& kernel, const cudaLaunchConfig_t& c) {
  const dim3 g = c.gridDim, b = c.blockDim;
  const uint64_t threads = uint64_t{b.x} * b.y * b.z;
  std::string wrong;
  if (threads == 0 || threads > kMaxThreads || b.x > 1024 || b.y > 1024 || b.z > 64)
    wrong = "a block of " + std::to_string(threads) + " threads";
  else if (g.x == 0 || g.y == 0 || g.z == 0 || g.x > 0x7fffffffu || g.y > 65535 || g.z > 65535)
    wrong = "a grid of " + std::to_string(g.x) + " x " + std::to_string(g.y) + " x " + std::to_string(g.z) +
            " blocks";
  else if (c.dynamicSmemBytes > kernel.max_dynamic_shared_bytes)
    wrong = std::to_string(c.dynamicSmemBytes) + " bytes of dynamic shared memory, " +
            std::to_string(kernel.max_dynamic_shared_bytes) + " allowed";
  if (wrong.empty()) return cudaSuccess;
  report("misuse", kernel.name + " is launched with " + wrong);
  return cudaErrorInvalidConfiguration;
}

cudaError_t launch(const cudaLaunchConfig_t& c, const void* function, void** args, const char* call) {
  World& w = world();
  Kernel* kernel = find_kernel(function);
  if (kernel == nullptr) {
    report("misuse", std::string(call) + " of a kernel that was not launched by lockstep::launch");
    return cudaErrorInvalidDeviceFunction;
  }
  Stream* stream = stream_of(c.stream, call);
  if (stream == nullptr) return cudaErrorInvalidResourceHandle;
  if (stream->device != host.device) {
    report("misuse", kernel->name + " is launched on " + describe_stream(*stream) + " while device " +
                         std::to_string(host.device) + " is current");
    return cudaErrorInvalidResourceHandle;
  }
  if (cudaError_t status = check_shape(*kernel, c); status != cudaSuccess) return status;

  auto launch = std::make_shared<Launch>();
  launch->kernel = kernel;
  launch->grid = c.gridDim, launch->block = c.blockDim, launch->shared_bytes = c.dynamicSmemBytes;
  for (size_t i = 0; i < kernel->sizes.size(); ++i) {
    launch->offsets.push_back(launch->args.size());
    launch->args.resize(launch->args.size() + (kernel->sizes[i] + 15) / 16 * 16);
    std::memcpy(launch->args.data() + launch->offsets.back(), args[i], kernel->sizes[i]);
  }
  if (launch->args.size() > 32764) return cudaErrorInvalidValue;

  int fault = 0;
  for (auto it = w.faults.begin(); it != w.faults.end(); ++it)
    if (it->call == "kernel" && --it->countdown <= 0) {
      fault = it->status;
      w.faults.erase(it);
      break;
    }
  const double threads =
      double(c.gridDim.x) * c.gridDim.y * c.gridDim.z * c.blockDim.x * c.blockDim.y * c.blockDim.z;
  enqueue(
      stream, kernel->name, {},
      [launch, fault](Op&) {
        World& w = world();
        if (fault != 0) {
          w.lost = static_cast<cudaError_t>(fault);
          return;
        }
        if (!launch->kernel->instrumented) w.uninstrumented = true;
        running->whole_op = false;
        running->traced = w.config.check;
        w.lost = execute(*launch, *running, w.rng);
      },
      5 + threads / 1e5);
  return cudaSuccess;
}

}  // namespace
}  // namespace simgpu

using namespace simgpu;

extern "C" {

cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t* config, const void* function, void** args) {
  SIMGPU_CALL(cudaLaunchKernelExC);
  return finish(launch(*config, function, args, call.name()));
}

cudaError_t cudaLaunchKernel(const void* function, dim3 grid, dim3 block, void** args, size_t shared_bytes,
                             cudaStream_t stream) {
  SIMGPU_CALL(cudaLaunchKernel);
  cudaLaunchConfig_t config{};
  config.gridDim = grid, config.blockDim = block, config.dynamicSmemBytes = shared_bytes,
  config.stream = stream;
  return finish(launch(config, function, args, call.name()));
}

cudaError_t cudaLaunchHostFunc(cudaStream_t handle, cudaHostFn_t function, void* data) {
  SIMGPU_CALL(cudaLaunchHostFunc);
  Stream* stream = stream_of(handle, call.name());
  if (stream == nullptr) return finish(cudaErrorInvalidResourceHandle);
  auto work = std::make_shared<Work>();
  work->name = "host callback";
  work->kind = Work::callback;
  work->run = [function, data](Op&) { function(data); };
  enqueue(stream, std::move(work));
  return cudaSuccess;
}

cudaError_t cudaFuncSetAttribute(const void* function, cudaFuncAttribute attribute, int value) {
  SIMGPU_CALL(cudaFuncSetAttribute);
  Kernel* kernel = find_kernel(function);
  if (kernel == nullptr) return finish(cudaErrorInvalidDeviceFunction);
  if (attribute == cudaFuncAttributeMaxDynamicSharedMemorySize) {
    if (value < 0 || static_cast<size_t>(value) > kMaxSharedBytes) return finish(cudaErrorInvalidValue);
    kernel->max_dynamic_shared_bytes = static_cast<size_t>(value);
  }
  return cudaSuccess;
}

cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* attributes, const void* function) {
  SIMGPU_CALL(cudaFuncGetAttributes);
  Kernel* kernel = find_kernel(function);
  if (kernel == nullptr) return finish(cudaErrorInvalidDeviceFunction);
  *attributes = {};
  attributes->maxThreadsPerBlock = kMaxThreads;
  attributes->maxDynamicSharedSizeBytes = static_cast<int>(kernel->max_dynamic_shared_bytes);
  attributes->numRegs = 32;
  attributes->ptxVersion = attributes->binaryVersion = 90;
  return cudaSuccess;
}

cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, const void* function, int block_size,
                                                          size_t shared_bytes) {
  SIMGPU_CALL(cudaOccupancyMaxActiveBlocksPerMultiprocessor);
  if (block_size < 1 || block_size > kMaxThreads) return finish(cudaErrorInvalidValue);
  (void)function;
  *blocks = std::min(2048 / block_size, 32);
  if (shared_bytes > 0) *blocks = std::min(*blocks, static_cast<int>(kMaxSharedBytes / shared_bytes));
  return cudaSuccess;
}
}
