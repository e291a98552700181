// Allocation, copies and fills.
#include <cuda_runtime_api.h>

#include <cstring>

#include "simgpu/capture.h"
#include "simgpu/memory.h"
#include "simgpu/report.h"
#include "simgpu/scheduler.h"
#include "simgpu/shadow.h"

using namespace simgpu;

namespace {

double copy_cost(size_t bytes) { return 5 + static_cast<double>(bytes) / 20e3; }  // 20 GB/s

cudaError_t give(void** p, int arena, size_t bytes) {
  *p = nullptr;
  if (bytes == 0) return cudaSuccess;
  *p = allocate(arena, bytes);
  return finish(*p == nullptr ? cudaErrorMemoryAllocation : cudaSuccess);
}

cudaError_t take(void* p, int arena, const char* call) {
  if (p == nullptr) return cudaSuccess;
  const std::string wrong = release(p, arena, call);
  if (wrong.empty()) return cudaSuccess;
  report("misuse", std::string(call) + " is given " + wrong);
  return finish(cudaErrorInvalidValue);
}

bool is_host(const void* p) { return arena_of(p) < 0 || arena_of(p) == kPinned; }

struct Plane {  // rows of bytes, as a 2-D copy sees them
  char* base;
  size_t pitch;
};

// Every copy of the API. `wait`: the synchronous forms.
cudaError_t copy(Plane dst, Plane src, size_t width, size_t rows, cudaMemcpyKind kind, cudaStream_t handle,
                 bool wait, const char* call) {
  const bool to_host = kind == cudaMemcpyDeviceToHost || kind == cudaMemcpyHostToHost;
  const bool from_host = kind == cudaMemcpyHostToDevice || kind == cudaMemcpyHostToHost;
  if (kind != cudaMemcpyDefault && (is_host(dst.base) != to_host || is_host(src.base) != from_host)) {
    report("misuse", std::string(call) + " from " + describe_address(src.base) + " to " +
                         describe_address(dst.base) + " is not of the kind that it was told");
    return cudaErrorInvalidValue;
  }
  if (width > dst.pitch || width > src.pitch) return cudaErrorInvalidValue;
  Stream* stream = stream_of(handle, call);
  if (stream == nullptr) return cudaErrorInvalidResourceHandle;
  if (wait)
    if (cudaError_t status = forbidden_in_capture(nullptr, call); status != cudaSuccess) return status;
  if (width == 0 || rows == 0) return cudaSuccess;

  const bool pageable = arena_of(dst.base) < 0 || arena_of(src.base) < 0;
  if (pageable && !wait && config().strict)
    report("misuse",
           std::string(call) + " of pageable host memory: CUDA may then wait or stage, as it likes");
  // Pageable memory is taken at the call; into it, the call waits.
  std::shared_ptr<std::vector<char>> staged;
  if (arena_of(src.base) < 0) {
    staged = std::make_shared<std::vector<char>>(width * rows);
    for (size_t r = 0; r < rows; ++r)
      std::memcpy(staged->data() + r * width, src.base + r * src.pitch, width);
  }
  auto op = enqueue(
      stream, call, {{src.base, width, false, rows, src.pitch}, {dst.base, width, true, rows, dst.pitch}},
      [=](Op&) {
        auto* to = static_cast<char*>(host_view(dst.base));
        const auto* from = staged ? staged->data() : static_cast<const char*>(host_view(src.base));
        const size_t from_pitch = staged ? width : src.pitch;
        for (size_t r = 0; r < rows; ++r) std::memcpy(to + r * dst.pitch, from + r * from_pitch, width);
      },
      copy_cost(width * rows));
  return wait || arena_of(dst.base) < 0 ? wait_for(op) : cudaSuccess;
}

Plane plane(void* p, size_t pitch) { return {static_cast<char*>(p), pitch}; }
Plane plane(const void* p, size_t pitch) { return {static_cast<char*>(const_cast<void*>(p)), pitch}; }

cudaError_t fill(void* p, size_t pitch, int value, size_t width, size_t rows, cudaStream_t handle, bool wait,
                 const char* call) {
  if (is_host(p)) {
    report("misuse", std::string(call) + " of " + describe_address(p));
    return cudaErrorInvalidValue;
  }
  Stream* stream = stream_of(handle, call);
  if (stream == nullptr) return cudaErrorInvalidResourceHandle;
  if (width == 0 || rows == 0) return cudaSuccess;
  auto op = enqueue(
      stream, call, {{p, width, true, rows, pitch}},
      [=](Op&) {
        for (size_t r = 0; r < rows; ++r) std::memset(static_cast<char*>(p) + r * pitch, value, width);
      },
      copy_cost(width * rows));
  return wait ? wait_for(op) : cudaSuccess;
}

}  // namespace

