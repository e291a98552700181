// A whole training step of the networks of examples/mnist_models.h: batch 64, cross-entropy, SGD with momentum.
//
//   build/bench_train_step --model lenet --write-weights FILE    initial weights and 20 batches of data, for both sides
//   build/bench_train_step --model lenet --weights FILE --steps 100 --threads 2
//
// Prints the losses of the first 20 steps (without dropout) and the median time of a step (with dropout).
#include "benchmarks/bench.h"
#include "examples/mnist_models.h"
#include "lockstep/ops/cross_entropy.h"
#include "lockstep/runtime/autograd.h"
#include "lockstep/runtime/random.h"
#include "lockstep/training/optimizer.h"
#include "lockstep/training/safetensors.h"

namespace lockstep::bench {
namespace {

constexpr int kBatches = 20, kBatchSize = 64;

void write_weights(const std::string& model_name, const std::string& path) {
  manual_seed(1);
  StateDict tensors = make_mnist_model(model_name)->state_dict();
  tensors.emplace_back("data.images", randn({kBatches * kBatchSize, 28, 28, 1}));
  std::vector<int64_t> labels;
  for (int i = 0; i < kBatches * kBatchSize; i++) labels.push_back((i * 7 + i / 64) % 10);
  tensors.emplace_back("data.labels", from_vector(labels));
  write_safetensors(path, tensors);
}

// One training run from the weights of the file; step() returns the loss.
class Training {
 public:
  Training(const std::string& model_name, const StateDict& tensors, bool dropout) {
    if (model_name == "cnn" && !dropout) {
      model_ = std::make_unique<MnistCnn>(0.0, 0.0);
    } else {
      model_ = make_mnist_model(model_name);
    }
    StateDict weights;
    for (const auto& [name, tensor] : tensors) {
      if (name == "data.images") images_ = tensor;
      else if (name == "data.labels") labels_ = tensor;
      else weights.emplace_back(name, tensor);
    }
    model_->load_state_dict(weights);
    optimizer_ = std::make_unique<SGD>(model_->parameters(), SGDOptions{.lr = 0.01, .momentum = 0.9});
  }

  double step() {
    int64_t begin = next_++ % kBatches * kBatchSize, end = begin + kBatchSize;
    Tensor loss = cross_entropy((*model_)(images_.slice(0, begin, end)), labels_.slice(0, begin, end));
    optimizer_->zero_grad();
    loss.backward();
    optimizer_->step();
    return loss.item();  // both sides read the loss of each step
  }

 private:
  std::unique_ptr<Module> model_;
  std::unique_ptr<SGD> optimizer_;
  Tensor images_, labels_;
  int64_t next_ = 0;
};

void run(int argc, char** argv) {
  Flags flags(argc, argv,
              {{"--model", "lenet"},
               {"--write-weights", ""},
               {"--weights", ""},
               {"--steps", "100"},
               {"--warmup", "10"},
               {"--threads", "2"}});
  const std::string& model = flags.text("--model");
  if (!flags.text("--write-weights").empty()) {
    write_weights(model, flags.text("--write-weights"));
    std::puts("{}");
    return;
  }
  StateDict tensors = read_safetensors(flags.text("--weights"));
  std::vector<double> losses;
  {
    Training training(model, tensors, false);
    for (int i = 0; i < kBatches; i++) losses.push_back(training.step());
  }
  Training training(model, tensors, true);
  double ms = median_ms(flags.integer("--warmup"), flags.integer("--steps"), [&] { training.step(); });
  print_result({{"name", model}, {"ms", ms}, {"losses", losses}});
}

}  // namespace
}  // namespace lockstep::bench

int main(int argc, char** argv) {
  return lockstep::bench::guarded("bench_train_step", [&] { lockstep::bench::run(argc, argv); });
}
