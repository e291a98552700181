// Trains a small convolutional network on MNIST: the whole of a training job, to be read and copied.
//
//   build/mnist --data shared/data --epochs 12            99 % after a minute on 2 cores
//   build/mnist --resume runs/mnist-2026-12-01-134512      goes on where that run was stopped, to the same bits
//   build/mnist --predict seven.png --resume runs/mnist-2026-12-01-134512
//
// Exit codes: 0, or 2 for a mistake in flags, files or folders, 1 for a fault (a full disk), 128 + n after signal n.

#include <algorithm>
#include <chrono>
#include <cmath>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <iostream>
#include <memory>
#include <optional>

#include "lockstep/ops/cross_entropy.h"
#include "lockstep/ops/reduce.h"
#include "lockstep/ops/softmax.h"
#include "lockstep/runtime/autograd.h"
#include "lockstep/runtime/parallel.h"
#include "lockstep/runtime/random.h"
#include "lockstep/training/checkpoint.h"
#include "lockstep/training/data_loader.h"
#include "lockstep/training/interrupt.h"
#include "lockstep/training/optimizer.h"
#include "lockstep/training/progress.h"
#include "lockstep/training/run_folder.h"
#include "lockstep/training/schedule.h"
#include "mnist_digits.h"
#include "mnist_models.h"
#include "mnist_options.h"

namespace fs = std::filesystem;
using namespace lockstep;

namespace {

// Runs what reads the user's flags, files and folders: what is wrong with them is for the user to mend.
template <class F>
auto prepare(F&& f) {
  try {
    return f();
  } catch (const OutOfMemory&) {
    throw;
  } catch (const Error& error) {
    throw UsageError(error.what());
  }
}

// Means over the digits seen so far. Sums are doubles in the order of the batches: an epoch that is resumed in its
// middle ends with the same bits.
struct Means {
  double loss_sum = 0, correct = 0, digits = 0;

  void add(const Tensor& logits, const Tensor& labels, double batch_loss) {
    std::vector<int64_t> guesses = argmax(logits, 1).to_vector<int64_t>(),
                         truth = labels.to_vector<int64_t>();
    for (size_t i = 0; i < truth.size(); i++) correct += guesses[i] == truth[i];
    loss_sum += batch_loss * double(truth.size());
    digits += double(truth.size());
  }
  double loss() const { return loss_sum / digits; }
  double accuracy() const { return correct / digits; }

