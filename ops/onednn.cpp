#include "lockstep/ops/onednn.h"

#ifdef LOCKSTEP_ONEDNN
#include <oneapi/dnnl/dnnl.hpp>

#include "lockstep/runtime/check.h"
#include "lockstep/runtime/parallel.h"

#if DNNL_VERSION_MAJOR != 2
#error "ops/onednn.cpp is written for oneDNN 2; configure with -DLOCKSTEP_ONEDNN=OFF to use Eigen instead"
#endif

namespace lockstep::onednn {
namespace {

void check(dnnl_status_t status, const char* call) {
  LOCKSTEP_CHECK(status == dnnl_success, "[onednn] ", call, " failed: ", "status ", int(status));
}

}  // namespace

// oneDNN cuts a product by the number of threads it could use, even where it then runs on one, and the cut
// decides how sums are rounded: the guard makes it the same everywhere.
void sgemm(bool transpose_a, bool transpose_b, int64_t M, int64_t N, int64_t K, float alpha, const float* A,
           int64_t lda, const float* B, int64_t ldb, float beta, float* C, int64_t ldc) {
  SingleThreadGuard guard;
  check(dnnl_sgemm(transpose_a ? 'T' : 'N', transpose_b ? 'T' : 'N', M, N, K, alpha, A, lda, B, ldb, beta, C,
                   ldc),
        "sgemm");
}

}  // namespace lockstep::onednn
#endif
