// The flags of examples/mnist.cpp.
#pragma once

#include <CLI/CLI.hpp>
#include <charconv>
#include <cstdint>
#include <map>
#include <stdexcept>
#include <string>
#include <vector>

// A mistake of the person at the keyboard: one line that says what, got and expected, and exit code 2.
struct UsageError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

struct Options {
  int64_t epochs = 0;  // 0 here and below: a value that suits the data and the optimizer
  int64_t batch_size = 64;
  double lr = 0;
  std::string optimizer = "sgd";
  std::string model = "lenet";
  std::string device = "cpu";
  int threads = 0;
  int workers = 1;
  int shift = 2;
  uint64_t seed = 1;
  std::string data;
  std::string run_dir;
  std::string resume;
  std::string predict;
  int64_t log_every = 50;
  int64_t save_every = 0;
  bool quiet = false;

  std::string config;              // all of these as TOML
  std::vector<std::string> given;  // the names of those that were given
};

// A number within bounds; what is wrong is said in one line.
inline CLI::Validator number(int64_t low, int64_t high, bool whole = true) {
  return CLI::Validator(
      [=](std::string& text) {
        double value = 0;
        auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
        bool valid = error == std::errc() && end == text.data() + text.size() && value >= double(low) &&
                     value <= double(high) &&
                     (!whole || text.find_first_not_of("0123456789") == std::string::npos);
        if (valid) return std::string();
        return "got '" + text + "', expected " + (whole ? "a whole number" : "a number") + " from " +
               std::to_string(low) + " to " + std::to_string(high);
      },
      "");
}

inline void add_flags(CLI::App& app, Options& options) {
  CLI::Validator count = number(0, 1'000'000'000), positive = number(1, 1'000'000);
  auto one_of = [](std::vector<std::string> names) { return CLI::IsMember(std::move(names)); };
  app.option_defaults()->always_capture_default();
  app.add_option("--epochs", options.epochs,
                 "Passes over the training digits; 0: 12, or 100 with the 5,000-digit subset")
      ->check(number(0, 1'000'000));
  app.add_option("--batch-size", options.batch_size, "Digits a step")->check(positive);
  app.add_option("--lr", options.lr,
                 "Peak of the one-cycle learning rate; 0: 0.05 for sgd, 0.002 for adam and adamw")
      ->check(number(0, 1000, false));
  app.add_option("--optimizer", options.optimizer, "sgd (with Nesterov momentum 0.9), adam or adamw")
      ->check(one_of({"sgd", "adam", "adamw"}));
  app.add_option("--model", options.model, "lenet (62 thousand parameters) or cnn (1.2 million)")
      ->check(one_of({"lenet", "cnn"}));
  app.add_option("--device", options.device, "Where to compute: cpu");
  app.add_option("--threads", options.threads, "Threads to compute with; 0: one a core")
      ->check(number(0, 1024));
  app.add_option("--workers", options.workers, "Threads that make batches ahead of time; 0: none")
      ->check(number(0, 256));
  app.add_option("--shift", options.shift, "Pixels by which training digits are moved at random, at most")
      ->check(number(0, 8));
  app.add_option("--seed", options.seed,
                 "Of the weights, the order and the shifts of the digits, and dropout")
      ->check(count);
  app.add_option(
      "--data", options.data,
      "Folder that holds mnist/train-images-idx3-ubyte.gz and so on; default: LOCKSTEP_DATA, or the cache "
      "that scripts/fetch_data fills");
  app.add_option("--run-dir", options.run_dir,
                 "Folder for metrics, report and checkpoints; default: runs/mnist-DATE");
  app.add_option("--resume", options.resume,
                 "Checkpoint, or folder of a run, to go on from to the same bits");
  app.add_option("--predict", options.predict,
                 "Classify an image (PNG or PGM) with the checkpoint of --resume or --run-dir");
  app.add_option("--log-every", options.log_every, "Steps between two rows of metrics.csv")->check(positive);
  app.add_option("--save-every", options.save_every, "Steps between two checkpoints; 0: one after each epoch")
      ->check(count);
  app.add_flag("--quiet", options.quiet, "No progress, only the result");
  app.set_config("--config", "", "Read flags from a TOML file, such as the config.toml of a run");
  app.allow_config_extras(CLI::config_extras_mode::error);
}

// Returns false if the help was asked for, and printed.
inline bool parse_flags(int argc, const char* const* argv, Options& options) {
  CLI::App app("Trains a small convolutional network on the handwritten digits of MNIST.", "mnist");
  add_flags(app, options);
  try {
    app.parse(argc, argv);
  } catch (const CLI::CallForHelp&) {
    std::fputs(app.help().c_str(), stdout);
    return false;
  } catch (const CLI::ConfigError& error) {
    throw UsageError("config file " + app.get_config_ptr()->as<std::string>() + ": " + error.what());
  } catch (const CLI::ParseError& error) {
    throw UsageError(error.what());
  }
  options.config = app.config_to_str(true, false);
  for (const CLI::Option* option : app.get_options())
    if (option->count() > 0) options.given.push_back(option->get_lnames()[0]);
  return true;
}

// The flags that decide what is computed, as text. A checkpoint carries them, and a resumed run keeps them.
inline std::map<std::string, std::string> run_flags(const Options& options) {
  char lr[32] = {};
  std::to_chars(lr, lr + sizeof lr - 1, options.lr);
  return {{"epochs", std::to_string(options.epochs)},
          {"batch-size", std::to_string(options.batch_size)},
          {"lr", lr},
          {"optimizer", options.optimizer},
          {"model", options.model},
          {"shift", std::to_string(options.shift)},
          {"seed", std::to_string(options.seed)}};
}

// Those that decide what is written, which a resumed run keeps unless they are given.
inline std::map<std::string, std::string> writing_flags(const Options& options) {
  return {{"log-every", std::to_string(options.log_every)},
          {"save-every", std::to_string(options.save_every)}};
}

// Takes over the flags of a checkpoint. One of run_flags that was given and says something else is an error: obeyed or
// ignored, the run would not be the one that is resumed.
inline void adopt_flags(Options& options, const std::map<std::string, std::string>& saved) {
  auto is_given = [&](const std::string& name) {
    return std::find(options.given.begin(), options.given.end(), name) != options.given.end();
  };
  std::vector<std::string> words;
  for (const auto& [name, value] : run_flags(options)) {
    auto found = saved.find(name);
    if (found == saved.end()) throw UsageError("the checkpoint does not tell --" + name);
    if (is_given(name) && value != found->second)
      throw UsageError("got --" + name + " " + value + " with --resume, expected " + found->second +
                       " as in that run");
    words.push_back("--" + name + "=" + found->second);
  }
  for (const auto& [name, value] : writing_flags(options)) {
    auto found = saved.find(name);
    if (found != saved.end() && !is_given(name)) words.push_back("--" + name + "=" + found->second);
  }
  CLI::App app;
  add_flags(app, options);
  try {
    app.parse(words);
  } catch (const CLI::ParseError& error) {
    throw UsageError(std::string("the checkpoint's flags are damaged: ") + error.what());
  }
}
