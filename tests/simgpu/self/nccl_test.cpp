// Collectives: one thread a rank, and one thread for all ranks in groups.
#include <nccl.h>

#include <barrier>
#include <thread>

#include "simgpu/kernels/kernels.h"
#include "simgpu/self/fixture.h"

namespace {

struct Collectives : SimulatedGpu {
  void SetUp() override {
    simgpu::Config config;
    config.devices = 4;
    config.patience_ms = 20000;
    config.policy = simgpu::Policy::random;
    simgpu::reset(config);
  }
};

TEST_F(Collectives, threads_all_reduce_and_broadcast) {
  ncclUniqueId id;
  ASSERT_EQ(ncclGetUniqueId(&id), ncclSuccess);
  std::vector<std::vector<float>> results(4);
  std::vector<std::thread> threads;
  std::barrier all_known(4);  // to the simulator, before one waits for the others
  for (int rank = 0; rank < 4; ++rank)
    threads.emplace_back([&, rank] {
      Gpu me;
      CUDA_CHECK(cudaSetDevice(rank));
      all_known.arrive_and_wait();
      me.stream = make_stream();
      ncclComm_t comm;
      ASSERT_EQ(ncclCommInitRank(&comm, 4, id, rank), ncclSuccess);
      float* x = me.upload(std::vector<float>(100, static_cast<float>(rank + 1)));
      for (int step = 0; step < 3; ++step)
        ASSERT_EQ(ncclAllReduce(x, x, 100, ncclFloat, ncclSum, comm, me.stream), ncclSuccess);
      ASSERT_EQ(ncclAllReduce(x, x, 50, ncclFloat, ncclAvg, comm, me.stream), ncclSuccess);
      float* y = me.upload(std::vector<float>(10, static_cast<float>(rank)));
      ASSERT_EQ(ncclBroadcast(y, y, 10, ncclFloat, 2, comm, me.stream), ncclSuccess);
      results[size_t(rank)] = me.download(x, 100);
      results[size_t(rank)].push_back(me.download(y, 10)[9]);
      int count, mine;
      ncclCommCount(comm, &count);
      ncclCommUserRank(comm, &mine);
      EXPECT_EQ(count, 4);
      EXPECT_EQ(mine, rank);
      ncclCommDestroy(comm);
    });
  for (std::thread& t : threads) t.join();
  for (const auto& r : results) {
    EXPECT_EQ(r[0], 160.0f);  // 10, 40, 160, average of 160
    EXPECT_EQ(r[99], 160.0f);
    EXPECT_EQ(r[100], 2.0f);
  }
}

TEST_F(Collectives, groups_gather_and_scatter) {
  ncclComm_t comms[2];
  ASSERT_EQ(ncclCommInitAll(comms, 2, nullptr), ncclSuccess);
  cudaStream_t streams[2];
  float *x[2], *all[2], *part[2];
  for (int r = 0; r < 2; ++r) {
    CUDA_CHECK(cudaSetDevice(r));
    stream = streams[r] = make_stream();
    x[r] = upload(std::vector<float>{1.0f + static_cast<float>(r), 10.0f});
    all[r] = device_array<float>(4);
    part[r] = device_array<float>(2);
  }
  ncclGroupStart();
  for (int r = 0; r < 2; ++r) ncclAllGather(x[r], all[r], 2, ncclFloat, comms[r], streams[r]);
  for (int r = 0; r < 2; ++r) ncclReduceScatter(all[r], part[r], 2, ncclFloat, ncclSum, comms[r], streams[r]);
  ASSERT_EQ(ncclGroupEnd(), ncclSuccess);
  for (int r = 0; r < 2; ++r) {
    stream = streams[r];
    EXPECT_EQ(download(all[r], 4), (std::vector<float>{1, 10, 2, 10}));
    EXPECT_EQ(download(part[r], 2), (r == 0 ? std::vector<float>{2, 20} : std::vector<float>{4, 20}));
  }
}

// What tests of data-parallel training will assert: bucket 1 is reduced while bucket 0 is still being computed.
TEST_F(Collectives, overlap_with_compute_shows_in_the_timeline) {
  ncclComm_t comms[2];
  ASSERT_EQ(ncclCommInitAll(comms, 2, nullptr), ncclSuccess);
  cudaStream_t compute[2], side[2];
  float* bucket[2][2];
  for (int r = 0; r < 2; ++r) {
    CUDA_CHECK(cudaSetDevice(r));
    compute[r] = stream = make_stream(), side[r] = make_stream();
    for (float*& b : bucket[r]) b = upload(std::vector<float>(1000, 1.0f));
    cudaEvent_t ready = make_event();
    axpby<float>(bucket[r][1], bucket[r][1], 1, 1, 1000, compute[r]);
    CUDA_CHECK(cudaEventRecord(ready, compute[r]));
    CUDA_CHECK(cudaStreamWaitEvent(side[r], ready, 0));
    axpby<float>(bucket[r][0], bucket[r][0], 1, 1, 1000, compute[r]);
  }
  ncclGroupStart();
  for (int r = 0; r < 2; ++r)
    ncclAllReduce(bucket[r][1], bucket[r][1], 1000, ncclFloat, ncclSum, comms[r], side[r]);
  ncclGroupEnd();
  for (int r = 0; r < 2; ++r) CUDA_CHECK(cudaStreamSynchronize(compute[r]));
  for (int r = 0; r < 2; ++r) CUDA_CHECK(cudaStreamSynchronize(side[r]));
  std::vector<simgpu::Span> kernels, reductions;
  for (const simgpu::Span& s : simgpu::timeline()) {
    if (s.device != 1) continue;  // the rank that issues last
    if (s.name == "axpby_kernel<float>") kernels.push_back(s);
    if (s.name == "ncclAllReduce") reductions.push_back(s);
  }
  ASSERT_EQ(kernels.size(), 2u);
  ASSERT_EQ(reductions.size(), 1u);
  EXPECT_GE(reductions[0].start_us, kernels[0].end_us);
  EXPECT_LT(reductions[0].start_us, kernels[1].end_us);
}

TEST_F(Collectives, an_abort_lets_the_others_go_on_with_an_error) {
  ncclComm_t comms[2];
  ASSERT_EQ(ncclCommInitAll(comms, 2, nullptr), ncclSuccess);
  CUDA_CHECK(cudaSetDevice(0));
  stream = make_stream();
  float* x = upload(std::vector<float>(5, 1.0f));
  ASSERT_EQ(ncclAllReduce(x, x, 5, ncclFloat, ncclSum, comms[0], stream), ncclSuccess);
  ASSERT_EQ(ncclCommAbort(comms[1]), ncclSuccess);
  EXPECT_EQ(cudaStreamSynchronize(stream), cudaSuccess);
  ncclResult_t status;
  ASSERT_EQ(ncclCommGetAsyncError(comms[0], &status), ncclSuccess);
  EXPECT_EQ(status, ncclRemoteError);
}

TEST_F(Collectives, an_asynchronous_error_can_be_injected) {
  ncclComm_t comms[2];
  ASSERT_EQ(ncclCommInitAll(comms, 2, nullptr), ncclSuccess);
  simgpu::fail("ncclCommGetAsyncError", 2, ncclSystemError);
  ncclResult_t status;
  ncclCommGetAsyncError(comms[0], &status);
  EXPECT_EQ(status, ncclSuccess);
  ncclCommGetAsyncError(comms[0], &status);
  EXPECT_EQ(status, ncclSystemError);
}

}  // namespace
