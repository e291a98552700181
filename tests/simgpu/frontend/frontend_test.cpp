// NVIDIA's cudnn-frontend, unmodified, on the simulated cuDNN: what the runtime will do for its convolutions.
#include <cudnn_frontend.h>

#include "simgpu/self/fixture.h"

namespace {

namespace fe = cudnn_frontend;

struct Frontend : SimulatedGpu {
  void SetUp() override {
    SimulatedGpu::SetUp();
    ASSERT_EQ(cudnnCreate(&handle), CUDNN_STATUS_SUCCESS);
    cudnnSetStream(handle, stream);
  }
  void TearDown() override {
    cudnnDestroy(handle);
    SimulatedGpu::TearDown();
  }
  void run(fe::graph::Graph& graph,
           std::unordered_map<std::shared_ptr<fe::graph::Tensor_attributes>, void*> pack) {
    auto check = [](fe::error_t e) { ASSERT_TRUE(e.is_good()) << e.get_message(); };
    check(graph.validate());
    check(graph.build_operation_graph(handle));
    check(graph.create_execution_plans({fe::HeurMode_t::A, fe::HeurMode_t::FALLBACK}));
    check(graph.check_support(handle));
    check(graph.build_plans(handle, fe::BuildPlanPolicy_t::HEURISTICS_CHOICE));
    int64_t bytes = 0;
    check(graph.get_workspace_size(bytes));
    void* workspace = bytes == 0 ? nullptr : device_array<char>(static_cast<size_t>(bytes));
    check(graph.execute(handle, pack, workspace));
  }
  cudnnHandle_t handle = nullptr;
};

TEST_F(Frontend, convolution_bias_relu) {
  fe::graph::Graph graph;
  graph.set_io_data_type(fe::DataType_t::FLOAT)
      .set_intermediate_data_type(fe::DataType_t::FLOAT)
      .set_compute_data_type(fe::DataType_t::FLOAT);
  auto x = graph.tensor(
      fe::graph::Tensor_attributes().set_name("x").set_dim({2, 8, 5, 5}).set_stride({200, 1, 40, 8}));
  auto w = graph.tensor(
      fe::graph::Tensor_attributes().set_name("w").set_dim({4, 8, 3, 3}).set_stride({72, 1, 24, 8}));
  auto b = graph.tensor(
      fe::graph::Tensor_attributes().set_name("b").set_dim({1, 4, 1, 1}).set_stride({4, 1, 4, 4}));
  auto y = graph.conv_fprop(
      x, w, fe::graph::Conv_fprop_attributes().set_padding({1, 1}).set_stride({1, 1}).set_dilation({1, 1}));
  y = graph.pointwise(y, b, fe::graph::Pointwise_attributes().set_mode(fe::PointwiseMode_t::ADD));
  y = graph.pointwise(y, fe::graph::Pointwise_attributes().set_mode(fe::PointwiseMode_t::RELU_FWD));
  y->set_output(true);
  float *dx = upload(std::vector<float>(400, 1.0f)), *dw = upload(std::vector<float>(288, 1.0f));
  float *db = upload(std::vector<float>{0, 1, -40, -100}), *dy = device_array<float>(200);
  run(graph, {{x, dx}, {w, dw}, {b, db}, {y, dy}});
  const std::vector<float> result = download(dy, 200);  // N H W C
  const float corner = 4 * 8, middle = 9 * 8;
  EXPECT_EQ(result[0], corner);
  EXPECT_EQ(result[1], corner + 1);
  EXPECT_EQ(result[2], 0.0f);  // relu
  EXPECT_EQ(result[(2 * 5 + 2) * 4 + 2], middle - 40);
  EXPECT_EQ(result[(2 * 5 + 2) * 4 + 3], 0.0f);
}

TEST_F(Frontend, both_gradients) {
  for (const bool data : {true, false}) {
    fe::graph::Graph graph;
    graph.set_io_data_type(fe::DataType_t::FLOAT).set_compute_data_type(fe::DataType_t::FLOAT);
    auto dy = graph.tensor(fe::graph::Tensor_attributes().set_dim({1, 4, 5, 5}).set_stride({100, 1, 20, 4}));
    auto other =
        data ? graph.tensor(fe::graph::Tensor_attributes().set_dim({4, 8, 3, 3}).set_stride({72, 1, 24, 8}))
             : graph.tensor(fe::graph::Tensor_attributes().set_dim({1, 8, 5, 5}).set_stride({200, 1, 40, 8}));
    auto result =
        data ? graph.conv_dgrad(
                   dy, other,
                   fe::graph::Conv_dgrad_attributes().set_padding({1, 1}).set_stride({1, 1}).set_dilation(
                       {1, 1}))
             : graph.conv_wgrad(
                   dy, other,
                   fe::graph::Conv_wgrad_attributes().set_padding({1, 1}).set_stride({1, 1}).set_dilation(
                       {1, 1}));
    result->set_output(true);
    if (data) result->set_dim({1, 8, 5, 5}).set_stride({200, 1, 40, 8});
    else result->set_dim({4, 8, 3, 3}).set_stride({72, 1, 24, 8});
    float *ddy = upload(std::vector<float>(100, 1.0f)), *dother = upload(std::vector<float>(288, 1.0f));
    float* out = device_array<float>(288);
    run(graph, {{dy, ddy}, {other, dother}, {result, out}});
    const std::vector<float> values = download(out, data ? 200 : 288);
    if (data) EXPECT_EQ(values[(2 * 5 + 2) * 8], 36.0f);  // nine taps of four channels
    if (!data) EXPECT_EQ(values[4 * 8], 25.0f);           // the middle tap sees every pixel
    if (!data) EXPECT_EQ(values[0], 16.0f);               // a corner tap misses a row and a column
  }
}

}  // namespace
