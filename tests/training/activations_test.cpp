#include "lockstep/training/activations.h"

#include <gtest/gtest.h>

namespace lockstep {
namespace {

TEST(Activations, call_their_functions) {
  Tensor x = from_vector<float>({-2, -0.5, 0, 1, 3});
  auto same = [&](Module&& module, const Tensor& y) {
    EXPECT_EQ(module(x).to_vector<float>(), y.to_vector<float>());
  };
  same(ReLU(), relu(x));
  same(Sigmoid(), sigmoid(x));
  same(Tanh(), tanh(x));
  same(SiLU(), silu(x));
  same(GELU(), gelu(x));
  same(GELU(Gelu::tanh), gelu(x, Gelu::tanh));
  EXPECT_NE(gelu(x).to_vector<float>(), gelu(x, Gelu::tanh).to_vector<float>());
}

}  // namespace
}  // namespace lockstep