  // As text that reads back the same bits.
  std::string to_text() const {
    char text[100];
    std::snprintf(text, sizeof text, "%a %a %a", loss_sum, correct, digits);
    return text;
  }
  static Means from_text(const std::string& text) {
    Means means;
    int read = std::sscanf(text.c_str(), "%la %la %la", &means.loss_sum, &means.correct, &means.digits);
    LOCKSTEP_CHECK(read == 3, "the checkpoint's means are '", text.substr(0, 100),
                   "', expected three numbers");
    return means;
  }
};

Means evaluate(Module& model, DataLoader& loader) {
  NoGradGuard no_grad;
  model.eval();
  Means means;
  for (Batch& batch : loader.epoch(0)) {
    Tensor logits = model(batch.images);
    means.add(logits, batch.labels, cross_entropy(logits, batch.labels).item());
  }
  model.train();
  return means;
}

std::unique_ptr<Optimizer> make_optimizer(const Options& options, const Module& model) {
  StateDict parameters = model.named_parameters();
  if (options.optimizer == "adam") return std::make_unique<Adam>(parameters, AdamOptions{.lr = options.lr});
  if (options.optimizer == "adamw")
    return std::make_unique<AdamW>(parameters, AdamWOptions{.lr = options.lr});
  SGDOptions sgd{.lr = options.lr, .momentum = 0.9, .nesterov = true, .weight_decay = 5e-4};
  return std::make_unique<SGD>(parameters, sgd);
}

// Where MNIST is without a flag: in the places of scripts/fetch_data that need no download.
std::string data_folder() {
  if (const char* folder = std::getenv("LOCKSTEP_DATA"); folder && *folder) return folder;
  const char* cache = std::getenv("XDG_CACHE_HOME");
  const char* home = std::getenv("HOME");
  fs::path folder = (cache && *cache ? fs::path(cache) : fs::path(home ? home : "") / ".cache") / "lockstep";
  if (fs::is_directory(folder / "mnist")) return folder.string();
  throw UsageError("no MNIST: give --data DIR, or run scripts/fetch_data");
}

fs::path checkpoint_folder(const fs::path& given) {
  return fs::is_directory(given / "checkpoints") ? given / "checkpoints" : given;
}

const std::vector<std::string> kMetrics = {
    "step",           "epoch",     "loss",          "learning_rate",     "train_loss",
    "train_accuracy", "test_loss", "test_accuracy", "images_per_second", "seconds"};

// A run: what changes while it trains, and what it leaves in its folder.
class Training {
 public:
  // `resumed` is null for a new run. Throws for whatever is wrong before the first step.
  Training(const Options& options, const Checkpoint* resumed)
      : options_(options), train_(load(Split::train)), test_(load(Split::test)) {
    if (options_.epochs == 0) options_.epochs = train_->size() < 10'000 ? 100 : 12;
    if (options_.lr == 0) options_.lr = options_.optimizer == "sgd" ? 0.05 : 0.002;

    manual_seed(options_.seed);
    model_ = make_mnist_model(options_.model);
    optimizer_ = make_optimizer(options_, *model_);
    std::shared_ptr<const Dataset> digits = train_;
    if (options_.shift > 0) digits = std::make_shared<ShiftedDigits>(train_, options_.shift);
    train_loader_ = std::make_unique<DataLoader>(digits, LoaderOptions{.batch_size = options_.batch_size,
                                                                       .shuffle = true,
                                                                       .seed = options_.seed,
                                                                       .workers = options_.workers});
    test_loader_ = std::make_unique<DataLoader>(test_, LoaderOptions{.batch_size = 128});
    schedule_ =
        std::make_unique<Schedule>(*optimizer_, OneCycleLR(options_.epochs * train_loader_->batches()));
    if (resumed) restore(*resumed);

    folder_ = std::make_unique<RunFolder>(options_.run_dir);
    metrics_ = std::make_unique<MetricsFile>(folder_->metrics(), kMetrics, step_);
    folder_->write_config(options_.config);
  }

  // Trains to the end. Returns 0, or the number of the signal that stopped it.
  int run() {
    InterruptGuard interrupt;
    Progress progress(options_.epochs, train_loader_->batches(), {.quiet = options_.quiet});
    introduce(progress);
    while (epoch_ < options_.epochs) {
      train_loader_->begin_epoch(epoch_, batch_);
      progress.begin_epoch(epoch_, batch_);
      while (std::optional<Batch> batch = train_loader_->next()) {
        train_step(*batch);
        progress.step(means_.loss(), means_.accuracy(), batch->size());
        bool last = batch_ == train_loader_->batches();
        if (!last && step_ % options_.log_every == 0) log(progress);
        bool save_now = options_.save_every > 0 && step_ % options_.save_every == 0;
        if (!last && (save_now || interrupt.signal())) save();
        if (!last && interrupt.signal()) return stopped(progress, interrupt.signal());
      }
      end_epoch(progress);
      if (interrupt.signal() && epoch_ < options_.epochs) return stopped(progress, interrupt.signal());
    }
    report(progress);
    return 0;
  }

 private:
  std::shared_ptr<MnistDataset> load(Split split) const {
    return std::make_shared<MnistDataset>(load_mnist(options_.data, split));
  }

  void introduce(Progress& progress) const {
    if (options_.quiet) return;
    progress.message(train_->source());
    progress.message(concat("training ", options_.model, ", ", format_count(model_->parameter_count()),
                            " parameters, with ", options_.optimizer, " on ", num_threads(),
                            " threads; run folder ", options_.run_dir));
    if (step_ > 0)
      progress.message(
          concat("resumed at epoch ", epoch_ + 1, ", step ", batch_, " of ", train_loader_->batches()));
  }

