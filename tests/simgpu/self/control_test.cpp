// The simulator's control interface: injected failures, counters, timeline, memory limits.
#include <cublas_v2.h>

#include <fstream>

#include "simgpu/kernels/kernels.h"
#include "simgpu/self/fixture.h"

namespace {

struct Control : SimulatedGpu {};

TEST_F(Control, the_nth_call_fails) {
  simgpu::fail("cudaMalloc", 2, cudaErrorMemoryAllocation);
  device_array<float>(1);
  EXPECT_THROW(device_array<float>(1), lockstep::Error);
  device_array<float>(1);
  EXPECT_EQ(simgpu::calls("cudaMalloc"), 3);
}

TEST_F(Control, memory_runs_out_and_comes_back) {
  simgpu::Config config;
  config.memory_bytes = 1000;
  simgpu::reset(config);
  float* a = device_array<float>(200);
  EXPECT_THROW(device_array<float>(100), lockstep::Error);
  size_t free_bytes, total;
  CUDA_CHECK(cudaMemGetInfo(&free_bytes, &total));
  EXPECT_EQ(free_bytes, 200u);
  CUDA_CHECK(cudaFree(a));
  device_array<float>(250);
  EXPECT_EQ(simgpu::live_bytes(0), 1000u);
}

TEST_F(Control, a_failed_kernel_loses_the_context) {
  float* x = upload(std::vector<float>(10, 1.0f));
  simgpu::fail("kernel", 1, cudaErrorIllegalAddress);
  axpby<float>(x, x, 1, 1, 10, stream);  // the launch itself succeeds
  try {
    CUDA_CHECK(cudaStreamSynchronize(stream));
    FAIL();
  } catch (const lockstep::Error& e) {
    const std::string what = e.what();
    EXPECT_NE(what.find("control_test.cpp:"), std::string::npos) << what;
    EXPECT_NE(what.find("cudaStreamSynchronize(stream) failed: an illegal memory access was encountered"),
              std::string::npos)
        << what;
  }
  EXPECT_THROW(device_array<float>(1), lockstep::Error);  // and so does everything after it
  simgpu::take_reports();
}

TEST_F(Control, independent_streams_overlap_in_virtual_time_and_dependent_ones_do_not) {
  cudaStream_t other = make_stream();
  float *x = upload(std::vector<float>(1000, 1.0f)), *y = upload(std::vector<float>(1000, 1.0f));
  cudaEvent_t event = make_event();
  axpby<float>(x, x, 1, 1, 1000, stream);
  axpby<float>(y, y, 1, 1, 1000, other);
  CUDA_CHECK(cudaEventRecord(event, other));
  CUDA_CHECK(cudaStreamWaitEvent(stream, event, 0));
  axpby<float>(y, x, 1, 1, 1000, stream);
  CUDA_CHECK(cudaStreamSynchronize(stream));
  std::vector<simgpu::Span> spans;
  for (const simgpu::Span& s : simgpu::timeline())
    if (s.name == "axpby_kernel<float>") spans.push_back(s);
  ASSERT_EQ(spans.size(), 3u);
  std::sort(spans.begin(), spans.end(), [](const auto& a, const auto& b) { return a.start_us < b.start_us; });
  EXPECT_LT(spans[1].start_us, spans[0].end_us);
  EXPECT_GE(spans[2].start_us, spans[0].end_us);
  EXPECT_GE(spans[2].start_us, spans[1].end_us);

  const std::string path = ::testing::TempDir() + "simgpu_trace.json";
  simgpu::write_trace(path);
  std::string text(std::istreambuf_iterator<char>(std::ifstream(path).rdbuf()), {});
  EXPECT_NE(text.find("axpby_kernel<float>"), std::string::npos);
}

TEST_F(Control, events_measure_virtual_time) {
  cudaEvent_t begin, end;
  CUDA_CHECK(cudaEventCreate(&begin));
  CUDA_CHECK(cudaEventCreate(&end));
  float* x = upload(std::vector<float>(10, 1.0f));
  CUDA_CHECK(cudaEventRecord(begin, stream));
  axpby<float>(x, x, 1, 1, 10, stream);
  CUDA_CHECK(cudaEventRecord(end, stream));
  CUDA_CHECK(cudaEventSynchronize(end));
  float ms = 0;
  CUDA_CHECK(cudaEventElapsedTime(&ms, begin, end));
  EXPECT_GT(ms, 0.0f);
  EXPECT_LT(ms, 1.0f);
}

TEST_F(Control, products_with_transposes_strides_and_padding) {
  cublasHandle_t handle;
  ASSERT_EQ(cublasCreate(&handle), CUBLAS_STATUS_SUCCESS);
  cublasSetStream(handle, stream);
  // Row-major y (3x2) = x (3x4) w^T (2x4), which is column-major y^T = w x^T; two items.
  std::vector<float> x(24), w(16);
  for (size_t i = 0; i < x.size(); ++i) x[i] = static_cast<float>(i % 5) - 2;
  for (size_t i = 0; i < w.size(); ++i) w[i] = static_cast<float>(i % 3);
  float *dx = upload(x), *dw = upload(w), *dy = upload(std::vector<float>(12, 1.0f));
  const float alpha = 2, beta = 1;
  EXPECT_EQ(cublasGemmStridedBatchedEx(handle, CUBLAS_OP_T, CUBLAS_OP_N, 2, 3, 4, &alpha, dw, CUDA_R_32F, 4,
                                       8, dx, CUDA_R_32F, 4, 12, &beta, dy, CUDA_R_32F, 2, 6, 2,
                                       CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT),
            CUBLAS_STATUS_SUCCESS);
  const std::vector<float> y = download(dy, 12);
  for (size_t item = 0; item < 2; ++item)
    for (size_t r = 0; r < 3; ++r)
      for (size_t c = 0; c < 2; ++c) {
        float sum = 0;
        for (size_t k = 0; k < 4; ++k) sum += x[item * 12 + r * 4 + k] * w[item * 8 + c * 4 + k];
        EXPECT_EQ(y[item * 6 + r * 2 + c], 2 * sum + 1);
      }
  EXPECT_EQ(cublasSgemm(handle, CUBLAS_OP_N, CUBLAS_OP_N, 4, 4, 4, &alpha, dx, 3, dw, 4, &beta, dy, 4),
            CUBLAS_STATUS_INVALID_VALUE);
  cublasDestroy(handle);
}

}  // namespace
