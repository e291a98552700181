// Streams, events, copies, callbacks, capture: what CUDA promises, under every policy.
#include <thread>

#include "simgpu/kernels/kernels.h"
#include "simgpu/self/fixture.h"

namespace {

using simgpu::Policy;

struct Streams : SimulatedGpu, ::testing::WithParamInterface<Policy> {
  void SetUp() override {
    simgpu::Config config;
    config.policy = GetParam();
    config.seed = 7;
    config.patience_ms = 300;
    simgpu::reset(config);
    stream = make_stream();
  }
};
INSTANTIATE_TEST_SUITE_P(policies, Streams, ::testing::Values(Policy::lazy, Policy::random, Policy::eager));

TEST_P(Streams, an_event_orders_two_streams) {
  cudaStream_t other = make_stream();
  cudaEvent_t event = make_event();
  float *x = upload(std::vector<float>(100, 1.0f)), *y = upload(std::vector<float>(100, 0.0f));
  axpby<float>(x, y, 2, 1, 100, other);  // y = 2
  CUDA_CHECK(cudaEventRecord(event, other));
  CUDA_CHECK(cudaStreamWaitEvent(stream, event, 0));
  CUDA_CHECK(cudaEventRecord(event, other));  // recording again does not move the wait
  axpby<float>(x, y, 1, 3, 100, stream);      // y = 7
  EXPECT_EQ(download(y, 100)[99], 7.0f);
}

TEST_P(Streams, polling_comes_to_an_end) {
  float* x = upload(std::vector<float>(10, 1.0f));
  cudaEvent_t event = make_event();
  axpby<float>(x, x, 1, 1, 10, stream);
  CUDA_CHECK(cudaEventRecord(event, stream));
  int polls = 0;
  cudaError_t status;
  while ((status = cudaEventQuery(event)) == cudaErrorNotReady) ASSERT_LT(++polls, 1000);
  EXPECT_EQ(status, cudaSuccess);
  while ((status = cudaStreamQuery(stream)) == cudaErrorNotReady) ASSERT_LT(++polls, 1000);
  EXPECT_EQ(status, cudaSuccess);
}

TEST_P(Streams, callbacks_run_in_order_and_without_the_lock) {
  static std::vector<int> order;
  order.clear();
  for (int i = 0; i < 3; ++i)
    CUDA_CHECK(cudaLaunchHostFunc(
        stream, [](void* p) { order.push_back(static_cast<int>(reinterpret_cast<intptr_t>(p))); },
        reinterpret_cast<void*>(static_cast<intptr_t>(i))));
  CUDA_CHECK(cudaStreamSynchronize(stream));
  EXPECT_EQ(order, (std::vector<int>{0, 1, 2}));
}

TEST_P(Streams, strided_copies_touch_only_their_rows) {
  float* x = upload(std::vector<float>(6 * 5, 1.0f));  // 5 rows of 6
  float* y = device_array<float>(5 * 4);
  CUDA_CHECK(cudaMemcpy2DAsync(y, 4 * sizeof(float), x, 6 * sizeof(float), 4 * sizeof(float), 5,
                               cudaMemcpyDeviceToDevice, stream));
  CUDA_CHECK(cudaMemset2DAsync(x, 6 * sizeof(float), 0, 2 * sizeof(float), 5, stream));
  EXPECT_EQ(download(y, 20), std::vector<float>(20, 1.0f));
  const std::vector<float> rows = download(x, 30);
  for (size_t i = 0; i < 30; ++i) EXPECT_EQ(rows[i], i % 6 < 2 ? 0.0f : 1.0f);
}

TEST_P(Streams, a_peer_copy_crosses_devices) {
  float* here = upload(std::vector<float>(50, 3.0f));
  CUDA_CHECK(cudaSetDevice(1));
  float* there = device_array<float>(50);
  CUDA_CHECK(cudaSetDevice(0));
  CUDA_CHECK(cudaMemcpyPeerAsync(there, 1, here, 0, 50 * sizeof(float), stream));
  EXPECT_EQ(download(there, 50)[49], 3.0f);
}

TEST_P(Streams, a_graph_replays_what_was_captured) {
  float* x = upload(std::vector<float>(10, 1.0f));
  float* y = upload(std::vector<float>(10, 0.0f));
  cudaStream_t other = make_stream();
  cudaEvent_t fork = make_event(), join = make_event();
  CUDA_CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
  axpby<float>(x, y, 1, 1, 10, stream);  // y += 1
  CUDA_CHECK(cudaEventRecord(fork, stream));
  CUDA_CHECK(cudaStreamWaitEvent(other, fork, 0));
  axpby<float>(y, x, 1, 0, 10, other);  // x = y
  CUDA_CHECK(cudaEventRecord(join, other));
  CUDA_CHECK(cudaStreamWaitEvent(stream, join, 0));
  cudaGraph_t graph;
  CUDA_CHECK(cudaStreamEndCapture(stream, &graph));
  EXPECT_EQ(download(y, 10)[0], 0.0f);  // captured, not run
  size_t nodes = 0;
  CUDA_CHECK(cudaGraphGetNodes(graph, nullptr, &nodes));
  EXPECT_EQ(nodes, 2u);
  cudaGraphExec_t exec;
  CUDA_CHECK(cudaGraphInstantiate(&exec, graph, 0));
  CUDA_CHECK(cudaGraphDestroy(graph));
  for (int i = 0; i < 4; ++i) CUDA_CHECK(cudaGraphLaunch(exec, stream));
  EXPECT_EQ(download(y, 10)[0], 8.0f);  // doubles: 1, 2, 4, 8
  CUDA_CHECK(cudaGraphExecDestroy(exec));
}

TEST_P(Streams, memory_freed_in_the_streams_order_may_still_be_used_before) {
  void* p;
  CUDA_CHECK(cudaMallocAsync(&p, 40, stream));
  auto* y = static_cast<float*>(p);
  float* x = upload(std::vector<float>(10, 1.0f));
  CUDA_CHECK(cudaMemsetAsync(y, 0, 40, stream));
  axpby<float>(x, y, 1, 1, 10, stream);
  axpby<float>(y, x, 1, 1, 10, stream);
  CUDA_CHECK(cudaFreeAsync(y, stream));
  EXPECT_EQ(download(x, 10)[5], 2.0f);
  EXPECT_EQ(simgpu::live_bytes(0), 40u);  // x alone
}

TEST(Policies, work_is_late_when_lazy_and_early_when_eager) {
  for (Policy policy : {Policy::lazy, Policy::eager}) {
    simgpu::Config config;
    config.policy = policy;
    simgpu::reset(config);
    static bool ran;
    ran = false;
    CUDA_CHECK(cudaLaunchHostFunc(
        Gpu::make_stream(), [](void*) { ran = true; }, nullptr));
    EXPECT_EQ(ran, policy == Policy::eager);
  }
  simgpu::take_reports();
}

TEST(Deadlocks, a_wait_that_nothing_can_end_is_reported_and_fails) {
  simgpu::Config config;
  config.patience_ms = 100;
  simgpu::reset(config);
  // A callback that never ends by itself holds up the stream while another thread waits for it.
  static std::atomic<bool> release;
  release = false;
  cudaStream_t stream = Gpu::make_stream();
  CUDA_CHECK(cudaLaunchHostFunc(
      stream,
      [](void*) {
        while (!release) std::this_thread::yield();
      },
      nullptr));
  std::thread holder([=] { cudaStreamSynchronize(stream); });
  cudaStream_t other = Gpu::make_stream();
  while (simgpu::calls("cudaStreamSynchronize") == 0) std::this_thread::yield();
  const cudaError_t status = cudaStreamSynchronize(stream);
  release = true;
  holder.join();
  EXPECT_EQ(status, cudaErrorLaunchTimeout);
  cudaGetLastError();
  EXPECT_NE(simgpu::describe(simgpu::take_reports()).find("for a host callback"), std::string::npos);
  (void)other;
}

}  // namespace
