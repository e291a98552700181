// Faults in how the runtime is called.
#include "simgpu/planted/faulty_kernels.h"
#include "simgpu/planted/planted.h"

namespace {

using namespace planted;

const Planted misuse_faults[] = {
    {"host_follows_a_device_pointer", "host access", "byte 8 of allocation 1",
     [](bool faulty) {
       cudaStream_t s = new_stream();
       float *y = zeros(s), *host = pinned_array();
       CUDA_CHECK(cudaMemcpyAsync(host, y, kCount * sizeof(float), cudaMemcpyDeviceToHost, s));
       finish(s);
       volatile float third = (faulty ? y : host)[2];
       (void)third;
     }},
    {"kernel_given_a_host_pointer", "host pointer", "host memory",
     [](bool faulty) {
       cudaStream_t s = new_stream();
       std::vector<float> host(kCount);
       add_one(faulty ? host.data() : zeros(s), kCount, s);
       finish(s);
     }},
    {"kernel_given_pinned_memory", "host pointer", "pinned host memory",
     [](bool faulty) {
       cudaStream_t s = new_stream();
       add_one(faulty ? pinned_array() : zeros(s), kCount, s);
       finish(s);
     }},
    {"other_devices_memory_without_peer_access", "out of bounds", "without cudaDeviceEnablePeerAccess",
     [](bool faulty) {
       CUDA_CHECK(cudaSetDevice(1));
       cudaStream_t there = new_stream();
       float* x = zeros(there);
       CUDA_CHECK(cudaSetDevice(0));
       if (!faulty) CUDA_CHECK(cudaDeviceEnablePeerAccess(1, 0));
       cudaStream_t here = new_stream();
       copy(x, device_array(), kCount, here);
       finish(here);
     }},
    {"wrong_device_current_at_a_launch", "misuse", "while device 1 is current",
     [](bool faulty) {
       cudaStream_t s = new_stream();
       float* y = zeros(s);
       if (faulty) CUDA_CHECK(cudaSetDevice(1));
       add_one(y, kCount, s);
       finish(s);
     }},
    {"wrong_device_current_at_an_allocation", "out of bounds", "memory of device 1",
     [](bool faulty) {
       cudaStream_t s = new_stream();
       if (faulty) CUDA_CHECK(cudaSetDevice(1));
       float* y = device_array();
       CUDA_CHECK(cudaSetDevice(0));
       CUDA_CHECK(cudaMemsetAsync(y, 0, kCount * sizeof(float), s));
       add_one(y, kCount, s);
       finish(s);
     }},
    {"event_of_another_device", "misuse", "an event of device 1",
     [](bool faulty) {
       cudaStream_t s = new_stream();
       if (faulty) CUDA_CHECK(cudaSetDevice(1));
       cudaEvent_t event = new_event();
       CUDA_CHECK(cudaSetDevice(0));
       CUDA_CHECK(cudaEventRecord(event, s));
     }},
    {"error_code_dropped", "dropped error", "cudaErrorMemoryAllocation",
     [](bool faulty) {
       void* p = nullptr;
       simgpu::fail("cudaMalloc", 1, cudaErrorMemoryAllocation);
       const cudaError_t status = cudaMalloc(&p, 64);
       if (!faulty && status != cudaSuccess) cudaGetLastError();  // handled
     }},
    {"failure_of_a_kernel_dropped", "dropped error", "cudaErrorIllegalAddress",
     [](bool faulty) {
       cudaStream_t s = new_stream();
       float* y = zeros(s);
       simgpu::fail("kernel", 1, cudaErrorIllegalAddress);
       add_one(y, kCount, s);
       const cudaError_t status = cudaStreamSynchronize(s);
       if (!faulty && status != cudaSuccess) cudaGetLastError();
     }},
    {"freed_twice", "misuse", "a block that cudaFree had freed",
     [](bool faulty) {
       float* y = device_array();
       CUDA_CHECK(cudaFree(y));
       if (faulty && cudaFree(y) != cudaSuccess) cudaGetLastError();
     }},
    {"freed_by_a_pointer_into_the_middle", "misuse", "into the middle of a block",
     [](bool faulty) {
       float* y = device_array();
       if (cudaFree(y + (faulty ? 1 : 0)) != cudaSuccess) cudaGetLastError();
     }},
    {"pinned_memory_freed_as_device_memory", "misuse", "memory of the other kind",
     [](bool faulty) {
       float* p = pinned_array();
       if ((faulty ? cudaFree(p) : cudaFreeHost(p)) != cudaSuccess) cudaGetLastError();
     }},
    {"null_stream", "misuse", "uses the NULL stream",
     [](bool faulty) {
       cudaStream_t s = new_stream();
       add_one(zeros(s), kCount, faulty ? nullptr : s);
       finish(s);
     }},
    {"blocking_stream", "misuse", "not cudaStreamNonBlocking",
     [](bool faulty) {
       cudaStream_t s;
       CUDA_CHECK(cudaStreamCreateWithFlags(&s, faulty ? cudaStreamDefault : cudaStreamNonBlocking));
     }},
    {"asynchronous_copy_of_pageable_memory", "misuse", "pageable",
     [](bool faulty) {
       cudaStream_t s = new_stream();
       std::vector<float> pageable(kCount);
       float *x = device_array(), *pinned = pinned_array();
       std::fill_n(pinned, kCount, 0.0f);
       CUDA_CHECK(cudaMemcpyAsync(x, faulty ? pageable.data() : pinned, kCount * sizeof(float),
                                  cudaMemcpyHostToDevice, s));
       finish(s);
     }},
    {"copy_told_the_wrong_direction", "misuse", "not of the kind that it was told",
     [](bool faulty) {
       cudaStream_t s = new_stream();
       float *x = zeros(s), *host = pinned_array();
       CUDA_CHECK(cudaMemcpyAsync(host, x, kCount * sizeof(float),
                                  faulty ? cudaMemcpyHostToDevice : cudaMemcpyDeviceToHost, s));
       finish(s);
     }},
    {"copy_longer_than_its_target", "out of bounds", "past the end",
     [](bool faulty) {
       cudaStream_t s = new_stream();
       float *x = zeros(s), *y = device_array(kCount - 1);
       CUDA_CHECK(
           cudaMemcpyAsync(y, x, (kCount - (faulty ? 0 : 1)) * sizeof(float), cudaMemcpyDeviceToDevice, s));
       finish(s);
     }},
    {"copy_of_what_nothing_has_written", "uninitialised", "cudaMemcpyAsync",
     [](bool faulty) {
       cudaStream_t s = new_stream();
       float *x = faulty ? device_array() : zeros(s), *y = device_array();
       CUDA_CHECK(cudaMemcpyAsync(y, x, kCount * sizeof(float), cudaMemcpyDeviceToDevice, s));
       finish(s);
     }},
    {"stream_used_after_its_end", "misuse", "a destroyed stream",
     [](bool faulty) {
       cudaStream_t s = new_stream();
       float* y = zeros(s);
       if (faulty) CUDA_CHECK(cudaStreamDestroy(s));
       add_one(y, kCount, s);
     }},
    {"callback_that_calls_cuda", "misuse", "from a host callback",
     [](bool faulty) {
       cudaStream_t s = new_stream();
       static bool call_cuda;
       call_cuda = faulty;
       const cudaHostFn_t callback = [](void*) {
         int device;
         if (call_cuda) cudaGetDevice(&device);
       };
       CUDA_CHECK(cudaLaunchHostFunc(s, callback, nullptr));
       finish(s);
     }},
};
SIMGPU_PLANTED(misuse_faults);

}  // namespace