  void train_step(const Batch& batch) {
    Tensor logits = (*model_)(batch.images);
    Tensor loss = cross_entropy(logits, batch.labels);
    optimizer_->zero_grad();
    loss.backward();
    optimizer_->step();
    schedule_->step();

    loss_ = loss.item();
    LOCKSTEP_CHECK(std::isfinite(loss_), "the loss is ", loss_, " at step ", step_ + 1,
                   "; try a lower --lr than ", options_.lr);
    means_.add(logits.detach(), batch.labels, loss_);
    batch_ = batch.index + 1;
    step_++;
  }

  void end_epoch(Progress& progress) {
    tested_ = evaluate(*model_, *test_loader_);
    log(progress, &tested_);
    char summary[160];
    std::snprintf(summary, sizeof summary,
                  "train loss %.4f accuracy %.2f %%  test loss %.4f accuracy %.2f %%  %s images/s",
                  means_.loss(), 100 * means_.accuracy(), tested_.loss(), 100 * tested_.accuracy(),
                  format_count(int64_t(progress.epoch_samples_per_second())).c_str());
    progress.end_epoch(summary);
    epoch_++;
    batch_ = 0;
    means_ = Means();
    save();
  }

  // A row of metrics.csv; the columns of an epoch are filled at its end only.
  void log(const Progress& progress, const Means* tested = nullptr) {
    double none = std::nan("");
    metrics_->append({double(step_), double(epoch_ + 1), loss_, optimizer_->lr(),
                      tested ? means_.loss() : none, tested ? means_.accuracy() : none,
                      tested ? tested->loss() : none, tested ? tested->accuracy() : none,
                      progress.epoch_samples_per_second(), seconds()});
  }

  Checkpoint picture() const {
    Checkpoint checkpoint{.model = model_->state_dict(),
                          .optimizer = optimizer_->state_dict(),
                          .schedule = schedule_->state_dict(),
                          .random = generator().state(),
                          .epoch = epoch_,
                          .batch = batch_,
                          .step = step_};
    checkpoint.metadata = run_flags(options_);
    checkpoint.metadata.merge(writing_flags(options_));
    checkpoint.metadata["data"] = fs::absolute(options_.data).string();
    checkpoint.metadata["digits"] = std::to_string(train_->size());
    checkpoint.metadata["means"] = means_.to_text();
    return checkpoint;
  }
  void save() const { save_checkpoint(folder_->checkpoints().string(), picture()); }

  void restore(const Checkpoint& checkpoint) {
    auto text = [&](const char* key) {
      auto found = checkpoint.metadata.find(key);
      LOCKSTEP_CHECK(found != checkpoint.metadata.end(), checkpoint.path, ": ", key, " is missing");
      return found->second;
    };
    LOCKSTEP_CHECK(text("digits") == std::to_string(train_->size()), "--data ", options_.data, " has ",
                   train_->size(), " digits for training, the run to resume has ", text("digits"));
    LOCKSTEP_CHECK(checkpoint.epoch <= options_.epochs && checkpoint.batch < train_loader_->batches(),
                   checkpoint.path, ": epoch ", checkpoint.epoch, ", batch ", checkpoint.batch,
                   " is beyond the end of the run");
    model_->load_state_dict(checkpoint.model);
    optimizer_->load_state_dict(checkpoint.optimizer);
    schedule_->load_state_dict(checkpoint.schedule);
    generator().set_state(checkpoint.random);
    means_ = Means::from_text(text("means"));
    epoch_ = checkpoint.epoch;
    batch_ = checkpoint.batch;
    step_ = checkpoint.step;
  }

  int stopped(Progress& progress, int signal) const {
    progress.message(concat("stopped by ", signal == SIGINT ? "Ctrl-C" : "SIGTERM", " after epoch ", epoch_,
                            " and ", batch_, " steps; go on with: --resume ", options_.run_dir));
    return signal;
  }

  void report(Progress& progress) const {
    if (tested_.digits == 0) {
      progress.message(
          concat("nothing to do: ", options_.run_dir, " has all of its ", options_.epochs, " epochs"));
      return;
    }
    Report report;
    report.set("test_accuracy", tested_.accuracy()).set("test_loss", tested_.loss());
    report.set("train_images_per_second", progress.samples_per_second()).set("seconds", seconds());
    report.set("peak_memory_bytes", int64_t(peak_resident_bytes()));
    report.set("peak_tensor_bytes", int64_t(memory_stats(Device()).peak_bytes));
    report.set("epochs", options_.epochs)
        .set("steps", step_)
        .set("data", train_->source())
        .set("threads", int64_t(num_threads()));
    for (const auto& [name, value] : run_flags(options_))
      if (name != "epochs") report.set(name, value);
    folder_->write_report(report);
    char summary[160];
    std::snprintf(summary, sizeof summary, "test accuracy %.2f %%, loss %.4f, after %s; report in ",
                  100 * tested_.accuracy(), tested_.loss(), format_duration(seconds()).c_str());
    progress.message(summary + folder_->report().string());
  }

