// Devices, versions and errors.
#include <cuda_runtime_api.h>

#include <cstdio>
#include <cstring>

#include "simgpu/capture.h"
#include "simgpu/executor.h"
#include "simgpu/memory.h"
#include "simgpu/report.h"
#include "simgpu/scheduler.h"

using namespace simgpu;

namespace {

struct ErrorText {
  cudaError_t status;
  const char *name, *text;
};
constexpr ErrorText kErrors[] = {
    {cudaSuccess, "cudaSuccess", "no error"},
    {cudaErrorInvalidValue, "cudaErrorInvalidValue", "invalid argument"},
    {cudaErrorMemoryAllocation, "cudaErrorMemoryAllocation", "out of memory"},
    {cudaErrorInvalidConfiguration, "cudaErrorInvalidConfiguration", "invalid configuration argument"},
    {cudaErrorInvalidDevice, "cudaErrorInvalidDevice", "invalid device ordinal"},
    {cudaErrorNoDevice, "cudaErrorNoDevice", "no CUDA-capable device is detected"},
    {cudaErrorInsufficientDriver, "cudaErrorInsufficientDriver",
     "CUDA driver version is insufficient for CUDA runtime version"},
    {cudaErrorInvalidDeviceFunction, "cudaErrorInvalidDeviceFunction", "invalid device function"},
    {cudaErrorInvalidResourceHandle, "cudaErrorInvalidResourceHandle", "invalid resource handle"},
    {cudaErrorIllegalState, "cudaErrorIllegalState",
     "the operation cannot be performed in the present state"},
    {cudaErrorNotReady, "cudaErrorNotReady", "device not ready"},
    {cudaErrorIllegalAddress, "cudaErrorIllegalAddress", "an illegal memory access was encountered"},
    {cudaErrorMisalignedAddress, "cudaErrorMisalignedAddress", "misaligned address"},
    {cudaErrorLaunchTimeout, "cudaErrorLaunchTimeout", "the launch timed out and was terminated"},
    {cudaErrorLaunchFailure, "cudaErrorLaunchFailure", "unspecified launch failure"},
    {cudaErrorPeerAccessAlreadyEnabled, "cudaErrorPeerAccessAlreadyEnabled",
     "peer access is already enabled"},
    {cudaErrorStreamCaptureUnsupported, "cudaErrorStreamCaptureUnsupported",
     "operation not permitted when stream is capturing"},
    {cudaErrorStreamCaptureInvalidated, "cudaErrorStreamCaptureInvalidated",
     "operation failed due to a previous error during capture"},
    {cudaErrorStreamCaptureUnjoined, "cudaErrorStreamCaptureUnjoined", "capturing stream has unjoined work"},
    {cudaErrorStreamCaptureUnmatched, "cudaErrorStreamCaptureUnmatched",
     "capture was not ended in the same stream as it began"},
    {cudaErrorCapturedEvent, "cudaErrorCapturedEvent",
     "operation not permitted on an event last recorded in a capturing stream"},
    {cudaErrorUnknown, "cudaErrorUnknown", "unknown error"},
};

bool valid_device(int device) { return 0 <= device && device < config().devices; }

}  // namespace

