// Whole training steps: what the allocator sees of them, and that they learn.
#include <gtest/gtest.h>

#include "examples/mnist_models.h"
#include "lockstep/ops/cross_entropy.h"
#include "lockstep/runtime/autograd.h"
#include "lockstep/runtime/random.h"
#include "lockstep/training/clip.h"
#include "lockstep/training/optimizer.h"

namespace lockstep {
namespace {

class Steps {
 public:
  Steps() {
    manual_seed(3);
    model_ = std::make_unique<MnistCnn>();
    optimizer_ = std::make_unique<AdamW>(model_->parameters(), AdamWOptions{.lr = 1e-3});
    images_ = randn({16, 28, 28, 1});
    labels_ = arange(16).to(DType::int32);
    for (int32_t i = 0; i < 16; i++) labels_.data<int32_t>()[i] = i % 10;
  }
  double run() {
    Tensor loss = cross_entropy((*model_)(images_), labels_);
    optimizer_->zero_grad();
    loss.backward();
    clip_grad_norm(model_->parameters(), 1.0);
    optimizer_->step();
    return loss.item();
  }

 private:
  std::unique_ptr<Module> model_;
  std::unique_ptr<Optimizer> optimizer_;
  Tensor images_, labels_;
};

TEST(TrainingStep, a_steady_step_asks_the_system_for_no_memory_and_keeps_none) {
  Steps steps;
  for (int i = 0; i < 5; i++) steps.run();
  MemoryStats before = memory_stats("cpu");
  for (int i = 0; i < 20; i++) steps.run();
  MemoryStats after = memory_stats("cpu");
  EXPECT_GT(after.allocations, before.allocations);
  EXPECT_EQ(after.system_allocations, before.system_allocations);
  EXPECT_EQ(after.current_bytes, before.current_bytes);
}

TEST(TrainingStep, the_mnist_network_learns_what_it_sees) {
  Steps steps;
  double first = steps.run(), last = 0;
  for (int i = 0; i < 40; i++) last = steps.run();
  EXPECT_NEAR(first, 2.3, 0.4);
  EXPECT_LT(last, 0.5 * first);
}

}  // namespace
}  // namespace lockstep
