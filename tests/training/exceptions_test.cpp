// C71 as far as it concerns a C++ library on the CPU: there is no C interface to cross, but errors pass through OpenMP
// regions, libpng, hooks and destructors.
#include <gtest/gtest.h>

#include <type_traits>

#include "lockstep/ops/reduce.h"
#include "lockstep/runtime/autograd.h"
#include "lockstep/runtime/parallel.h"
#include "lockstep/training/data_loader.h"
#include "lockstep/training/image_file.h"
#include "lockstep/training/layers.h"
#include "lockstep/training/optimizer.h"
#include "lockstep/training/safetensors.h"

namespace lockstep {
namespace {

template <class F>
std::string message_of(F&& call) {
  try {
    call();
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

void expect_message(const std::string& got, const std::string& part) {
  EXPECT_NE(got.find(part), std::string::npos) << got;
}

TEST(Cases, C71_errors_are_messages_and_destructors_do_not_throw) {
  static_assert(std::is_nothrow_destructible_v<Tensor> && std::is_nothrow_destructible_v<Memory> &&
                std::is_nothrow_destructible_v<Node> && std::is_nothrow_destructible_v<Module> &&
                std::is_nothrow_destructible_v<Optimizer> && std::is_nothrow_destructible_v<DataLoader>);
  expect_message(message_of([] { read_safetensors("/nowhere/weights.safetensors"); }),
                 "/nowhere/weights.safetensors");
  expect_message(message_of([] { read_image("/nowhere/digit.png"); }), "/nowhere/digit.png");
  Linear linear(3, 2);
  std::vector<float> before = linear.weight.to_vector<float>();
  expect_message(message_of([&] {
                   linear.load_state_dict({{"weight", zeros({4, 2})}, {"bias", zeros({2})}});
                 }),
                 "weight");
  EXPECT_EQ(linear.weight.to_vector<float>(), before);
  expect_message(message_of([] { Tensor().shape(); }), "undefined tensor");
  expect_message(message_of([&] { linear(Tensor()); }), "undefined tensor");
}

TEST(Cases, C71_the_first_error_comes_through_a_parallel_region) {
  for (int round = 0; round < 20; round++) {
    std::string message = message_of([] {
      parallel_chunks(16, [](int64_t chunk) {
        if (chunk >= 3) throw Error(concat("[test] chunk ", chunk));
      });
    });
    EXPECT_EQ(message, "[test] chunk 3");
  }
  int64_t sum = 0;
  for (int64_t value : arange(100000).to_vector<int64_t>()) sum += value;
  EXPECT_EQ(sum, int64_t(100000) * 99999 / 2);
}

TEST(Cases, C71_an_error_in_a_hook_leaves_a_usable_engine) {
  Tensor x = ones({3}).set_requires_grad();
  int64_t id = add_post_accumulate_hook(x, [](const Tensor&) { throw Error("[hook] refused"); });
  EXPECT_EQ(message_of([&] { sum(x).backward(); }), "[hook] refused");
  EXPECT_TRUE(grad_enabled());
  remove_post_accumulate_hook(x, id);
  x.set_grad({});
  sum(x).backward();
  EXPECT_EQ(x.grad().to_vector<float>(), std::vector<float>(3, 1.0f));
}

}  // namespace
}  // namespace lockstep
