#include "lockstep/training/module.h"

#include <gtest/gtest.h>

#include <functional>
#include <sstream>

#include "lockstep/runtime/autograd.h"

namespace lockstep {
namespace {

// [batch, 2] -> [batch, 3, 1]; a parameter, a tied one and two buffers.
struct Leaf : Module {
  Tensor& weight;
  Tensor& bias;
  Tensor& mean;
  Tensor& count;
  explicit Leaf(bool with_bias = true)
      : weight(register_parameter("weight", full({3, 2}, 1))),
        bias(register_parameter("bias", with_bias ? zeros({3}) : Tensor())),
        mean(register_buffer("mean", zeros({3}))),
        count(register_buffer("count", zeros({}, DType::int64))) {}
  Tensor forward(const Tensor& x) override {
    LOCKSTEP_CHECK(x.ndim() == 2 && x.size(1) == 2, "[Leaf] shape ", x.shape());
    LOCKSTEP_CHECK(x.device() == weight.device(), "[Leaf] devices differ");
    if (is_training()) count.fill_(count.item() + 1);
    return empty({x.size(0), 3, 1}, x.dtype(), x.device());
  }
};

struct Net : Module {
  Leaf first, second{false};
  Net() {
    register_module("first", first);
    register_module("second", second);
  }
  Tensor forward(const Tensor& x) override { return second(first(x).slice(1, 0, 2).squeeze(2)); }
};

std::vector<std::string> names(const StateDict& state) {
  std::vector<std::string> all;
  for (auto& [name, tensor] : state) all.push_back(name);
  return all;
}

std::string error_of(const std::function<void()>& f) {
  try {
    f();
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

TEST(Module, lists_dotted_names_in_order) {
  Net net;
  EXPECT_EQ(names(net.named_parameters()),
            (std::vector<std::string>{"first.weight", "first.bias", "second.weight"}));
  EXPECT_EQ(names(net.named_buffers()),
            (std::vector<std::string>{"first.mean", "first.count", "second.mean", "second.count"}));
  EXPECT_EQ(net.state_dict().size(), 7u);
  EXPECT_EQ(net.parameter_count(), 15);
  for (const Tensor& w : net.parameters()) EXPECT_TRUE(w.requires_grad());
  auto modules = net.named_modules();
  ASSERT_EQ(modules.size(), 3u);
  EXPECT_EQ(modules[0].second, &net);
  EXPECT_EQ(modules[2].first, "second");
}

TEST(Module, lists_tied_tensors_once) {
  Net net;
  net.second.weight = net.first.weight;
  EXPECT_EQ(names(net.named_parameters()), (std::vector<std::string>{"first.weight", "first.bias"}));
  net.to(DType::float64);
  EXPECT_TRUE(net.second.weight.same_as(net.first.weight));
  EXPECT_EQ(net.second.weight.dtype(), DType::float64);
  // A file that lists both names, or only the second, is accepted.
  StateDict state = net.state_dict();
  state[0].first = "second.weight";
  state[0].second = full({3, 2}, 5, DType::float64);
  net.load_state_dict(state);
  EXPECT_EQ(net.first.weight.to_vector<double>()[0], 5);
  state.emplace_back("first.weight", full({3, 2}, 5, DType::float64));
  net.load_state_dict(state);
}

TEST(Module, train_and_eval_reach_every_child) {
  Net net;
  EXPECT_TRUE(net.second.is_training());
  net.eval();
  EXPECT_FALSE(net.is_training() || net.first.is_training() || net.second.is_training());
  net.train();
  EXPECT_TRUE(net.first.is_training());
}

TEST(Module, conversion_keeps_values_handles_and_gradients) {
  Net net;
  Tensor handle = net.first.weight;
  handle.set_grad(full({3, 2}, 2));
  net.to(DType::bfloat16);
  EXPECT_EQ(handle.dtype(), DType::bfloat16);
  EXPECT_EQ(handle.grad().dtype(), DType::bfloat16);
  EXPECT_EQ(handle.grad().to_vector<float>(), std::vector<float>(6, 2));
  EXPECT_EQ(net.first.mean.dtype(), DType::bfloat16);
  EXPECT_EQ(net.first.count.dtype(), DType::int64);
  EXPECT_TRUE(handle.requires_grad() && handle.is_leaf());
  EXPECT_THROW(net.to(DType::int64), Error);
  net.to(Device("meta"));
  EXPECT_TRUE(handle.device().is_meta() && net.second.count.device().is_meta());
}

TEST(Module, conversion_that_runs_out_of_memory_changes_nothing) {
  struct Big : Module {
    Big() {
      register_parameter("a", zeros({1 << 20}));
      register_parameter("b", zeros({1 << 20}));
    }
  } big;
  empty_cache({});
  set_memory_ceiling({}, memory_stats({}).reserved_bytes + (10 << 20));
  EXPECT_THROW(big.to(DType::float64), OutOfMemory);
  set_memory_ceiling({}, SIZE_MAX);
  for (const Tensor& w : big.parameters()) EXPECT_EQ(w.dtype(), DType::float32);
}

TEST(Module, forgets_gradients_and_freezes) {
  Net net;
  net.first.weight.set_grad(zeros({3, 2}));
  net.zero_grad();
  EXPECT_FALSE(net.first.weight.grad().defined());
  net.set_requires_grad(false);
  for (const Tensor& w : net.parameters()) EXPECT_FALSE(w.requires_grad());
  net.zero_grad();
  EXPECT_NE(net.summary({1, 2}).find("(0 trainable)"), std::string::npos);
}

TEST(Module, loads_what_it_saved) {
  Net a, b;
  a.first.weight.detach().fill_(3);
  a.second.count.fill_(7);
  uint64_t version = b.first.weight.version();
  b.load_state_dict(a.state_dict());
  EXPECT_EQ(b.first.weight.to_vector<float>(), std::vector<float>(6, 3));
  EXPECT_EQ(b.second.count.item(), 7);
  EXPECT_GT(b.first.weight.version(), version);
  EXPECT_TRUE(b.first.weight.requires_grad());
  a.load_state_dict(a.state_dict());
}

TEST(Module, a_failed_load_names_everything_and_changes_nothing) {
  Net net;
  StateDict state = net.state_dict();
  for (auto& [name, tensor] : state) tensor = full(tensor.shape(), 9, tensor.dtype());
  state[1].second = zeros({4});                          // first.bias
  state[2].second = zeros({3, 2}, DType::float16);       // second.weight
  state[3].first = "first.maen";                         // first.mean
  state[5].second = empty({3}, DType::float32, "meta");  // second.mean
  state.push_back(state[0]);
  std::string message = error_of([&] { net.load_state_dict(state); });
  for (const char* part :
       {"6 problems", "wrong shape: first.bias, got [4], expected [3]", "unexpected: first.maen",
        "missing: first.mean", "wrong dtype: second.weight, got float16, expected float32",
        "no values: second.mean", "given twice: first.weight"})
    EXPECT_NE(message.find(part), std::string::npos) << part << " in " << message;
  EXPECT_EQ(net.first.weight.to_vector<float>(), std::vector<float>(6, 1));

  // Not strict: names are passed over, shapes are not.
  EXPECT_NE(error_of([&] { net.load_state_dict(state, false); }), "");
  net.load_state_dict({{"first.bias", ones({3})}, {"other", ones({3})}}, false);
  EXPECT_EQ(net.first.bias.to_vector<float>(), std::vector<float>(3, 1));
  EXPECT_EQ(net.first.weight.to_vector<float>(), std::vector<float>(6, 1));
}

TEST(Module, a_long_list_of_problems_is_cut) {
  Net net;
  StateDict state = net.state_dict();
  for (int i = 0; i < 100; i++) state.emplace_back("extra" + std::to_string(i), ones({1}));
  std::string message = error_of([&] { net.load_state_dict(state); });
  EXPECT_NE(message.find("100 problems"), std::string::npos);
  EXPECT_NE(message.find("and 80 more"), std::string::npos);
  EXPECT_LT(message.size(), 1000u);
}

TEST(Module, refuses_bad_registrations) {
  struct Open : Module {
    using Module::register_buffer, Module::register_module, Module::register_parameter;
  } outer, inner;
  outer.register_module("inner", inner);
  EXPECT_THROW(outer.register_parameter("inner", zeros({1})), Error);
  EXPECT_THROW(outer.register_parameter("a.b", zeros({1})), Error);
  EXPECT_THROW(outer.register_buffer("", zeros({1})), Error);
  EXPECT_THROW(outer.register_parameter("whole", zeros({1}, DType::int64)), Error);
  EXPECT_THROW(outer.register_parameter("result", ones({1}).set_requires_grad().clone()), Error);
  EXPECT_THROW(outer.register_module("self", outer), Error);
  EXPECT_THROW(inner.register_module("cycle", outer), Error);
  EXPECT_NE(error_of([&] { inner(zeros({1})); }).find("[Open] has no forward"), std::string::npos);
}

TEST(Module, summary_shows_shapes_and_leaves_no_trace) {
  Net net;
  net.second.eval();
  Tensor weight = net.first.weight;
  const void* data = weight.raw_data();
  uint64_t version = weight.version();
  int64_t allocations = memory_stats({}).allocations;
  std::string text = net.summary({64, 2});
  EXPECT_EQ(memory_stats({}).allocations, allocations);
  EXPECT_EQ(text,
            "layer   type  output      parameters  bytes\n"
            "first   Leaf  [64, 3, 1]           9   56 B\n"
            "second  Leaf  [64, 3, 1]           6   44 B\n"
            "Net: 15 parameters (15 trainable), 60 B; buffers 40 B; input [64, 2]\n");
  EXPECT_EQ(weight.raw_data(), data);
  EXPECT_EQ(weight.version(), version);
  EXPECT_TRUE(weight.requires_grad() && net.first.is_training() && !net.second.is_training() &&
              net.is_training());
  EXPECT_EQ(net.first.count.item(), 0);
  EXPECT_EQ(weight.to_vector<float>(), std::vector<float>(6, 1));
}

TEST(Module, summary_that_fails_restores_the_module) {
  Net net;
  EXPECT_THROW(net.summary({64, 5}), Error);
  EXPECT_TRUE(net.first.weight.device().is_cpu() && net.is_training());
  EXPECT_EQ(net(zeros({1, 2})).shape(), (Shape{1, 3, 1}));
}

TEST(Module, prints_as_a_tree) {
  Net net;
  std::ostringstream out;
  out << net;
  EXPECT_EQ(out.str(), "Net {\n  first: Leaf\n  second: Leaf\n}");
}

TEST(Module, parameters_can_be_made_on_meta) {
  {
    ParameterDeviceGuard guard("meta");
    EXPECT_TRUE(empty_parameter({1 << 20, 1 << 20}).device().is_meta());
  }
  EXPECT_TRUE(empty_parameter({1}).device().is_cpu());
}

}  // namespace
}  // namespace lockstep
