#include "simgpu/libraries.h"

namespace simgpu {

void reset_libraries() { reset_graphs(); }

}  // namespace simgpu
