// The cost of recording and replaying one operation: a chain of 1,000 multiplications of one element, forward
// and backward.
//
//   build/bench_overhead --steps 50
#include "benchmarks/bench.h"
#include "lockstep/ops/binary.h"
#include "lockstep/runtime/autograd.h"

namespace lockstep::bench {
namespace {

void run(int argc, char** argv) {
  Flags flags(argc, argv, {{"--steps", "50"}, {"--warmup", "10"}, {"--threads", "2"}});
  constexpr int kLength = 1000;
  int warmup = flags.integer("--warmup"), steps = flags.integer("--steps");
  Tensor x = ones({1}).set_requires_grad(), factor = ones({1});
  std::vector<double> forward_ns, backward_ns;
  for (int i = 0; i < warmup + steps; i++) {
    x.set_grad({});
    double start = milliseconds();
    Tensor y = x;
    for (int op = 0; op < kLength; op++) y = y * factor;
    double middle = milliseconds();
    y.backward();
    double end = milliseconds();
    if (i < warmup) continue;
    forward_ns.push_back(1e6 * (middle - start) / kLength);
    backward_ns.push_back(1e6 * (end - middle) / kLength);
  }
  double forward = median(forward_ns), backward = median(backward_ns);
  print_result({{"name", "overhead"},
                {"ms", 1e-6 * (forward + backward)},
                {"forward_ns", forward},
                {"backward_ns", backward}});
}

}  // namespace
}  // namespace lockstep::bench

int main(int argc, char** argv) {
  return lockstep::bench::guarded("bench_overhead", [&] { lockstep::bench::run(argc, argv); });
}
