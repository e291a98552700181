// Small kernels that are right, for the tests of the simulator. Compiled by nvcc too.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime_api.h>

#include <cstdint>

template <class T>
void axpby(const T* x, T* y, float a, float b, int n, cudaStream_t stream);
void row_sum(const float* x, float* sums, int rows, int columns, cudaStream_t stream);
void row_sum_tree(const float* x, float* sums, int rows, int columns, cudaStream_t stream);
void histogram(const uint8_t* x, unsigned* bins, int n, cudaStream_t stream);
