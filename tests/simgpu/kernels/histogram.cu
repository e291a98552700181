// bins[x[i]] += 1: integer atomics, whose order does not change the result.
#include "lockstep/runtime/launch.h"
#include "simgpu/kernels/kernels.h"

namespace {

__global__ void histogram_kernel(const uint8_t* x, unsigned* bins, int n) {
  for (int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x); i < n;
       i += static_cast<int>(gridDim.x * blockDim.x))
    atomicAdd(&bins[x[i]], 1u);
}

}  // namespace

void histogram(const uint8_t* x, unsigned* bins, int n, cudaStream_t stream) {
  lockstep::launch<histogram_kernel>(64, 256, 0, stream, x, bins, n);
}
