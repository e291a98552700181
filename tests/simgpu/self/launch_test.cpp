// Kernels that are right: the device language and the executor, for every order of threads and blocks.
#include <numeric>

#include "simgpu/kernels/kernels.h"
#include "simgpu/self/fixture.h"

namespace {

using simgpu::Policy;

struct Launch : SimulatedGpu {
  template <class F>
  void for_seeds(F f) {
    for (uint64_t seed = 1; seed <= 5; ++seed) {
      SCOPED_TRACE(seed);
      simgpu::configure(Policy::random, seed);
      f();
    }
  }
};

TEST_F(Launch, axpby_float) {
  for_seeds([&] {
    const int n = 1000;
    std::vector<float> x(n), y(n, 1.0f);
    std::iota(x.begin(), x.end(), 0.0f);
    float *dx = upload(x), *dy = upload(y);
    axpby<float>(dx, dy, 2.0f, 3.0f, n, stream);
    const std::vector<float> result = download(dy, n);
    for (int i = 0; i < n; ++i) ASSERT_EQ(result[size_t(i)], 2.0f * static_cast<float>(i) + 3.0f);
  });
}

TEST_F(Launch, axpby_half_neighbours_do_not_race) {
  std::vector<__half> x(777, __float2half(2.0f)), y(777, __float2half(1.0f));
  __half *dx = upload(x), *dy = upload(y);
  axpby<__half>(dx, dy, 3.0f, 1.0f, 777, stream);
  for (__half v : download(dy, 777)) ASSERT_EQ(__half2float(v), 7.0f);
}

TEST_F(Launch, axpby_bfloat16) {
  std::vector<__nv_bfloat16> x(100, __float2bfloat16(2.0f)), y(100, __float2bfloat16(1.0f));
  __nv_bfloat16 *dx = upload(x), *dy = upload(y);
  axpby<__nv_bfloat16>(dx, dy, 0.5f, 1.0f, 100, stream);
  for (__nv_bfloat16 v : download(dy, 100)) ASSERT_EQ(__bfloat162float(v), 2.0f);
}

TEST_F(Launch, row_sums_by_shuffles_and_by_tree) {
  const int rows = 7, columns = 300;
  std::vector<float> x(size_t(rows) * columns);
  for (size_t i = 0; i < x.size(); ++i) x[i] = static_cast<float>(i % 13) - 6.0f;
  float* dx = upload(x);
  for_seeds([&] {
    float *a = device_array<float>(rows), *b = device_array<float>(rows);
    row_sum(dx, a, rows, columns, stream);
    row_sum_tree(dx, b, rows, columns, stream);
    const std::vector<float> by_shuffles = download(a, rows), by_tree = download(b, rows);
    for (int r = 0; r < rows; ++r) {
      const auto row = x.begin() + r * columns;
      const float expected = std::accumulate(row, row + columns, 0.0f);  // exact: small integers
      ASSERT_EQ(by_shuffles[size_t(r)], expected);
      ASSERT_EQ(by_tree[size_t(r)], expected);
    }
  });
}

TEST_F(Launch, histogram_with_atomics) {
  std::vector<uint8_t> x(5000);
  for (size_t i = 0; i < x.size(); ++i) x[i] = static_cast<uint8_t>(i * i % 10);
  uint8_t* dx = upload(x);
  unsigned* bins = device_array<unsigned>(10);
  CUDA_CHECK(cudaMemsetAsync(bins, 0, 10 * sizeof(unsigned), stream));
  histogram(dx, bins, 5000, stream);
  const std::vector<unsigned> result = download(bins, 10);
  for (unsigned b = 0; b < 10; ++b)
    ASSERT_EQ(result[b], static_cast<unsigned>(std::count(x.begin(), x.end(), static_cast<uint8_t>(b))));
}

TEST_F(Launch, refuses_what_a_gpu_refuses) {
  float* x = device_array<float>(1);
  EXPECT_THROW(axpby<float>(x, x, 1, 1, 0, stream), lockstep::Error);  // a grid of no blocks
  EXPECT_NE(reports().find("axpby_kernel<float> is launched with a grid of 0"), std::string::npos);
  CUDA_CHECK(cudaSetDevice(1));
  EXPECT_THROW(axpby<float>(x, x, 1, 1, 1, stream), lockstep::Error);  // a stream of device 0
  EXPECT_NE(reports().find("while device 1 is current"), std::string::npos);
}

}  // namespace
