#include "lockstep/runtime/launch.h"
#include "simgpu/planted/faulty_kernels.h"

namespace {

using lockstep::launch;

__device__ int global_index() { return static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x); }
unsigned blocks_for(int n) { return static_cast<unsigned>((n + 127) / 128); }

__global__ void add_one_kernel(float* y, int n) {
  if (const int i = global_index(); i < n) y[i] += 1.0f;
}

__global__ void copy_kernel(const float* x, float* y, int n) {
  if (const int i = global_index(); i < n) y[i] = x[i];
}

__global__ void reverse_block_kernel(float* y, bool without_barrier) {
  __shared__ float values[256];
  const unsigned t = threadIdx.x;
  values[t] = y[t];
  if (!without_barrier) __syncthreads();
  y[t] = values[255 - t];
}

__global__ void shared_total_kernel(float* y, bool all_write_one_slot) {
  __shared__ float total[64];
  const unsigned t = threadIdx.x;
  total[all_write_one_slot ? 0 : t] = y[t];
  __syncthreads();
  y[t] = total[all_write_one_slot ? 0 : t];
}

__global__ void barrier_in_branch_kernel(float* y, bool divergent) {
  if (!divergent || threadIdx.x < 32) __syncthreads();
  y[threadIdx.x] = 1.0f;
}

__global__ void return_before_barrier_kernel(float* y, bool early, int n) {
  const int i = global_index();
  if (early && i >= n) return;
  __syncthreads();
  if (i < n) y[i] = 1.0f;
}

__global__ void shift_kernel(const float* x, float* y, int n, int first) {
  if (const int i = global_index(); i < n) y[i] = x[i + first];
}

__global__ void scatter_kernel(float* y, int n, int first) {
  if (const int i = global_index(); i < n) y[i + first] = static_cast<float>(i);
}

__global__ void partly_filled_shared_kernel(float* y, int filled) {
  __shared__ float values[128];
  const int t = static_cast<int>(threadIdx.x);
  if (t < filled) values[t] = 1.0f;
  __syncthreads();
  y[t] = values[t];
}

__global__ void count_kernel(unsigned* bins, bool without_atomics) {
  unsigned* bin = &bins[threadIdx.x % 4];
  if (without_atomics) *bin += 1;
  else atomicAdd(bin, 1u);
}

__global__ void count_and_clear_kernel(unsigned* bins, bool clear_in_kernel) {
  if (clear_in_kernel && blockIdx.x == 0 && threadIdx.x == 0) bins[0] = 0;
  atomicAdd(&bins[0], 1u);
}

__global__ void vector_copy_kernel(const float* x, float* y) {
  reinterpret_cast<float4*>(y)[threadIdx.x] = *reinterpret_cast<const float4*>(x + 4 * threadIdx.x);
}

__global__ void shuffle_with_mask_kernel(float* y, unsigned mask) {
  y[threadIdx.x] = __shfl_xor_sync(mask, static_cast<float>(threadIdx.x), 1);
}

__global__ void exchange_in_warp_kernel(float* y, bool without_syncwarp) {
  __shared__ float values[32];
  const unsigned t = threadIdx.x;
  values[t] = y[t];
  if (!without_syncwarp) __syncwarp();
  y[t] = values[t ^ 1];
}

__global__ void use_dynamic_shared_kernel(float* y, int floats) {
  LOCKSTEP_DYNAMIC_SHARED(float, values);
  for (int i = static_cast<int>(threadIdx.x); i < floats; i += 32) values[i] = 1.0f;
  __syncthreads();
  y[threadIdx.x] = values[threadIdx.x];
}

__global__ void neighbour_sum_kernel(const float* x, float* y, int n) {
  if (const int i = global_index(); i < n) y[i] = x[i] + x[i + 1 < n ? i + 1 : 0];
}

}  // namespace

void add_one(float* y, int n, cudaStream_t s) { launch<add_one_kernel>(blocks_for(n), 128, 0, s, y, n); }
void copy(const float* x, float* y, int n, cudaStream_t s) {
  launch<copy_kernel>(blocks_for(n), 128, 0, s, x, y, n);
}
void reverse_block(float* y, bool without_barrier, cudaStream_t s) {
  launch<reverse_block_kernel>(1, 256, 0, s, y, without_barrier);
}
void shared_total(float* y, bool all_write_one_slot, cudaStream_t s) {
  launch<shared_total_kernel>(1, 64, 0, s, y, all_write_one_slot);
}
void barrier_in_branch(float* y, bool divergent, cudaStream_t s) {
  launch<barrier_in_branch_kernel>(1, 64, 0, s, y, divergent);
}
void return_before_barrier(float* y, bool early, int n, cudaStream_t s) {
  launch<return_before_barrier_kernel>(blocks_for(n), 128, 0, s, y, early, n);
}
void shift(const float* x, float* y, int n, int first, cudaStream_t s) {
  launch<shift_kernel>(blocks_for(n), 128, 0, s, x, y, n, first);
}
void scatter(float* y, int n, int first, cudaStream_t s) {
  launch<scatter_kernel>(blocks_for(n), 128, 0, s, y, n, first);
}
void partly_filled_shared(float* y, int filled, cudaStream_t s) {
  launch<partly_filled_shared_kernel>(1, 128, 0, s, y, filled);
}
void count(unsigned* bins, bool without_atomics, cudaStream_t s) {
  launch<count_kernel>(2, 32, 0, s, bins, without_atomics);
}
void count_and_clear(unsigned* bins, bool clear_in_kernel, cudaStream_t s) {
  launch<count_and_clear_kernel>(2, 32, 0, s, bins, clear_in_kernel);
}
void vector_copy(const float* x, float* y, int offset, cudaStream_t s) {
  launch<vector_copy_kernel>(1, 16, 0, s, x + offset, y);
}
void shuffle_with_mask(float* y, unsigned mask, cudaStream_t s) {
  launch<shuffle_with_mask_kernel>(1, 32, 0, s, y, mask);
}
void exchange_in_warp(float* y, bool without_syncwarp, cudaStream_t s) {
  launch<exchange_in_warp_kernel>(1, 32, 0, s, y, without_syncwarp);
}
void use_dynamic_shared(float* y, int floats, size_t bytes, cudaStream_t s) {
  launch<use_dynamic_shared_kernel>(1, 32, bytes, s, y, floats);
}
void neighbour_sum(const float* x, float* y, bool in_place, int n, cudaStream_t s) {
  launch<neighbour_sum_kernel>(blocks_for(n), 128, 0, s, in_place ? y : x, y, n);
}
