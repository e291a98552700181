// CUDA_CHECK(call) throws Error with file, line, expression and CUDA's name and text for the failure. The
// runtime's error state is cleared, so that one failure is not reported again by the next, unrelated call; a
// sticky error (a lost context) comes back by itself.
#pragma once

#include <cuda_runtime_api.h>

#include "lockstep/runtime/check.h"

namespace lockstep {

inline void cuda_check(cudaError_t status, const char* expression, const char* file, int line) {
  if (status == cudaSuccess) [[likely]]
    return;
  cudaGetLastError();
  throw_error(concat(file, ":", line, ": ", expression, " failed: ", cudaGetErrorString(status), " (",
                     cudaGetErrorName(status), ")"));
}

}  // namespace lockstep

#define CUDA_CHECK(...) ::lockstep::cuda_check((__VA_ARGS__), #__VA_ARGS__, __FILE__, __LINE__)
