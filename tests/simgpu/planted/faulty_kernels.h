// Kernels with a fault that can be switched on; see faulty_kernels.cu.
#pragma once

#include <cuda_runtime_api.h>

// Right kernels, for faults of the host.
void add_one(float* y, int n, cudaStream_t stream);               // y += 1
void copy(const float* x, float* y, int n, cudaStream_t stream);  // y = x

void reverse_block(float* y, bool without_barrier, cudaStream_t stream);  // one block of 256
void shared_total(float* y, bool all_write_one_slot, cudaStream_t stream);
void barrier_in_branch(float* y, bool divergent, cudaStream_t stream);
void return_before_barrier(float* y, bool early, int n, cudaStream_t stream);
void shift(const float* x, float* y, int n, int first, cudaStream_t stream);  // y[i] = x[i + first]
void scatter(float* y, int n, int first, cudaStream_t stream);                // y[i + first] = i
void partly_filled_shared(float* y, int filled, cudaStream_t stream);
void count(unsigned* bins, bool without_atomics, cudaStream_t stream);
void count_and_clear(unsigned* bins, bool clear_in_kernel, cudaStream_t stream);
void vector_copy(const float* x, float* y, int offset, cudaStream_t stream);  // 4 floats at a time
void shuffle_with_mask(float* y, unsigned mask, cudaStream_t stream);         // called by 32 lanes
void exchange_in_warp(float* y, bool without_syncwarp, cudaStream_t stream);
void use_dynamic_shared(float* y, int floats, size_t bytes, cudaStream_t stream);
void neighbour_sum(const float* x, float* y, bool in_place, int n, cudaStream_t stream);