extern "C" {

const char* cudaGetErrorName(cudaError_t status) {
  for (const ErrorText& e : kErrors)
    if (e.status == status) return e.name;
  return "unrecognized error code";
}
const char* cudaGetErrorString(cudaError_t status) {
  for (const ErrorText& e : kErrors)
    if (e.status == status) return e.text;
  return "unrecognized error code";
}
cudaError_t cudaGetLastError() {
  Call call("cudaGetLastError");
  const cudaError_t status = world().lost != cudaSuccess ? world().lost : host.last_error;
  host.last_error = cudaSuccess;
  return status;
}
cudaError_t cudaPeekAtLastError() {
  Call call("cudaPeekAtLastError");
  return world().lost != cudaSuccess ? world().lost : host.last_error;
}

cudaError_t cudaGetDeviceCount(int* count) {
  SIMGPU_CALL(cudaGetDeviceCount);
  *count = config().devices;
  return finish(config().devices == 0 ? cudaErrorNoDevice : cudaSuccess);
}
cudaError_t cudaSetDevice(int device) {
  SIMGPU_CALL(cudaSetDevice);
  if (!valid_device(device)) return finish(cudaErrorInvalidDevice);
  host.device = device;
  return cudaSuccess;
}
cudaError_t cudaGetDevice(int* device) {
  SIMGPU_CALL(cudaGetDevice);
  *device = host.device;
  return cudaSuccess;
}
cudaError_t cudaDriverGetVersion(int* version) {
  SIMGPU_CALL(cudaDriverGetVersion);
  *version = CUDART_VERSION;
  return cudaSuccess;
}
cudaError_t cudaRuntimeGetVersion(int* version) {
  SIMGPU_CALL(cudaRuntimeGetVersion);
  *version = CUDART_VERSION;
  return cudaSuccess;
}

cudaError_t cudaGetDeviceProperties(cudaDeviceProp* p, int device) {
  SIMGPU_CALL(cudaGetDeviceProperties);
  if (!valid_device(device)) return finish(cudaErrorInvalidDevice);
  *p = {};
  std::snprintf(p->name, sizeof p->name, "simulated CUDA device (no GPU)");
  p->totalGlobalMem = config().memory_bytes;
  p->sharedMemPerBlock = 48 * 1024;
  p->sharedMemPerBlockOptin = p->sharedMemPerMultiprocessor = kMaxSharedBytes;
  p->regsPerBlock = p->regsPerMultiprocessor = 65536;
  p->warpSize = 32;
  p->maxThreadsPerBlock = kMaxThreads;
  p->maxThreadsDim[0] = p->maxThreadsDim[1] = 1024, p->maxThreadsDim[2] = 64;
  p->maxGridSize[0] = 0x7fffffff, p->maxGridSize[1] = p->maxGridSize[2] = 65535;
  p->major = 9;
  p->multiProcessorCount = 8;
  p->maxThreadsPerMultiProcessor = 2048;
  p->maxBlocksPerMultiProcessor = 32;
  p->concurrentKernels = p->asyncEngineCount = p->unifiedAddressing = p->canMapHostMemory = 1;
  p->l2CacheSize = 1 << 20;
  p->pciBusID = device + 1;
  return cudaSuccess;
}

cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int device) {
  SIMGPU_CALL(cudaDeviceGetAttribute);
  if (!valid_device(device)) return finish(cudaErrorInvalidDevice);
  switch (attribute) {
    case cudaDevAttrMultiProcessorCount: *value = 8; break;
    case cudaDevAttrMaxThreadsPerBlock: *value = kMaxThreads; break;
    case cudaDevAttrMaxThreadsPerMultiProcessor: *value = 2048; break;
    case cudaDevAttrWarpSize: *value = 32; break;
    case cudaDevAttrComputeCapabilityMajor: *value = 9; break;
    case cudaDevAttrComputeCapabilityMinor: *value = 0; break;
    case cudaDevAttrMaxSharedMemoryPerBlock: *value = 48 * 1024; break;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin: *value = kMaxSharedBytes; break;
    case cudaDevAttrMemoryPoolsSupported: *value = 1; break;
    case cudaDevAttrManagedMemory: *value = 0; break;
    default: return finish(cudaErrorInvalidValue);
  }
  return cudaSuccess;
}

cudaError_t cudaDeviceGetPCIBusId(char* text, int length, int device) {
  SIMGPU_CALL(cudaDeviceGetPCIBusId);
  if (!valid_device(device)) return finish(cudaErrorInvalidDevice);
  std::snprintf(text, static_cast<size_t>(length), "0000:%02x:00.0", device + 1);
  return cudaSuccess;
}

cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
  SIMGPU_CALL(cudaDeviceGetStreamPriorityRange);
  *least = 0, *greatest = -5;
  return cudaSuccess;
}

cudaError_t cudaDeviceCanAccessPeer(int* can, int device, int peer) {
  SIMGPU_CALL(cudaDeviceCanAccessPeer);
  if (!valid_device(device) || !valid_device(peer)) return finish(cudaErrorInvalidDevice);
  *can = device != peer;
  return cudaSuccess;
}
cudaError_t cudaDeviceEnablePeerAccess(int peer, unsigned) {
  SIMGPU_CALL(cudaDeviceEnablePeerAccess);
  if (!valid_device(peer) || peer == host.device) return finish(cudaErrorInvalidDevice);
  return finish(world().peers.insert({host.device, peer}).second ? cudaSuccess
                                                                 : cudaErrorPeerAccessAlreadyEnabled);
}

cudaError_t cudaDeviceSynchronize() {
  SIMGPU_CALL(cudaDeviceSynchronize);
  if (cudaError_t status = forbidden_in_capture(nullptr, call.name()); status != cudaSuccess)
    return finish(status);
  cudaError_t status = cudaSuccess;
  const auto count = world().streams.size();
  for (size_t i = 0; i < count && status == cudaSuccess; ++i) {
    Stream* s = world().streams[i].get();
    if (s->device == host.device && s->last) status = wait_for(s->last);
  }
  return finish(status);
}

// The driver's own API is not simulated: none of it is found.
cudaError_t cudaGetDriverEntryPointByVersion(const char*, void** function, unsigned, unsigned long long,
                                             cudaDriverEntryPointQueryResult* result) {
  SIMGPU_CALL(cudaGetDriverEntryPointByVersion);
  *function = nullptr;
  if (result != nullptr) *result = cudaDriverEntryPointSymbolNotFound;
  return cudaSuccess;
}

cudaError_t cudaProfilerStart() { return cudaSuccess; }
cudaError_t cudaProfilerStop() { return cudaSuccess; }
}
