// Faults in the order of work: two streams, or a stream and the host.
#include <thread>

#include "simgpu/planted/faulty_kernels.h"
#include "simgpu/planted/planted.h"

namespace {

using namespace planted;

const Planted stream_faults[] = {
    {"copy_does_not_wait_for_compute", "race", "add_one_kernel",
     [](bool faulty) {
       cudaStream_t compute = new_stream(), side = new_stream();
       float *y = zeros(compute), *host = pinned_array();
       add_one(y, kCount, compute);
       if (!faulty) wait(side, compute);
       CUDA_CHECK(cudaMemcpyAsync(host, y, kCount * sizeof(float), cudaMemcpyDeviceToHost, side));
       finish(compute, side);
     }},
    {"compute_does_not_wait_for_copy", "race", "cudaMemcpyAsync",
     [](bool faulty) {
       cudaStream_t compute = new_stream(), side = new_stream();
       float *x = zeros(compute), *y = device_array(), *host = pinned_array();
       std::fill_n(host, kCount, 1.0f);
       CUDA_CHECK(cudaMemcpyAsync(x, host, kCount * sizeof(float), cudaMemcpyHostToDevice, side));
       if (!faulty) wait(compute, side);
       copy(x, y, kCount, compute);
       finish(compute, side);
     }},
    {"two_computing_streams", "race", "add_one_kernel",
     [](bool faulty) {
       cudaStream_t a = new_stream(), b = new_stream();
       float* y = zeros(a);
       add_one(y, kCount, a);
       if (!faulty) wait(b, a);
       add_one(y, kCount, b);
       finish(a, b);
     }},
    {"event_recorded_before_the_kernel", "race", "copy_kernel",
     [](bool faulty) {
       cudaStream_t a = new_stream(), b = new_stream();
       float *x = zeros(a), *y = device_array();
       cudaEvent_t ready = new_event();
       if (faulty) CUDA_CHECK(cudaEventRecord(ready, a));
       add_one(x, kCount, a);
       if (!faulty) CUDA_CHECK(cudaEventRecord(ready, a));
       CUDA_CHECK(cudaStreamWaitEvent(b, ready, 0));
       copy(x, y, kCount, b);
       finish(a, b);
     }},
    {"bucket_waits_for_the_other_buckets_event", "race", "add_one_kernel",
     [](bool faulty) {
       cudaStream_t compute = new_stream(), comm = new_stream();
       float* bucket[2] = {zeros(compute), zeros(compute)};
       cudaEvent_t ready[2] = {new_event(), new_event()};
       for (int i = 0; i < 2; ++i) {
         add_one(bucket[i], kCount, compute);
         CUDA_CHECK(cudaEventRecord(ready[i], compute));
       }
       CUDA_CHECK(cudaStreamWaitEvent(comm, ready[faulty ? 0 : 1], 0));
       add_one(bucket[1], kCount, comm);
       finish(compute, comm);
     }},
    {"waits_for_an_event_never_recorded", "misuse", "never recorded",
     [](bool faulty) {
       cudaStream_t a = new_stream(), b = new_stream();
       cudaEvent_t ready = new_event();
       if (!faulty) CUDA_CHECK(cudaEventRecord(ready, a));
       CUDA_CHECK(cudaStreamWaitEvent(b, ready, 0));
     }},
    {"allocator_hands_a_block_to_another_stream", "race", "allocation 1",
     [](bool faulty) {
       cudaStream_t a = new_stream(), b = new_stream();
       float* block = zeros(a);  // one block of a caching allocator, given to stream a, then to b
       add_one(block, kCount, a);
       if (!faulty) wait(b, a);
       CUDA_CHECK(cudaMemsetAsync(block, 0, kCount * sizeof(float), b));
       finish(a, b);
     }},
    {"pinned_buffer_refilled_too_early", "pinned", "the host writes",
     [](bool faulty) {
       cudaStream_t s = new_stream();
       float *x = device_array(), *staging = pinned_array();
       for (int batch = 0; batch < 3; ++batch) {
         std::fill_n(staging, kCount, static_cast<float>(batch));
         CUDA_CHECK(cudaMemcpyAsync(x, staging, kCount * sizeof(float), cudaMemcpyHostToDevice, s));
         if (!faulty) finish(s);
       }
       finish(s);
     }},
    {"result_read_before_the_copy_is_known_to_be_over", "pinned", "the host reads",
     [](bool faulty) {
       cudaStream_t s = new_stream();
       float *x = zeros(s), *result = pinned_array();
       CUDA_CHECK(cudaMemcpyAsync(result, x, kCount * sizeof(float), cudaMemcpyDeviceToHost, s));
       if (!faulty) finish(s);
       volatile float first = result[0];
       (void)first;
       finish(s);
     }},
    {"pinned_buffer_freed_too_early", "use after free", "cudaFreeHost",
     [](bool faulty) {
       cudaStream_t s = new_stream();
       float *x = device_array(), *staging = pinned_array();
       std::fill_n(staging, kCount, 1.0f);
       CUDA_CHECK(cudaMemcpyAsync(x, staging, kCount * sizeof(float), cudaMemcpyHostToDevice, s));
       if (!faulty) finish(s);
       CUDA_CHECK(cudaFreeHost(staging));
       finish(s);
     }},
    {"device_memory_freed_while_in_use", "use after free", "",
     [](bool faulty) {
       cudaStream_t s = new_stream();
       float* y = zeros(s);
       add_one(y, kCount, s);
       if (!faulty) finish(s);
       CUDA_CHECK(cudaFree(y));
       finish(s);
     }},
    {"kernel_uses_what_was_freed", "use after free", "freed by cudaFree",
     [](bool faulty) {
       cudaStream_t s = new_stream();
       float *y = zeros(s), *other = zeros(s);
       CUDA_CHECK(cudaFree(y));
       add_one(faulty ? y : other, kCount, s);
       finish(s);
     }},
    {"freed_in_another_streams_order", "race", "cudaFreeAsync",
     [](bool faulty) {
       cudaStream_t a = new_stream(), b = new_stream();
       float* y = zeros(a);
       add_one(y, kCount, a);
       if (!faulty) wait(b, a);
       CUDA_CHECK(cudaFreeAsync(y, b));
       finish(a, b);
     }},
    {"two_host_threads_share_a_buffer_without_an_event", "race", "add_one_kernel",
     [](bool faulty) {
       cudaStream_t a = new_stream(), b = new_stream();
       float* y = zeros(a);
       add_one(y, kCount, a);
       cudaEvent_t done = new_event();
       CUDA_CHECK(cudaEventRecord(done, a));
       std::thread([=] {
         if (!faulty) CUDA_CHECK(cudaStreamWaitEvent(b, done, 0));
         add_one(y, kCount, b);
         finish(b);
       }).join();
       finish(a);
     }},
};
SIMGPU_PLANTED(stream_faults);

}  // namespace
