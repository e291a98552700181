// Faults around CUDA graphs: capture and replay.
#include "simgpu/planted/faulty_kernels.h"
#include "simgpu/planted/planted.h"

namespace {

using namespace planted;

template <class F>
cudaGraphExec_t captured(cudaStream_t stream, F f) {
  cudaGraph_t graph;
  cudaGraphExec_t exec;
  CUDA_CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
  f();
  CUDA_CHECK(cudaStreamEndCapture(stream, &graph));
  CUDA_CHECK(cudaGraphInstantiate(&exec, graph, 0));
  CUDA_CHECK(cudaGraphDestroy(graph));
  return exec;
}

const Planted graph_faults[] = {
    {"work_beside_a_replay_without_an_event", "race", "add_one_kernel",
     [](bool faulty) {
       cudaStream_t a = new_stream(), b = new_stream();
       float* y = zeros(a);
       cudaGraphExec_t step = captured(a, [=] { add_one(y, kCount, a); });
       CUDA_CHECK(cudaGraphLaunch(step, a));
       if (!faulty) wait(b, a);
       add_one(y, kCount, b);
       finish(a, b);
     }},
    {"input_of_the_next_replay_written_too_early", "race", "cudaMemcpyAsync",
     [](bool faulty) {
       cudaStream_t compute = new_stream(), loader = new_stream();
       float *input = zeros(compute), *y = device_array(), *host = pinned_array();
       std::fill_n(host, kCount, 1.0f);
       cudaGraphExec_t step = captured(compute, [=] { copy(input, y, kCount, compute); });
       for (int i = 0; i < 2; ++i) {
         if (!faulty) wait(loader, compute);
         CUDA_CHECK(cudaMemcpyAsync(input, host, kCount * sizeof(float), cudaMemcpyHostToDevice, loader));
         wait(compute, loader);
         CUDA_CHECK(cudaGraphLaunch(step, compute));
       }
       finish(compute, loader);
     }},
    {"two_branches_of_a_graph_share_a_buffer", "race", "add_one_kernel",
     [](bool faulty) {
       cudaStream_t a = new_stream(), b = new_stream();
       float *y = zeros(a), *z = zeros(a);
       cudaGraphExec_t step = captured(a, [=] {
         wait(b, a);
         add_one(y, kCount, a);
         add_one(faulty ? y : z, kCount, b);
         wait(a, b);
       });
       CUDA_CHECK(cudaGraphLaunch(step, a));
       finish(a);
     }},
    {"stream_forked_into_a_capture_and_not_joined", "misuse", "not joined before its end",
     [](bool faulty) {
       cudaStream_t a = new_stream(), b = new_stream();
       float* y = zeros(a);
       captured(a, [=] {
         wait(b, a);
         add_one(y, kCount, b);
         if (!faulty) wait(a, b);
       });
     }},
    {"synchronisation_inside_a_capture", "misuse", "is being captured",
     [](bool faulty) {
       cudaStream_t s = new_stream();
       float* y = zeros(s);
       captured(s, [=] {
         add_one(y, kCount, s);
         if (faulty) finish(s);
       });
     }},
    {"allocation_inside_a_capture", "misuse", "cudaMalloc while",
     [](bool faulty) {
       cudaStream_t s = new_stream();
       float* y = zeros(s);
       captured(s, [=] {
         if (faulty) device_array();
         add_one(y, kCount, s);
       });
     }},
};
SIMGPU_PLANTED(graph_faults);

}  // namespace
