// A step of SGD with momentum over the 11 million parameters of a ResNet-18, against a copy that moves as
// many bytes: a step reads weight, gradient and momentum and writes weight and momentum, 20 bytes a
// parameter.
//
//   build/bench_optimizer --steps 30 --threads 2
#include "lockstep/training/optimizer.h"

#include <cstring>

#include "benchmarks/bench.h"
#include "lockstep/runtime/random.h"

namespace lockstep::bench {
namespace {

Tensors resnet18_parameters() {
  std::vector<Shape> shapes = {{64, 7, 7, 3}, {1000, 512}, {1000}};
  int64_t before = 64;
  for (int64_t width : {64, 128, 256, 512}) {
    shapes.push_back({width, 3, 3, before});
    for (int i = 0; i < 3; i++) shapes.push_back({width, 3, 3, width});
    for (int i = 0; i < 8; i++) shapes.push_back({width});
    if (width != 64) shapes.push_back({width, 1, 1, before});
    before = width;
  }
  Tensors parameters;
  for (const Shape& shape : shapes) {
    parameters.push_back(randn(shape).set_requires_grad());
    parameters.back().set_grad(randn(shape));
  }
  return parameters;
}

// Copies half of `bytes`, so that reads and writes together are `bytes`; on all threads, out of any cache's
// reach.
double copy_ms(size_t bytes, int steps) {
  std::vector<char> from(bytes / 2, 1), to(bytes / 2);
  return median_ms(3, steps, [&] {
    parallel_for(int64_t(bytes / 2), 1 << 20, [&](int64_t begin, int64_t end) {
      std::memcpy(to.data() + begin, from.data() + begin, size_t(end - begin));
    });
  });
}

void run(int argc, char** argv) {
  Flags flags(argc, argv, {{"--steps", "30"}, {"--warmup", "5"}, {"--threads", "2"}});
  Tensors parameters = resnet18_parameters();
  int64_t count = 0;
  for (const Tensor& parameter : parameters) count += parameter.numel();
  SGD sgd(parameters, {.lr = 1e-3, .momentum = 0.9});
  double step_ms = median_ms(flags.integer("--warmup"), flags.integer("--steps"), [&] { sgd.step(); });
  nlohmann::json result = {{"name", "optimizer"}, {"ms", step_ms}, {"parameters", count}};
  result["rss_mb"] = double(peak_resident_bytes()) / 1e6;  // before the copy takes its own memory
  result["copy_ms"] = copy_ms(20 * size_t(count), flags.integer("--steps"));
  std::puts(result.dump().c_str());
}

}  // namespace
}  // namespace lockstep::bench

int main(int argc, char** argv) {
  return lockstep::bench::guarded("bench_optimizer", [&] { lockstep::bench::run(argc, argv); });
}
