// What the simulated libraries keep beside the world: called by reset(), with the lock held.
#pragma once

namespace simgpu {

void reset_nccl();
void reset_graphs();
void reset_libraries();

}  // namespace simgpu
