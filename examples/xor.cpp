// The program of the README: a network learns the exclusive or.
#include <cstdio>

#include "lockstep/ops/cross_entropy.h"
#include "lockstep/training/layers.h"
#include "lockstep/training/optimizer.h"
using namespace lockstep;

int main() {
  auto hidden = std::make_shared<Linear>(2, 16), out = std::make_shared<Linear>(16, 2);
  Sequential model(hidden, std::make_shared<Tanh>(), out);
  Tensor x = from_vector<float>({0, 0, 0, 1, 1, 0, 1, 1}, {4, 2});
  Tensor labels = from_vector<int64_t>({0, 1, 1, 0});
  Adam optimizer(model.parameters(), {.lr = 0.02});
  for (int step = 0; step <= 100; step++) {
    Tensor loss = cross_entropy(model(x), labels);
    if (step % 50 == 0) std::printf("step %3d  loss %.3f\n", step, loss.item());
    optimizer.zero_grad();
    loss.backward();
    optimizer.step();
  }
}
