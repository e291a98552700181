// What Lockstep uses of oneDNN. Its interface differs between versions 2 and 3: every call is in onednn.cpp,
// nothing of it in a header. Only there where LOCKSTEP_ONEDNN is defined.
#pragma once

#include <cstdint>

namespace lockstep::onednn {

// C = alpha op(A) op(B) + beta C, row-major, by one thread.
void sgemm(bool transpose_a, bool transpose_b, int64_t M, int64_t N, int64_t K, float alpha, const float* A,
           int64_t lda, const float* B, int64_t ldb, float beta, float* C, int64_t ldc);

}  // namespace lockstep::onednn