  double seconds() const {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
  }

  const std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
  Options options_;
  std::shared_ptr<MnistDataset> train_, test_;
  std::unique_ptr<Module> model_;
  std::unique_ptr<Optimizer> optimizer_;
  std::unique_ptr<Schedule> schedule_;
  std::unique_ptr<DataLoader> train_loader_, test_loader_;
  std::unique_ptr<RunFolder> folder_;
  std::unique_ptr<MetricsFile> metrics_;
  int64_t epoch_ = 0, batch_ = 0, step_ = 0;  // the next batch to train on, and the steps done
  double loss_ = 0;                           // of the last step
  Means means_, tested_;                      // of this epoch so far, and of the last evaluation
};

int train(Options options) {
  std::unique_ptr<Training> training = prepare([&] {
    if (!Device(options.device).is_cpu())
      throw UsageError("--device " + options.device + ": this program trains on the cpu, expected cpu");
    if (options.threads > 0) set_num_threads(options.threads);
    Checkpoint resumed;
    if (!options.resume.empty()) {
      resumed = load_checkpoint(checkpoint_folder(options.resume).string());
      for (const std::string& problem : resumed.problems)
        std::cerr << "mnist: passed over " << problem << "\n";
      adopt_flags(options, resumed.metadata);
      fs::path folder = fs::path(resumed.path).parent_path();
      if (options.run_dir.empty())
        options.run_dir = (folder.filename() == "checkpoints" ? folder.parent_path() : folder).string();
      if (options.data.empty()) options.data = resumed.metadata["data"];
    } else if (options.run_dir.empty()) {
      options.run_dir = RunFolder::dated_path("runs", "mnist").string();
    } else if (fs::exists(fs::path(options.run_dir) / "metrics.csv")) {
      throw UsageError("--run-dir " + options.run_dir + " already holds a run: go on with it by --resume " +
                       options.run_dir + ", or give another folder");
    }
    if (options.data.empty()) options.data = data_folder();
    return std::make_unique<Training>(options, options.resume.empty() ? nullptr : &resumed);
  });
  int signal = training->run();
  return signal == 0 ? 0 : 128 + signal;
}

// Prints the probability of each digit for one image.
int predict(const Options& options) {
  const std::string& run = options.resume.empty() ? options.run_dir : options.resume;
  if (run.empty()) throw UsageError("--predict needs a checkpoint: give --resume or --run-dir");
  std::vector<float> probabilities = prepare([&] {
    Checkpoint checkpoint = load_checkpoint(checkpoint_folder(run).string());
    std::unique_ptr<Module> model = make_mnist_model(checkpoint.metadata["model"]);
    model->load_state_dict(checkpoint.model);
    model->eval();
    NoGradGuard no_grad;
    return softmax((*model)(read_digit(options.predict))).to_vector<float>();
  });
  for (size_t digit = 0; digit < probabilities.size(); digit++)
    std::printf("%zu %7.3f %%\n", digit, 100 * double(probabilities[digit]));
  auto best = std::max_element(probabilities.begin(), probabilities.end());
  std::printf("this is a %d\n", int(best - probabilities.begin()));
  return 0;
}

// One line, whatever the message was.
int fail(const char* what, int code) {
  std::string line = what;
  std::replace(line.begin(), line.end(), '\n', ' ');
  std::cerr << "mnist: " << line << std::endl;
  return code;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    Options options;
    if (!parse_flags(argc, argv, options)) return 0;
    return options.predict.empty() ? train(options) : predict(options);
  } catch (const UsageError& error) {
    return fail(error.what(), 2);
  } catch (const std::exception& error) {
    return fail(error.what(), 1);
  }
}
