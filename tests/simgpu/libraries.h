// What the simulated libraries keep beside the world. Each is called by reset(), with the lock held.
#pragma once

namespace simgpu {

void reset_graphs();
void reset_cublas();
void reset_cublaslt();
void reset_cudnn();
void reset_nccl();

}  // namespace simgpu
