#include "lockstep/training/optimizer.h"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <memory>

#include "lockstep/runtime/autograd.h"
#include "lockstep/runtime/parallel.h"
#include "lockstep/runtime/random.h"
#include "lockstep/training/schedule.h"

namespace lockstep {
namespace {

using Make = std::function<std::unique_ptr<Optimizer>(const Tensors&)>;

Tensor leaf(const std::vector<double>& values, DType dtype = DType::float32) {
  return from_vector(values).to(dtype).set_requires_grad();
}

void set_grad(const Tensor& w, const std::vector<double>& values) {
  w.set_grad(from_vector(values, w.shape()).to(w.dtype()));
}

// The gradients with which the values of PyTorch below were made.
void set_golden_grads(const Tensor& w, const Tensor& b, int t) {
  std::vector<double> dw, db;
  for (int i = 0; i < 3; i++) dw.push_back(0.1 * (i + 1) - 0.3 * t * (i % 2 == 0 ? 1 : -1));
  for (int i = 0; i < 2; i++) db.push_back(0.1 * (i + 4) - 0.3 * t * (i % 2 == 0 ? -1 : 1));
  set_grad(w, dw);
  set_grad(b, db);
}

struct Golden {
  const char* name;
  Make make;
  std::vector<double> after_5;  // w, then b: float64, PyTorch 2.13
};

std::vector<Golden> goldens() {
  auto sgd = [](SGDOptions options) {
    return [=](const Tensors& p) { return std::make_unique<SGD>(p, options); };
  };
  return {
      {"sgd", sgd({.lr = 0.1}), {0.75, -1.4, 2.15, -0.25, 0.05}},
      {"momentum", sgd({.lr = 0.1, .momentum = 0.9}), {0.925329, -1.819652, 2.162447, -0.832534, -0.100435}},
      {"dampening",
       sgd({.lr = 0.1, .momentum = 0.9, .dampening = 0.5, .weight_decay = 0.1}),
       {0.649420109553125, -1.36191265300625, 1.85193054871875, -0.388152959495313, -0.14806945128125}},
      {"nesterov",
       sgd({.lr = 0.1, .momentum = 0.9, .nesterov = true, .weight_decay = 0.01}),
       {1.12354565887789, -2.11800354179498, 2.26317804929424, -1.22418083033695, -0.0385250657060181}},
      {"adam",
       [](const Tensors& p) { return std::make_unique<Adam>(p, AdamOptions{.lr = 0.1}); },
       {0.672542413223714, -1.47696607362149, 1.96290024775139, -0.24014053187227, -0.212241449562331}},
      {"adam with decay",
       [](const Tensors& p) {
         AdamOptions options{.lr = 0.1, .beta1 = 0.8, .beta2 = 0.95, .epsilon = 1e-3, .weight_decay = 0.1};
         return std::make_unique<Adam>(p, options);
       },
       {0.655644827853569, -1.47634545618691, 1.83454546359403, -0.2497544809561, -0.165454536405975}},
      {"adamw",
       [](const Tensors& p) {
         return std::make_unique<AdamW>(p, AdamWOptions{.lr = 0.1, .weight_decay = 0.1});
       },
       {0.648697287764346, -1.41842097166428, 1.87012477981523, -0.242639217116236, -0.2044742129144}},
  };
}

TEST(Optimizer, agrees_with_pytorch) {
  for (const Golden& golden : goldens()) {
    for (auto [dtype, tolerance] : {std::pair{DType::float64, 1e-13},
                                    {DType::float32, 2e-6},
                                    {DType::float16, 2e-2},
                                    {DType::bfloat16, 1e-1}}) {
      SCOPED_TRACE(concat(golden.name, " ", dtype));
      Tensor w = leaf({0.5, -1, 2}, dtype), b = leaf({0.25, 0}, dtype);
      auto optimizer = golden.make({w, b});
      uint64_t version = w.version();
      for (int t = 0; t < 5; t++) {
        set_golden_grads(w, b, t);
        optimizer->step();
      }
      EXPECT_EQ(w.version(), version + 5);
      std::vector<double> got = w.to_vector<double>(), got_b = b.to_vector<double>();
      got.insert(got.end(), got_b.begin(), got_b.end());
      for (size_t i = 0; i < got.size(); i++)
        EXPECT_NEAR(got[i], golden.after_5[i], tolerance * (1 + std::abs(got[i])));
    }
  }
}

// Enough elements, in tensors of odd sizes, for many chunks and several tensors in one.
Tensors many_tensors() {
  Generator generator(7);
  GeneratorGuard guard(generator);
  Tensors all;
  for (int64_t n : {3, 16384, 0, 70001, 1, 64, 40000, 10}) {
    Tensor w = randn({n});
    w.set_requires_grad();
    w.set_grad(randn({n}));
    all.push_back(w);
  }
  return all;
}

TEST(Optimizer, lists_of_tensors_equal_single_ones_for_any_threads) {
  const int threads = num_threads();
  for (const Golden& golden : goldens()) {
    SCOPED_TRACE(golden.name);
    Tensors alone = many_tensors();
    for (const Tensor& w : alone) {
      auto optimizer = golden.make({w});
      for (int t = 0; t < 3; t++) optimizer->step();
    }
    for (int count : {1, 2, 7}) {
      set_num_threads(count);
      Tensors together = many_tensors();
      auto optimizer = golden.make(together);
      for (int t = 0; t < 3; t++) optimizer->step();
      for (size_t i = 0; i < alone.size(); i++)
        EXPECT_EQ(together[i].to_vector<float>(), alone[i].to_vector<float>())
            << "tensor " << i << ", threads " << count;
    }
    set_num_threads(threads);
  }
}

TEST(Optimizer, resumes_bit_for_bit) {
  for (const Golden& golden : goldens()) {
    SCOPED_TRACE(golden.name);
    auto run = [&](bool resume) {
      Tensor w = leaf({0.5, -1, 2}), b = leaf({0.25, 0}), unused = leaf({1});
      auto optimizer = golden.make({w, unused, b});
      for (int t = 0; t < 5; t++) {
        if (resume && t == 3) {
          StateDict saved;
          for (auto& [name, tensor] : optimizer->state_dict()) saved.emplace_back(name, tensor.clone());
          optimizer = golden.make({w, unused, b});
          optimizer->load_state_dict(saved);
        }
        set_golden_grads(w, b, t);
        optimizer->step();
      }
      EXPECT_EQ(optimizer->step_count(), 5);
      auto values = w.to_vector<float>(), more = b.to_vector<float>();
      values.insert(values.end(), more.begin(), more.end());
      return values;
    };
    EXPECT_EQ(run(false), run(true));
  }
}

TEST(Optimizer, passes_over_parameters_without_a_gradient) {
  Tensor a = leaf({1}), b = leaf({1});
  AdamW optimizer({a, b}, {.lr = 0.1});
  set_grad(a, {1});
  for (int t = 0; t < 3; t++) optimizer.step();
  EXPECT_EQ(b.item<float>(), 1.0f);
  // The bias correction of b starts at its own first step.
  a.set_grad({});
  set_grad(b, {1});
  optimizer.step();
  EXPECT_NEAR(b.item(), 0.999 - 0.1, 1e-6);
  float frozen = b.item<float>();
  b.set_requires_grad(false);
  optimizer.step();
  EXPECT_EQ(b.item<float>(), frozen);
  optimizer.zero_grad();
  EXPECT_FALSE(b.grad().defined());
}

TEST(Optimizer, groups_have_rates_of_their_own) {
  Tensor a = leaf({1}), b = leaf({1}), c = leaf({1});
  SGD optimizer(
      {{.parameters = {a}}, {.parameters = {b}, .lr = 0.01}, {.parameters = {c}, .weight_decay = 0.5}},
      {.lr = 0.1});
  for (const Tensor& w : {a, b, c}) set_grad(w, {1});
  optimizer.step();
  EXPECT_NEAR(a.item(), 0.9, 1e-7);
  EXPECT_NEAR(b.item(), 0.99, 1e-7);
  EXPECT_NEAR(c.item(), 0.85, 1e-7);
  optimizer.set_lr(1);
  EXPECT_EQ(optimizer.groups()[1].lr, 1);
  EXPECT_EQ(optimizer.groups()[1].base_lr, 1);
}

TEST(Optimizer, takes_gradients_with_any_strides) {
  Tensor w = zeros({2, 3}).set_requires_grad();
  w.set_grad(scalar(2.0f).expand({2, 3}));
  SGD optimizer(Tensors{w}, {.lr = 1, .momentum = 0.5});
  optimizer.step();
  w.set_grad(from_vector<float>({1, 2, 3, 4, 5, 6}, {3, 2}).transpose(0, 1));
  optimizer.step();
  EXPECT_EQ(w.to_vector<float>(), (std::vector<float>{-4, -6, -8, -5, -7, -9}));
}

TEST(Optimizer, changes_nothing_when_a_gradient_does_not_fit) {
  Tensor a = leaf({1, 2}), b = leaf({3, 4});
  SGD optimizer(StateDict{{"first", a}, {"second", b}}, {.lr = 1, .momentum = 0.9});
  set_grad(a, {1, 1});
  set_grad(b, {1, 1});
  b.set_data(ones({5}));
  try {
    optimizer.step();
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("\"second\""), std::string::npos) << error.what();
    EXPECT_NE(std::string(error.what()).find("[5]"), std::string::npos) << error.what();
  }
  EXPECT_EQ(a.to_vector<float>(), (std::vector<float>{1, 2}));
  EXPECT_EQ(optimizer.step_count(), 0);

