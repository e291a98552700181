// The kernel thread, or the library call, that this thread of the operating system is simulating right now.
#pragma once

#include <cstdint>

namespace simgpu {

// Who makes an access, as the checker needs it to tell which accesses are ordered.
struct Who {
  uint32_t op = 0;          // number of the operation
  uint32_t block = 0;       // number of the block in order of execution
  uint16_t thread = 0;      // within the block
  uint16_t epoch = 0;       // barriers the block has passed
  uint16_t warp_epoch = 0;  // __syncwarp calls the thread has passed
};

struct Running {
  Who who;
  int device = 0;
  bool whole_op = false;      // a library call: one actor, no threads
  bool traced = false;        // a kernel whose accesses are checked
  uint64_t block_serial = 0;  // never the same again: shared memory belongs to one block
};

extern thread_local Running* running;  // null in host code

}  // namespace simgpu
