// Ends in the way its argument says while a model, an optimizer with state, a loader with busy workers and tensors are
// alive in static storage, here and in a second library. See exit_test.cpp.
#include <cstdlib>
#include <cstring>
#include <memory>
#include <thread>

#include "lockstep/ops/cross_entropy.h"
#include "lockstep/ops/reduce.h"
#include "lockstep/runtime/autograd.h"
#include "lockstep/runtime/parallel.h"
#include "lockstep/runtime/random.h"
#include "lockstep/training/data_loader.h"
#include "lockstep/training/layers.h"
#include "lockstep/training/optimizer.h"

float sum_in_second_library();  // exit_library.cpp

namespace {

using namespace lockstep;

struct Noise : Dataset {
  int64_t size() const override { return 100000; }
  Sample get(int64_t index) const override { return {rand({8, 8, 1}), index % 10}; }
};

Tensor kept = full({3}, 2).set_requires_grad();
Tensor graph = sum(kept);  // its history is alive to the end
std::unique_ptr<Module> model;
std::unique_ptr<Optimizer> optimizer;
std::unique_ptr<DataLoader> loader;

void train_a_little() {
  model = std::make_unique<Sequential>(std::make_shared<Flatten>(), std::make_shared<Linear>(64, 10));
  optimizer = std::make_unique<Adam>(model->parameters());
  loader =
      std::make_unique<DataLoader>(std::make_shared<Noise>(), LoaderOptions{.batch_size = 32, .workers = 2});
  loader->begin_epoch(0);
  for (int step = 0; step < 3; step++) {
    Batch batch = *loader->next();
    optimizer->zero_grad();
    cross_entropy((*model)(batch.images), batch.labels).backward();
    optimizer->step();
  }
}

}  // namespace

int main(int, char** argv) {
  train_a_little();
  if (sum_in_second_library() != 6) return 3;
  if (std::strcmp(argv[1], "exit_in_thread") == 0) {
    std::thread([] { std::exit(0); }).join();
  }
  if (std::strcmp(argv[1], "exit_in_parallel_region") == 0) {
    parallel_chunks(4, [](int64_t chunk) {
      if (chunk == 0) std::exit(0);
    });
  }
  return 0;
}