  b.set_data(from_vector<float>({3, 4}));
  optimizer.step();
  EXPECT_EQ(a.to_vector<float>(), (std::vector<float>{0, 1}));
  optimizer.groups()[0].lr = std::nan("");
  EXPECT_THROW(optimizer.step(), Error);
  EXPECT_EQ(a.to_vector<float>(), (std::vector<float>{0, 1}));
}

TEST(Optimizer, an_allocation_that_fails_changes_nothing) {
  Tensor a = leaf({1}), b = zeros({1 << 20}).set_requires_grad();
  set_grad(a, {1});
  b.set_grad(zeros({1 << 20}));
  Adam optimizer({a, b});
  empty_cache({});
  set_memory_ceiling({}, memory_stats({}).reserved_bytes + 1024);
  EXPECT_THROW(optimizer.step(), OutOfMemory);
  set_memory_ceiling({}, SIZE_MAX);
  EXPECT_EQ(a.item<float>(), 1.0f);
  optimizer.step();
  EXPECT_LT(a.item<float>(), 1.0f);
}

TEST(Optimizer, runs_on_meta) {
  Tensor w = zeros({1000, 1000}, DType::float16, "meta").set_requires_grad();
  w.set_grad(zeros({1000, 1000}, DType::float16, "meta"));
  size_t before = memory_stats("meta").current_bytes;
  Adam optimizer(Tensors{w});
  optimizer.step();
  EXPECT_EQ(memory_stats("meta").current_bytes - before, 8'000'000u);  // two float32 moments
}

TEST(Optimizer, refuses_bad_arguments) {
  Tensor w = leaf({1});
  EXPECT_THROW(SGD(Tensors{}), Error);
  EXPECT_THROW(SGD({w, w}), Error);
  EXPECT_THROW(SGD({{.parameters = {w}}, {.parameters = {w}}}), Error);
  EXPECT_THROW(SGD(Tensors{Tensor()}), Error);
  EXPECT_THROW(SGD(Tensors{zeros({2}, DType::int64)}), Error);
  EXPECT_THROW(SGD(Tensors{w.clone()}), Error);  // not a leaf
  EXPECT_THROW(SGD(StateDict{{"w", w}, {"w", leaf({1})}}), Error);
  EXPECT_THROW(SGD({w}, {.lr = -1}), Error);
  EXPECT_THROW(SGD({w}, {.lr = std::nan("")}), Error);
  EXPECT_THROW(SGD({w}, {.momentum = -0.1}), Error);
  EXPECT_THROW(SGD({w}, {.weight_decay = -0.1}), Error);
  EXPECT_THROW(SGD({w}, {.nesterov = true}), Error);
  EXPECT_THROW(SGD({w}, {.momentum = 0.9, .dampening = 0.1, .nesterov = true}), Error);
  EXPECT_THROW(Adam({w}, {.beta1 = 1}), Error);
  EXPECT_THROW(Adam({w}, {.beta2 = -0.1}), Error);
  EXPECT_THROW(AdamW({w}, {.epsilon = -1}), Error);
}

TEST(Optimizer, a_bad_state_changes_nothing) {
  Tensor w = leaf({1, 2});
  Adam optimizer(StateDict{{"w", w}}, {.lr = 0.1});
  set_grad(w, {1, 1});
  optimizer.step();
  const StateDict good = optimizer.state_dict();
  ASSERT_EQ(good.size(), 5u);
  EXPECT_EQ(good[3].first, "w.exp_avg");
  auto expect_refused = [&](StateDict state, const char* word) {
    auto before = good[3].second.to_vector<float>();
    try {
      optimizer.load_state_dict(state);
      ADD_FAILURE() << "accepted, expected an error with " << word;
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find(word), std::string::npos) << error.what();
    }
    EXPECT_EQ(optimizer.step_count(), 1);
    EXPECT_EQ(optimizer.state_dict()[3].second.to_vector<float>(), before);
  };
  for (size_t i = 0; i < good.size(); i++) {
    StateDict state = good;
    state.erase(state.begin() + std::ptrdiff_t(i));
    expect_refused(state, "missing");
    state = good;
    state[i].second = zeros({7}, state[i].second.dtype());
    expect_refused(state, "[7]");
    state = good;
    state[i].second = zeros(state[i].second.shape(), DType::uint8);
    expect_refused(state, "uint8");
    state = good;
    state[i].second = empty(state[i].second.shape(), state[i].second.dtype(), "meta");
    expect_refused(state, "no values");
    state = good;
    state.push_back(good[i]);
    expect_refused(state, "twice");
  }
  StateDict state = good;
  state.emplace_back("x.exp_avg", zeros({2}));
  expect_refused(state, "x.exp_avg");
  state = good;
  state[1].second = from_vector<int64_t>({-1});
  expect_refused(state, "steps");
  state = good;
  state[2].second = full({1, 3}, std::nan(""), DType::float64);
  expect_refused(state, "groups");
  optimizer.load_state_dict(good);
}