extern "C" {

cudaError_t cudaMalloc(void** p, size_t bytes) {
  SIMGPU_CALL(cudaMalloc);
  if (cudaError_t status = forbidden_in_capture(nullptr, call.name()); status != cudaSuccess)
    return finish(status);
  return give(p, host.device, bytes);
}
cudaError_t cudaFree(void* p) {
  SIMGPU_CALL(cudaFree);
  if (p == nullptr) return cudaSuccess;
  if (cudaError_t status = forbidden_in_capture(nullptr, call.name()); status != cudaSuccess)
    return finish(status);
  return take(p, 0, call.name());
}
cudaError_t cudaMallocAsync(void** p, size_t bytes, cudaStream_t handle) {
  SIMGPU_CALL(cudaMallocAsync);
  Stream* stream = stream_of(handle, call.name());
  if (stream == nullptr) return finish(cudaErrorInvalidResourceHandle);
  return give(p, stream->device, bytes);
}
cudaError_t cudaFreeAsync(void* p, cudaStream_t handle) {
  SIMGPU_CALL(cudaFreeAsync);
  Stream* stream = stream_of(handle, call.name());
  if (stream == nullptr) return finish(cudaErrorInvalidResourceHandle);
  const Allocation* a = find_allocation(p);
  if (p == nullptr) return cudaSuccess;
  if (a == nullptr || reinterpret_cast<uintptr_t>(p) != a->base || a->freed) return take(p, 0, call.name());
  // Freed in the stream's order: conflicts with whatever uses the block and is not ordered before.
  enqueue(
      stream, call.name(), {{p, a->bytes, true}}, [p](Op&) { release(p, 0, nullptr); }, 1);
  return cudaSuccess;
}
cudaError_t cudaMemGetInfo(size_t* free_bytes, size_t* total) {
  SIMGPU_CALL(cudaMemGetInfo);
  *total = config().memory_bytes;
  *free_bytes = *total - live_in(host.device);
  return cudaSuccess;
}
cudaError_t cudaHostAlloc(void** p, size_t bytes, unsigned) {
  SIMGPU_CALL(cudaHostAlloc);
  return give(p, kPinned, bytes);
}
cudaError_t cudaMallocHost(void** p, size_t bytes) {
  SIMGPU_CALL(cudaMallocHost);
  return give(p, kPinned, bytes);
}
cudaError_t cudaFreeHost(void* p) {
  SIMGPU_CALL(cudaFreeHost);
  return take(p, kPinned, call.name());
}
cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* attributes, const void* p) {
  SIMGPU_CALL(cudaPointerGetAttributes);
  *attributes = {};
  const int arena = arena_of(p);
  attributes->type = arena < 0          ? cudaMemoryTypeUnregistered
                     : arena == kPinned ? cudaMemoryTypeHost
                                        : cudaMemoryTypeDevice;
  attributes->device = arena < 0 ? -2 : arena == kPinned ? host.device : arena;
  if (arena >= 0) attributes->devicePointer = const_cast<void*>(p);
  if (arena < 0 || arena == kPinned) attributes->hostPointer = const_cast<void*>(p);
  return cudaSuccess;
}

cudaError_t cudaMemcpy(void* dst, const void* src, size_t bytes, cudaMemcpyKind kind) {
  SIMGPU_CALL(cudaMemcpy);
  return finish(copy(plane(dst, bytes), plane(src, bytes), bytes, 1, kind, nullptr, true, call.name()));
}
cudaError_t cudaMemcpyAsync(void* dst, const void* src, size_t bytes, cudaMemcpyKind kind,
                            cudaStream_t stream) {
  SIMGPU_CALL(cudaMemcpyAsync);
  return finish(copy(plane(dst, bytes), plane(src, bytes), bytes, 1, kind, stream, false, call.name()));
}
cudaError_t cudaMemcpy2DAsync(void* dst, size_t dst_pitch, const void* src, size_t src_pitch, size_t width,
                              size_t rows, cudaMemcpyKind kind, cudaStream_t stream) {
  SIMGPU_CALL(cudaMemcpy2DAsync);
  return finish(
      copy(plane(dst, dst_pitch), plane(src, src_pitch), width, rows, kind, stream, false, call.name()));
}
cudaError_t cudaMemcpyPeerAsync(void* dst, int dst_device, const void* src, int src_device, size_t bytes,
                                cudaStream_t stream) {
  SIMGPU_CALL(cudaMemcpyPeerAsync);
  if (arena_of(dst) != dst_device || arena_of(src) != src_device) {
    report("misuse", "cudaMemcpyPeerAsync is told a device that does not own the memory");
    return finish(cudaErrorInvalidValue);
  }
  return finish(copy(plane(dst, bytes), plane(src, bytes), bytes, 1, cudaMemcpyDeviceToDevice, stream, false,
                     call.name()));
}
cudaError_t cudaMemset(void* p, int value, size_t bytes) {
  SIMGPU_CALL(cudaMemset);
  return finish(fill(p, bytes, value, bytes, 1, nullptr, true, call.name()));
}
cudaError_t cudaMemsetAsync(void* p, int value, size_t bytes, cudaStream_t stream) {
  SIMGPU_CALL(cudaMemsetAsync);
  return finish(fill(p, bytes, value, bytes, 1, stream, false, call.name()));
}
cudaError_t cudaMemset2DAsync(void* p, size_t pitch, int value, size_t width, size_t rows,
                              cudaStream_t stream) {
  SIMGPU_CALL(cudaMemset2DAsync);
  return finish(fill(p, pitch, value, width, rows, stream, false, call.name()));
}
}
