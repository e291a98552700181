// A shared library with its own copy of Lockstep inside and a tensor in static storage. Lockstep's symbols are hidden, so
// the two copies do not mix.
#include "lockstep/ops/reduce.h"

namespace {
lockstep::Tensor kept = lockstep::full({2, 3}, 1);
}

__attribute__((visibility("default"))) float sum_in_second_library() {
  return lockstep::sum(kept).item<float>();
}
