// What Lockstep uses of oneDNN. Its interface differs between versions 2 and 3: every call is in onednn.cpp,
// nothing of it in a header. Only there where LOCKSTEP_ONEDNN is defined.
#pragma once

#include "lockstep/ops/conv2d_plans.h"

namespace lockstep::onednn {

// C = alpha op(A) op(B) + beta C, row-major, by one thread.
void sgemm(bool transpose_a, bool transpose_b, int64_t M, int64_t N, int64_t K, float alpha, const float* A,
           int64_t lda, const float* B, int64_t ldb, float beta, float* C, int64_t ldc);

// Convolutions as in Note [Conv chunks], each chunk by a primitive for one thread, in a layout of the weights
// that oneDNN picks: weights are converted once a call (microseconds; in KRSC order oneDNN has only its
// reference code). Primitives are costly to make and kept, the 256 last used. Does oneDNN have optimised code
// for this one?
bool conv_supports(cpu::ConvDirection direction, const cpu::ConvGeometry& g, bool bias);
// REQUIRES: conv_supports.
void conv_forward(const cpu::ConvGeometry& g, const float* x, const float* w, const float* bias, bool relu,
                  float* y);
void conv_backward_input(const cpu::ConvGeometry& g, const float* dy, const float* w, float* dx);
void conv_backward_weight(const cpu::ConvGeometry& g, const float* x, const float* dy, float* dw);

}  // namespace lockstep::onednn
