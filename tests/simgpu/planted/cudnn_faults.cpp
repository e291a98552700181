// Faults in the use of cuDNN.
#include "simgpu/planted/faulty_kernels.h"
#include "simgpu/planted/planted.h"
#include "simgpu/self/dnn.h"

namespace {

using namespace planted;

// A plan of y = x + x, the one with a workspace if asked for; cuDNN offers its engines in any order.
Dnn add_plan(bool with_workspace) {
  const DnnShape shape{{1, 3, 10, 10}};
  const Dnn x = dnn_tensor(1, shape), y = dnn_tensor(2, shape);
  const Dnn add = dnn_pointwise(CUDNN_POINTWISE_ADD, x, &x, y);
  for (;;) {
    Dnn plan = dnn_plan({add.handle()});
    if ((dnn_workspace_bytes(plan) > 0) == with_workspace) return plan;
  }
}

const Planted cudnn_faults[] = {
    {"workspace_forgotten", "misuse", "executed without one",
     [](bool faulty) {
       cudaStream_t s = new_stream();
       dnn_execute(s, add_plan(true), {1, 2}, {zeros(s), device_array()},
                   faulty ? nullptr : device_array(1024));
       finish(s);
     }},
    {"workspace_too_small", "out of bounds", "cudnn(add)",
     [](bool faulty) {
       cudaStream_t s = new_stream();
       dnn_execute(s, add_plan(true), {1, 2}, {zeros(s), device_array()}, device_array(faulty ? 1023 : 1024));
       finish(s);
     }},
    {"workspace_shared_by_two_streams", "race", "cudnn(add)",
     [](bool faulty) {
       cudaStream_t a = new_stream(), b = new_stream();
       void *mine = device_array(1024), *other = faulty ? mine : device_array(1024);
       dnn_execute(a, add_plan(true), {1, 2}, {zeros(a), device_array()}, mine);
       dnn_execute(b, add_plan(true), {1, 2}, {zeros(b), device_array()}, other);
       finish(a, b);
     }},
    {"graph_does_not_wait_for_its_input", "race", "cudnn(add)",
     [](bool faulty) {
       cudaStream_t a = new_stream(), b = new_stream();
       float* x = zeros(a);
       add_one(x, kCount, a);
       if (!faulty) wait(b, a);
       dnn_execute(b, add_plan(false), {1, 2}, {x, device_array()}, nullptr);
       finish(a, b);
     }},
    {"tensor_not_aligned", "misaligned", "16 bytes",
     [](bool faulty) {
       cudaStream_t s = new_stream();
       dnn_execute(s, add_plan(false), {1, 2}, {zeros(s, 400) + (faulty ? 1 : 4), device_array()}, nullptr);
       finish(s);
     }},
};
SIMGPU_PLANTED(cudnn_faults);

}  // namespace
