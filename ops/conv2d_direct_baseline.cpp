#define LOCKSTEP_LANES 8
#include "lockstep/ops/conv2d_direct_kernels.h"

namespace lockstep::cpu {

const DirectKernels* direct_kernels_baseline() { return &kKernels; }

}  // namespace lockstep::cpu