TEST(Cases, C65_adamw_decoupled_decay) {
  Tensor w = leaf({1}, DType::float64);
  AdamW optimizer(Tensors{w}, {.lr = 0.1, .weight_decay = 0.01});
  set_grad(w, {0});
  optimizer.step();
  EXPECT_DOUBLE_EQ(w.item(), 0.999);

  Tensor scheduled = leaf({1}, DType::float64);
  AdamW second(Tensors{scheduled}, {.lr = 0.1, .weight_decay = 0.01});
  Schedule schedule(second, StepLR(1, 0.5));
  set_grad(scheduled, {0});
  second.step();
  schedule.step();
  second.step();
  EXPECT_DOUBLE_EQ(scheduled.item(), 0.999 * 0.9995);
}

TEST(Cases, C66_optimizer_in_low_precision) {
  // (a) A zero gradient moves nothing: epsilon and moments are float32.
  Tensor half = leaf({1, -2}, DType::float16);
  Adam adam(Tensors{half});
  set_grad(half, {0, 0});
  for (int t = 0; t < 10; t++) adam.step();
  EXPECT_EQ(half.to_vector<float>(), (std::vector<float>{1, -2}));

  // (b) Updates below half an ulp add up in a float32 parameter, whose cast copy follows; in a bfloat16 one
  // they vanish.
  Tensor master = leaf({1}), pure = leaf({1}, DType::bfloat16);
  SGD sgd(Tensors{master}, {.lr = 6e-4}), pure_sgd(Tensors{pure}, {.lr = 6e-4});
  for (int t = 0; t < 100; t++) {
    set_grad(master, {1});
    set_grad(pure, {1});
    sgd.step();
    pure_sgd.step();
  }
  EXPECT_NEAR(master.item(), 0.94, 1e-5);
  EXPECT_EQ(master.detach().to(DType::bfloat16).item<float>(), 0.94140625f);
  EXPECT_EQ(pure.item<float>(), 1.0f);

  // (c) The counter and the moments of a bfloat16 parameter are wider than it.
  Tensor counted = leaf({1}, DType::bfloat16);
  Adam counting(Tensors{counted});
  for (int t = 0; t < 1000; t++) {
    set_grad(counted, {1});
    counting.step();
  }
  EXPECT_EQ(counting.step_count(), 1000);
  StateDict state = counting.state_dict();
  EXPECT_EQ(state[1].second.item<int64_t>(), 1000);
  EXPECT_EQ(state[3].second.dtype(), DType::float32);
  EXPECT_NEAR(state[4].second.item(), 1 - std::pow(0.999, 1000), 1e-4);
}

}  // namespace
}  // namespace lockstep
