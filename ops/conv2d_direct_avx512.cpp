// Compiled for AVX-512 (see CMakeLists.txt); called only where cpu_features().avx512.
#ifdef __AVX512F__
#define LOCKSTEP_LANES 16
#include "lockstep/ops/conv2d_direct_kernels.h"

namespace lockstep::cpu {

const DirectKernels* direct_kernels_avx512() { return &kKernels; }

}  // namespace lockstep::cpu
#else
#include "lockstep/ops/conv2d_direct.h"

namespace lockstep::cpu {

const DirectKernels* direct_kernels_avx512() { return nullptr; }

}  // namespace lockstep::cpu
#endif
