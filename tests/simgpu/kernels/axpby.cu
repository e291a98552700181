// y = a x + b y, grid-stride: the simplest kernel, in every float type.
#include "lockstep/runtime/launch.h"
#include "simgpu/kernels/kernels.h"

namespace {

template <class T>
__global__ void axpby_kernel(const T* x, T* y, float a, float b, int n) {
  for (int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x); i < n;
       i += static_cast<int>(gridDim.x * blockDim.x))
    y[i] = static_cast<T>(a * static_cast<float>(x[i]) + b * static_cast<float>(y[i]));
}

}  // namespace

template <class T>
void axpby(const T* x, T* y, float a, float b, int n, cudaStream_t stream) {
  const int blocks = n < 1024 * 256 ? (n + 255) / 256 : 1024;
  lockstep::launch<axpby_kernel<T>>(static_cast<unsigned>(blocks), 256, 0, stream, x, y, a, b, n);
}

template void axpby(const float*, float*, float, float, int, cudaStream_t);
template void axpby(const __half*, __half*, float, float, int, cudaStream_t);
template void axpby(const __nv_bfloat16*, __nv_bfloat16*, float, float, int, cudaStream_t);
