// Faults put in on purpose. Each program exists once, with the fault as a flag, so that the faulty and the
// right twin differ in exactly what the fault is. A checker that reports nothing looks just like a correct
// program: these tests are what tells them apart.
#pragma once

#include <ostream>
#include <string>
#include <vector>

#include "simgpu/self/fixture.h"

struct Planted {
  const char* name;
  const char* kind;  // of the report that the fault must cause
  const char* says;  // a part of its message
  void (*program)(bool faulty);
};
inline std::ostream& operator<<(std::ostream& out, const Planted& p) { return out << p.name; }

struct PlantedFault : ::testing::TestWithParam<Planted> {};

// The faulty twin must be reported, the right one silent, under each of 50 seeds and all policies.
#define SIMGPU_PLANTED(table)                                               \
  INSTANTIATE_TEST_SUITE_P(table, PlantedFault, ::testing::ValuesIn(table), \
                           [](const auto& info) { return std::string(info.param.name); })

// What the programs use.
namespace planted {

constexpr int kCount = 300;  // no multiple of a block
inline cudaStream_t new_stream() { return Gpu::make_stream(); }
inline cudaEvent_t new_event() { return Gpu::make_event(); }
template <class T = float>
T* device_array(size_t n = kCount) {
  return Gpu::device_array<T>(n);
}
template <class T = float>
T* pinned_array(size_t n = kCount) {
  return Gpu::pinned_array<T>(n);
}
// A device array of zeros, known to the host to be so.
template <class T = float>
T* zeros(cudaStream_t stream, size_t n = kCount) {
  T* p = device_array<T>(n);
  CUDA_CHECK(cudaMemsetAsync(p, 0, n * sizeof(T), stream));
  CUDA_CHECK(cudaStreamSynchronize(stream));
  return p;
}
inline void wait(cudaStream_t waiting, cudaStream_t on) {
  cudaEvent_t event = new_event();
  CUDA_CHECK(cudaEventRecord(event, on));
  CUDA_CHECK(cudaStreamWaitEvent(waiting, event, 0));
}
inline void finish(cudaStream_t a) { CUDA_CHECK(cudaStreamSynchronize(a)); }
inline void finish(cudaStream_t a, cudaStream_t b) { finish(a), finish(b); }

}  // namespace planted
