// Common ground of the simulator's own tests: a fresh device, one stream, buffers, and no report left at the
// end.
#pragma once

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <cstring>
#include <vector>

#include "lockstep/runtime/cuda_check.h"
#include "simgpu/simgpu.h"

// Short forms of what every test does with a device.
struct Gpu {
  static cudaStream_t make_stream() {
    cudaStream_t s;
    CUDA_CHECK(cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking));
    return s;
  }
  static cudaEvent_t make_event() {
    cudaEvent_t e;
    CUDA_CHECK(cudaEventCreateWithFlags(&e, cudaEventDisableTiming));
    return e;
  }
  template <class T>
  static T* device_array(size_t n) {
    void* p = nullptr;
    CUDA_CHECK(cudaMalloc(&p, n * sizeof(T)));
    return static_cast<T*>(p);
  }
  template <class T>
  static T* pinned_array(size_t n) {
    void* p = nullptr;
    CUDA_CHECK(cudaMallocHost(&p, n * sizeof(T)));
    return static_cast<T*>(p);
  }
  template <class T>
  T* upload(const std::vector<T>& values) {
    T* staging = pinned_array<T>(values.size());
    std::memcpy(staging, values.data(), values.size() * sizeof(T));
    T* p = device_array<T>(values.size());
    CUDA_CHECK(cudaMemcpyAsync(p, staging, values.size() * sizeof(T), cudaMemcpyHostToDevice, stream));
    CUDA_CHECK(cudaStreamSynchronize(stream));
    CUDA_CHECK(cudaFreeHost(staging));
    return p;
  }
  template <class T>
  std::vector<T> download(const T* p, size_t n) {
    T* staging = pinned_array<T>(n);
    CUDA_CHECK(cudaMemcpyAsync(staging, p, n * sizeof(T), cudaMemcpyDeviceToHost, stream));
    CUDA_CHECK(cudaStreamSynchronize(stream));
    std::vector<T> values(staging, staging + n);
    CUDA_CHECK(cudaFreeHost(staging));
    return values;
  }

  cudaStream_t stream = nullptr;
};

struct SimulatedGpu : ::testing::Test, Gpu {
  void SetUp() override {
    simgpu::reset();
    stream = make_stream();
  }
  void TearDown() override { EXPECT_EQ(simgpu::describe(simgpu::take_reports()), ""); }
  // The reports so far, which the test expects; TearDown then sees none of them.
  static std::string reports() { return simgpu::describe(simgpu::take_reports()); }
};
