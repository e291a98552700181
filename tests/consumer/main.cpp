// Uses what a program outside the tree needs: a header of each folder, autograd, and an exception across the
// library's border.
#include <cstdio>

#include "lockstep/ops/softmax.h"
#include "lockstep/runtime/autograd.h"
#include "lockstep/training/progress.h"

int main() {
  using namespace lockstep;
  Tensor x = full({1}, 2).set_requires_grad();
  Tensor row = x.expand({21});
  row.backward(ones({21}));
  double sum = 0;
  for (double p : softmax(row.detach()).to_vector<double>()) sum += p;
  try {
    x.reshape({7});
    return 1;
  } catch (const Error& error) {
    std::printf("as it should be: %s\n", error.what());
  }
  std::printf("softmax sums to %.3f, gradient %.0f, %s bytes resident\n", sum, x.grad().item(),
              format_count(int64_t(resident_bytes())).c_str());
}
