// Convolutions and fusions through cuDNN's backend API.
#include <cuda_fp16.h>

#include "simgpu/self/dnn.h"

namespace {

struct Convolutions : SimulatedGpu {
  std::vector<float> numbers(size_t n, unsigned seed) {
    std::vector<float> v(n);
    for (float& x : v) x = static_cast<float>((seed = seed * 1664525u + 1013904223u) >> 28) - 7.0f;
    return v;
  }
  void* workspace(const Dnn& plan) {
    const int64_t bytes = dnn_workspace_bytes(plan);
    return bytes == 0 ? nullptr : device_array<char>(static_cast<size_t>(bytes));
  }
  cudnnStatus_t run(const Dnn& plan, const std::vector<int64_t>& uids, const std::vector<void*>& pointers) {
    return dnn_execute(stream, plan, uids, pointers, workspace(plan));
  }
};

const DnnShape kX{{2, 3, 7, 6}}, kW{{4, 3, 3, 3}}, kY{{2, 4, 4, 3}};  // padding 1, stride 2

// y = conv(x, w), written out.
std::vector<float> reference(const std::vector<float>& x, const std::vector<float>& w) {
  std::vector<float> y(2 * 4 * 4 * 3);
  for (int n = 0; n < 2; ++n)
    for (int k = 0; k < 4; ++k)
      for (int oh = 0; oh < 4; ++oh)
        for (int ow = 0; ow < 3; ++ow)
          for (int c = 0; c < 3; ++c)
            for (int r = 0; r < 3; ++r)
              for (int s = 0; s < 3; ++s) {
                const int ih = oh * 2 - 1 + r, iw = ow * 2 - 1 + s;
                if (ih < 0 || ih >= 7 || iw < 0 || iw >= 6) continue;
                y[size_t(((n * 4 + k) * 4 + oh) * 3 + ow)] +=
                    x[size_t(((n * 3 + c) * 7 + ih) * 6 + iw)] * w[size_t(((k * 3 + c) * 3 + r) * 3 + s)];
              }
  return y;
}

double dot(const std::vector<float>& a, const std::vector<float>& b) {
  double sum = 0;
  for (size_t i = 0; i < a.size(); ++i) sum += double(a[i]) * double(b[i]);
  return sum;
}

TEST_F(Convolutions, forward_data_and_filter_agree) {
  const std::vector<float> x = numbers(2 * 3 * 7 * 6, 1), w = numbers(4 * 3 * 9, 2),
                           dy = numbers(2 * 4 * 4 * 3, 3);
  float *dx = upload(x), *dw = upload(w), *ddy = upload(dy);
  float *y = device_array<float>(dy.size()), *x_gradient = device_array<float>(x.size()),
        *w_gradient = device_array<float>(w.size());
  const Dnn tx = dnn_tensor(1, kX), tw = dnn_tensor(2, kW), ty = dnn_tensor(3, kY),
            conv = dnn_convolution(1, 2);
  const Dnn forward = Dnn(CUDNN_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR)
                          .set(CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_CONV_DESC, conv)
                          .set(CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_X, tx)
                          .set(CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_W, tw)
                          .set(CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_Y, ty)
                          .finalize();
  const Dnn data = Dnn(CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_DATA_DESCRIPTOR)
                       .set(CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_CONV_DESC, conv)
                       .set(CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DX, tx)
                       .set(CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_W, tw)
                       .set(CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DY, ty)
                       .finalize();
  const Dnn filter = Dnn(CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_FILTER_DESCRIPTOR)
                         .set(CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_CONV_DESC, conv)
                         .set(CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_X, tx)
                         .set(CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DW, tw)
                         .set(CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DY, ty)
                         .finalize();
  int refused = 0;
  for (int i = 0; i < 8; ++i) {
    ASSERT_EQ(run(dnn_plan({forward.handle()}, &refused), {1, 2, 3}, {dx, dw, y}), CUDNN_STATUS_SUCCESS);
    ASSERT_EQ(run(dnn_plan({data.handle()}, &refused), {1, 2, 3}, {x_gradient, dw, ddy}),
              CUDNN_STATUS_SUCCESS);
    ASSERT_EQ(run(dnn_plan({filter.handle()}, &refused), {1, 2, 3}, {dx, w_gradient, ddy}),
              CUDNN_STATUS_SUCCESS);
  }
  EXPECT_GT(refused, 0);  // the loop over engines has met one that refuses
  const std::vector<float> result = download(y, dy.size());
  EXPECT_EQ(result, reference(x, w));
  // The gradients are the adjoints: <conv(x, w), dy> = <x, data(dy)> = <w, filter(dy)>. Exact: small
  // integers.
  EXPECT_EQ(dot(download(x_gradient, x.size()), x), dot(result, dy));
  EXPECT_EQ(dot(download(w_gradient, w.size()), w), dot(result, dy));
}

TEST_F(Convolutions, channels_last_half_with_bias_and_relu_in_one_graph) {
  const std::vector<float> x = numbers(2 * 3 * 7 * 6, 4), w = numbers(4 * 3 * 9, 5), bias = numbers(4, 6);
  const auto channels_last = [](const std::vector<float>& v, const DnnShape& s) {
    std::vector<__half> out(v.size());
    const int64_t c = s.dims[1], hw = s.dims[2] * s.dims[3];
    for (int64_t i = 0; i < static_cast<int64_t>(v.size()); ++i)
      out[size_t(i / (c * hw) * c * hw + i % hw * c + i / hw % c)] = __float2half(v[size_t(i)]);
    return out;
  };
  __half *dx = upload(channels_last(x, kX)), *dw = upload(channels_last(w, kW)),
         *db = upload(channels_last(bias, {{1, 4, 1, 1}}));
  __half* y = device_array<__half>(2 * 4 * 4 * 3);
  const DnnShape out{kY.dims, true};
  const Dnn tx = dnn_tensor(1, {kX.dims, true}, CUDNN_DATA_HALF),
            tw = dnn_tensor(2, {kW.dims, true}, CUDNN_DATA_HALF),
            tb = dnn_tensor(3, {{1, 4, 1, 1}, true}, CUDNN_DATA_HALF),
            ty = dnn_tensor(4, out, CUDNN_DATA_HALF), raw = dnn_tensor(5, out, CUDNN_DATA_FLOAT, true),
            biased = dnn_tensor(6, out, CUDNN_DATA_FLOAT, true);
  const Dnn conv = Dnn(CUDNN_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR)
                       .set(CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_CONV_DESC, dnn_convolution(1, 2))
                       .set(CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_X, tx)
                       .set(CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_W, tw)
                       .set(CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_Y, raw)
                       .finalize();
  const Dnn add = dnn_pointwise(CUDNN_POINTWISE_ADD, raw, &tb, biased);
  const Dnn relu = dnn_pointwise(CUDNN_POINTWISE_RELU_FWD, biased, nullptr, ty);
  // The operations may be named in any order.
  ASSERT_EQ(run(dnn_plan({relu.handle(), conv.handle(), add.handle()}), {1, 2, 3, 4}, {dx, dw, db, y}),
            CUDNN_STATUS_SUCCESS);
  std::vector<float> expected = reference(x, w);
  for (size_t i = 0; i < expected.size(); ++i) expected[i] = std::max(0.0f, expected[i] + bias[i / 12 % 4]);
  const std::vector<__half> got = download(y, expected.size()), want = channels_last(expected, kY);
  for (size_t i = 0; i < got.size(); ++i) ASSERT_EQ(__half2float(got[i]), __half2float(want[i]));
}

TEST_F(Convolutions, what_is_not_simulated_is_refused) {
  const Dnn x = dnn_tensor(1, kX), y = dnn_tensor(2, kX);
  const Dnn op = dnn_pointwise(CUDNN_POINTWISE_ERF, x, nullptr, y);
  const Dnn graph =
      Dnn(CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR)
          .set(CUDNN_ATTR_OPERATIONGRAPH_OPS, CUDNN_TYPE_BACKEND_DESCRIPTOR, std::vector<void*>{op.handle()})
          .finalize();
  EXPECT_EQ(graph.status(), CUDNN_STATUS_NOT_SUPPORTED);
  char text[100];
  cudnnGetLastErrorString(text, sizeof text);
  EXPECT_NE(std::string(text).find("pointwise mode"), std::string::npos);
}

}  // namespace
