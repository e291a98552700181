// sums[row] = sum of x[row][0..columns): by warp shuffles and by a tree in dynamic shared memory.
#include "lockstep/runtime/launch.h"
#include "simgpu/kernels/kernels.h"

namespace {

__global__ void row_sum_kernel(const float* x, float* sums, int columns) {
  __shared__ float warp_sums[32];
  const int lane = static_cast<int>(threadIdx.x % 32), warp = static_cast<int>(threadIdx.x / 32);
  const int warps = static_cast<int>(blockDim.x / 32);
  const float* row = x + static_cast<size_t>(blockIdx.x) * static_cast<size_t>(columns);
  float sum = 0;
  for (int i = static_cast<int>(threadIdx.x); i < columns; i += static_cast<int>(blockDim.x)) sum += row[i];
  for (unsigned delta = 16; delta > 0; delta /= 2) sum += __shfl_down_sync(0xffffffffu, sum, delta);
  if (lane == 0) warp_sums[warp] = sum;
  __syncthreads();
  if (warp != 0) return;
  sum = lane < warps ? warp_sums[lane] : 0.0f;
  for (unsigned delta = 16; delta > 0; delta /= 2) sum += __shfl_down_sync(0xffffffffu, sum, delta);
  if (lane == 0) sums[blockIdx.x] = sum;
}

__global__ void row_sum_tree_kernel(const float* x, float* sums, int columns) {
  LOCKSTEP_DYNAMIC_SHARED(float, partial);
  const unsigned t = threadIdx.x;
  const float* row = x + static_cast<size_t>(blockIdx.x) * static_cast<size_t>(columns);
  float sum = 0;
  for (int i = static_cast<int>(t); i < columns; i += static_cast<int>(blockDim.x)) sum += row[i];
  partial[t] = sum;
  __syncthreads();
  for (unsigned half = blockDim.x / 2; half > 0; half /= 2) {
    if (t < half) partial[t] += partial[t + half];
    __syncthreads();
  }
  if (t == 0) sums[blockIdx.x] = partial[0];
}

}  // namespace

void row_sum(const float* x, float* sums, int rows, int columns, cudaStream_t stream) {
  lockstep::launch<row_sum_kernel>(static_cast<unsigned>(rows), 256, 0, stream, x, sums, columns);
}

void row_sum_tree(const float* x, float* sums, int rows, int columns, cudaStream_t stream) {
  lockstep::launch<row_sum_tree_kernel>(static_cast<unsigned>(rows), 256, 256 * sizeof(float), stream, x,
                                        sums, columns);
}
