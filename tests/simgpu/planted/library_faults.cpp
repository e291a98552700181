// Faults in the use of cuBLAS and NCCL, among them those of data-parallel training with overlap.
#include <cublas_v2.h>
#include <nccl.h>

#include <barrier>
#include <functional>
#include <thread>

#include "simgpu/planted/faulty_kernels.h"
#include "simgpu/planted/planted.h"

namespace {

using namespace planted;

// C (m x n) = A (m x k) B (k x n), all column-major.
void multiply(cudaStream_t stream, const float* a, int lda, const float* b, float beta, float* c, int ldc,
              void* workspace = nullptr) {
  cublasHandle_t handle;
  const float alpha = 1;
  cublasCreate(&handle);
  cublasSetStream(handle, stream);
  if (workspace != nullptr) cublasSetWorkspace(handle, workspace, 1024);
  cublasSgemm(handle, CUBLAS_OP_N, CUBLAS_OP_N, 4, 6, 5, &alpha, a, lda, b, 5, &beta, c, ldc);
  cublasDestroy(handle);
}

// Two ranks, a host thread each. f(rank, communicator, compute stream, communication stream).
void two_ranks(const std::function<void(int, ncclComm_t, cudaStream_t, cudaStream_t)>& f) {
  ncclUniqueId id;
  ncclGetUniqueId(&id);
  std::barrier both_known(2);  // to the simulator, before one waits for the other
  const auto rank_main = [&](int rank) {
    CUDA_CHECK(cudaSetDevice(rank));
    both_known.arrive_and_wait();
    ncclComm_t comm;
    if (ncclCommInitRank(&comm, 2, id, rank) != ncclSuccess) return;
    f(rank, comm, new_stream(), new_stream());
    ncclCommDestroy(comm);
    cudaGetLastError();
  };
  std::thread other(rank_main, 1);
  rank_main(0);
  other.join();
}

void all_reduce(float* x, int n, ncclComm_t comm, cudaStream_t stream) {
  ncclAllReduce(x, x, static_cast<size_t>(n), ncclFloat, ncclSum, comm, stream);
}

const Planted library_faults[] = {
    {"leading_dimension_too_large", "out of bounds", "cublasSgemm",
     [](bool faulty) {
       cudaStream_t s = new_stream();
       multiply(s, zeros(s, 4 * 5), faulty ? 5 : 4, zeros(s, 5 * 6), 0, device_array(4 * 6), 4);
       finish(s);
     }},
    {"result_written_into_a_wider_matrix_by_mistake", "out of bounds", "cublasSgemm",
     [](bool faulty) {
       cudaStream_t s = new_stream();
       multiply(s, zeros(s, 4 * 5), 4, zeros(s, 5 * 6), 0, device_array(4 * 6), faulty ? 5 : 4);
       finish(s);
     }},
    {"adds_to_a_result_never_cleared", "uninitialised", "cublasSgemm",
     [](bool faulty) {
       cudaStream_t s = new_stream();
       multiply(s, zeros(s, 4 * 5), 4, zeros(s, 5 * 6), faulty ? 1.0f : 0.0f, device_array(4 * 6), 4);
       finish(s);
     }},
    {"product_does_not_wait_for_its_operand", "race", "cublasSgemm",
     [](bool faulty) {
       cudaStream_t a = new_stream(), b = new_stream();
       float* x = zeros(a, 4 * 5);
       add_one(x, 4 * 5, a);
       if (!faulty) wait(b, a);
       multiply(b, x, 4, zeros(b, 5 * 6), 0, device_array(4 * 6), 4);
       finish(a, b);
     }},
    {"handle_of_another_device", "misuse", "uses a handle of device 1",
     [](bool faulty) {
       if (faulty) CUDA_CHECK(cudaSetDevice(1));
       cublasHandle_t handle;
       cublasCreate(&handle);
       CUDA_CHECK(cudaSetDevice(0));
       cublasSetStream(handle, new_stream());
     }},
    {"two_streams_share_one_workspace", "race", "cublasSgemm",
     [](bool faulty) {
       cudaStream_t a = new_stream(), b = new_stream();
       void *mine = device_array(256), *other = faulty ? mine : device_array(256);
       for (int i = 0; i < 16; ++i) {  // often enough for each seed to use the workspace on both
         multiply(a, zeros(a, 4 * 5), 4, zeros(a, 5 * 6), 0, device_array(4 * 6), 4, mine);
         multiply(b, zeros(b, 4 * 5), 4, zeros(b, 5 * 6), 0, device_array(4 * 6), 4, other);
       }
       finish(a, b);
     }},
    {"all_reduce_does_not_wait_for_the_gradients", "race", "ncclAllReduce",
     [](bool faulty) {
       two_ranks([=](int, ncclComm_t comm, cudaStream_t compute, cudaStream_t side) {
         float* gradient = zeros(compute);
         add_one(gradient, kCount, compute);
         if (!faulty) wait(side, compute);
         all_reduce(gradient, kCount, comm, side);
         finish(compute, side);
       });
     }},
    {"optimizer_does_not_wait_for_the_all_reduce", "race", "ncclAllReduce",
     [](bool faulty) {
       two_ranks([=](int, ncclComm_t comm, cudaStream_t compute, cudaStream_t side) {
         float* gradient = zeros(compute);
         wait(side, compute);
         all_reduce(gradient, kCount, comm, side);
         if (!faulty) wait(compute, side);
         add_one(gradient, kCount, compute);
         finish(compute, side);
       });
     }},
    {"ranks_disagree_about_the_count", "collective", "counts",
     [](bool faulty) {
       two_ranks([=](int rank, ncclComm_t comm, cudaStream_t compute, cudaStream_t) {
         all_reduce(zeros(compute), faulty && rank == 1 ? kCount - 1 : kCount, comm, compute);
         finish(compute);
       });
     }},
    {"ranks_issue_buckets_in_another_order", "collective", "counts",
     [](bool faulty) {
       two_ranks([=](int rank, ncclComm_t comm, cudaStream_t compute, cudaStream_t) {
         float* bucket[2] = {zeros(compute), zeros(compute)};
         for (int i = 0; i < 2; ++i) {
           const int b = faulty && rank == 1 ? 1 - i : i;
           all_reduce(bucket[b], kCount - b, comm, compute);
         }
         finish(compute);
       });
     }},
    {"a_rank_never_calls", "deadlock", "which has not called it",
     [](bool faulty) {
       two_ranks([=](int rank, ncclComm_t comm, cudaStream_t compute, cudaStream_t) {
         float* x = zeros(compute);
         if (!faulty || rank == 0) all_reduce(x, kCount, comm, compute);
         cudaStreamSynchronize(compute);
       });
     }},
    {"communicators_made_by_one_thread_without_a_group", "deadlock", "inside a group",
     [](bool faulty) {
       ncclUniqueId id;
       ncclGetUniqueId(&id);
       ncclComm_t comms[2];
       if (!faulty) ncclGroupStart();
       for (int rank = 0; rank < 2; ++rank) {
         CUDA_CHECK(cudaSetDevice(rank));
         if (ncclCommInitRank(&comms[rank], 2, id, rank) != ncclSuccess) return;
       }
       ncclGroupEnd();
     }},
    {"two_ranks_on_one_device", "misuse", "share device 0",
     [](bool faulty) {
       ncclComm_t comms[2];
       const int devices[2] = {0, faulty ? 0 : 1};
       ncclCommInitAll(comms, 2, devices);
     }},
    {"collective_in_the_wrong_devices_stream", "misuse", "which is on device 0, in stream",
     [](bool faulty) {
       ncclComm_t comms[2];
       ncclCommInitAll(comms, 2, nullptr);
       cudaStream_t streams[2];
       float* x[2];
       for (int rank = 0; rank < 2; ++rank) {
         CUDA_CHECK(cudaSetDevice(rank));
         streams[rank] = new_stream();
         x[rank] = zeros(streams[rank]);
       }
       ncclGroupStart();
       for (int rank = 0; rank < 2; ++rank)
         all_reduce(x[rank], kCount, comms[rank], streams[faulty ? 1 - rank : rank]);
       ncclGroupEnd();
     }},
};
SIMGPU_PLANTED(library_faults);

}  // namespace
