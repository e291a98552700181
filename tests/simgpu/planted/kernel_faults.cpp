// Faults inside one kernel.
#include "simgpu/planted/faulty_kernels.h"
#include "simgpu/planted/planted.h"

namespace {

using namespace planted;

template <class F>
void on_zeros(F f) {
  cudaStream_t s = new_stream();
  f(zeros(s), s);
  finish(s);
}

const Planted kernel_faults[] = {
    {"missing_syncthreads", "shared race", "no __syncthreads between",
     [](bool faulty) { on_zeros([=](float* y, cudaStream_t s) { reverse_block(y, faulty, s); }); }},
    {"shared_slot_written_by_all", "shared race", "no __syncthreads between",
     [](bool faulty) { on_zeros([=](float* y, cudaStream_t s) { shared_total(y, faulty, s); }); }},
    {"barrier_in_divergent_branch", "barrier", "had already returned",
     [](bool faulty) { on_zeros([=](float* y, cudaStream_t s) { barrier_in_branch(y, faulty, s); }); }},
    {"return_before_barrier", "barrier", "had already returned",
     [](bool faulty) {
       on_zeros([=](float* y, cudaStream_t s) { return_before_barrier(y, faulty, kCount, s); });
     }},
    {"read_one_past_the_end", "out of bounds", "0 bytes past the end",
     [](bool faulty) {
       on_zeros([=](float* y, cudaStream_t s) { shift(y, zeros(s), kCount - 1, faulty ? 2 : 1, s); });
     }},
    {"read_one_before_the_start", "out of bounds", "4 bytes before",
     [](bool faulty) {
       on_zeros([=](float* y, cudaStream_t s) { shift(y, zeros(s), kCount, faulty ? -1 : 0, s); });
     }},
    {"write_one_past_the_end", "out of bounds", "0 bytes past the end",
     [](bool faulty) { on_zeros([=](float* y, cudaStream_t s) { scatter(y, kCount, faulty ? 1 : 0, s); }); }},
    {"write_one_before_the_start", "out of bounds", "4 bytes before",
     [](bool faulty) {
       on_zeros([=](float* y, cudaStream_t s) { scatter(y, kCount, faulty ? -1 : 0, s); });
     }},
    {"shared_memory_partly_filled", "uninitialised", "shared memory that its block has not written",
     [](bool faulty) {
       on_zeros([=](float* y, cudaStream_t s) { partly_filled_shared(y, faulty ? 127 : 128, s); });
     }},
    {"counter_without_atomics", "race", "count_kernel",
     [](bool faulty) {
       cudaStream_t s = new_stream();
       count(zeros<unsigned>(s, 4), faulty, s);
       finish(s);
     }},
    {"counter_cleared_while_counting", "race", "atomically",
     [](bool faulty) {
       cudaStream_t s = new_stream();
       count_and_clear(zeros<unsigned>(s, 4), faulty, s);
       finish(s);
     }},
    {"vector_access_misaligned", "misaligned", "16 bytes",
     [](bool faulty) {
       on_zeros([=](float* y, cudaStream_t s) { vector_copy(y, zeros(s), faulty ? 1 : 0, s); });
     }},
    {"shuffle_by_a_lane_not_in_its_mask", "barrier", "that its mask does not name",
     [](bool faulty) {
       on_zeros([=](float* y, cudaStream_t s) { shuffle_with_mask(y, faulty ? 0xffffu : 0xffffffffu, s); });
     }},
    {"warp_exchange_without_syncwarp", "shared race", "no __syncthreads between",
     [](bool faulty) { on_zeros([=](float* y, cudaStream_t s) { exchange_in_warp(y, faulty, s); }); }},
    {"dynamic_shared_memory_too_small", "out of bounds", "beyond its dynamic shared memory",
     [](bool faulty) {
       on_zeros([=](float* y, cudaStream_t s) {
         use_dynamic_shared(y, 64, (faulty ? 63 : 64) * sizeof(float), s);
       });
     }},
    {"in_place_though_neighbours_are_read", "race", "with no __syncthreads between",
     [](bool faulty) {
       on_zeros([=](float* y, cudaStream_t s) { neighbour_sum(zeros(s), y, faulty, kCount, s); });
     }},
    {"accumulates_into_what_was_never_cleared", "uninitialised", "which nothing has written",
     [](bool faulty) {
       cudaStream_t s = new_stream();
       add_one(faulty ? device_array() : zeros(s), kCount, s);
       finish(s);
     }},
};
SIMGPU_PLANTED(kernel_faults);

}  // namespace
