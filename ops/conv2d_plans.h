// How the CPU convolves: three plans for three directions, picked by shapes and processor features alone.
//   im2col  patches of each chunk of samples as a matrix, then gemm; any geometry, float and double
//   onednn  oneDNN on fixed chunks of the batch, one thread each
//   direct  own kernels for the few channels of first layers, stride 1; direct_avx512: compiled for AVX-512
// Internal: what ops/conv2d.cpp needs, and tests that force a plan.
#pragma once

#include <algorithm>
#include <cstdint>

#include "lockstep/ops/conv2d.h"
#include "lockstep/runtime/allocator.h"
#include "lockstep/runtime/parallel.h"

namespace lockstep::cpu {

enum class ConvPlan { im2col, onednn, direct, direct_avx512 };
enum class ConvDirection { forward, backward_input, backward_weight };

struct ConvGeometry {
  int64_t N, H, W, C, K, R, S, P, Q;  // x [N, H, W, C], w [K, R, S, C / groups], y [N, P, Q, K]
  int64_t stride_h, stride_w, top, bottom, left, right, dilation_h, dilation_w, groups;

  int64_t x_sample() const { return H * W * C; }
  int64_t y_sample() const { return P * Q * K; }
  int64_t group_channels() const { return C / groups; }
  int64_t weights() const { return K * R * S * group_channels(); }
  double flops() const { return 2.0 * double(N * P * Q) * double(weights()); }
  bool padded() const { return top || bottom || left || right; }
  friend bool operator==(const ConvGeometry&, const ConvGeometry&) = default;
};

// Note [Conv chunks]. The batch is cut into chunks of samples by shapes alone. The weight gradient keeps a
// partial sum per chunk and adds them in the order of the chunks; the more weights there are, the fewer
// chunks.
struct ConvChunks {
  int64_t samples;  // per chunk; the last may have fewer
  int64_t count;
};
ConvChunks conv_chunks(ConvDirection direction, const ConvGeometry& g);

// Calls body(chunk) for all chunks: by one thread if the whole convolution takes it only microseconds.
template <class Body>
void run_chunks(const ConvGeometry& g, int64_t chunks, Body&& body) {
  if (g.flops() < 2e6)
    for (int64_t chunk = 0; chunk < chunks; chunk++) body(chunk);
  else parallel_chunks(chunks, body);
}

// Workspace of the threads that run chunks: one piece of `bytes` each, taken at once, so that what a step
// allocates does not depend on which threads were busy.
class ThreadScratch {
 public:
  explicit ThreadScratch(size_t bytes);
  void* get() const;  // the calling thread's; null for 0 bytes

 private:
  size_t stride_;
  bool one_thread_;
  Memory memory_;
};

// y = max(y, 0), but a NaN stays one.
template <class T>
void relu_in_place(T* y, int64_t n) {
  for (int64_t i = 0; i < n; i++) y[i] = y[i] < 0 ? T(0) : y[i];
}

// sum[i] = partials[0][i] + partials[1][i] + ..., in this order; `count` arrays of n values, `stride` apart;
// `sum` may be the first of them.
void add_partials(const float* partials, int64_t count, int64_t stride, int64_t n, float* sum);
void add_partials(const double* partials, int64_t count, int64_t stride, int64_t n, double* sum);

// For float. Some convolutions have no optimised code in oneDNN, and some would write past its workspace.
bool plan_supports(ConvPlan plan, ConvDirection direction, const ConvGeometry& g, bool bias = false);
ConvPlan choose_plan(ConvDirection direction, const ConvGeometry& g, bool bias = false);

template <class T>
void im2col_forward(const ConvGeometry& g, const T* x, const T* w, const T* bias, bool relu, T* y);
template <class T>
void im2col_backward_input(const ConvGeometry& g, const T* dy, const T* w, T* dx);
template <class T>
void im2col_backward_weight(const ConvGeometry& g, const T* x, const T* dy, T* dw);

struct DirectKernels;  // conv2d_direct.h
bool direct_supports(const ConvGeometry& g);
void direct_forward(const DirectKernels& kernels, const ConvGeometry& g, const float* x, const float* w,
                    const float* bias, bool relu, float* y);
void direct_backward_input(const DirectKernels& kernels, const ConvGeometry& g, const float* dy,
                           const float* w, float* dx);
void direct_backward_weight(const DirectKernels& kernels, const ConvGeometry& g, const float* x,
                            const float* dy, float* dw);

// One direction by one plan; float only unless the plan is im2col. REQUIRES: plan_supports.
template <class T>
void conv_forward(ConvPlan plan, const ConvGeometry& g, const T* x, const T* w, const T* bias, bool relu,
                  T* y);
template <class T>
void conv_backward_input(ConvPlan plan, const ConvGeometry& g, const T* dy, const T* w, T* dx);
// Either of dw and dbias may be null: not wanted.
template <class T>
void conv_backward_weight(ConvPlan plan, const ConvGeometry& g, const T* x, const T* dy, T* dw, T* dbias);

}  // namespace lockstep::cpu
