// What a person sees of a training run.
//
//   epoch 2/10 [========>           ]  41 %  loss 0.0712  accuracy 97.81 %  41,210 images/s  0:13 left  118
//   MB
//
// On a terminal one line that is redrawn; elsewhere (a pipe, a log file) a plain line every few seconds.
// Thread safety: one thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <iosfwd>
#include <string>

namespace lockstep {

struct ProgressOptions {
  bool quiet = false;                 // nothing but message()
  double plain_interval_seconds = 5;  // between two lines where there is no terminal
  // For tests and host programs; by default standard output, and whether it is a terminal.
  std::ostream* out = nullptr;
  bool terminal = false;                 // looked at only if `out` is given
  std::function<double()> seconds = {};  // a clock; by default a steady one
};

class Progress {
 public:
  Progress(int64_t epochs, int64_t steps_per_epoch, ProgressOptions options = {});
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  // Epochs and steps count from 0; a resumed epoch begins at `step`.
  void begin_epoch(int64_t epoch, int64_t step = 0);
  // After each step, with the epoch's means so far and the number of samples of this step.
  void step(double loss, double accuracy, int64_t samples);
  // Ends the epoch's line; `summary` (say, the test accuracy) takes its place.
  void end_epoch(const std::string& summary);
  // A line of its own, above the bar; shown even if quiet.
  void message(const std::string& text);

  // Over all steps so far; the time between epochs does not count.
  double samples_per_second() const;
  double training_seconds() const { return training_seconds_; }
  int64_t samples() const { return samples_; }
  // Of the epoch that runs or has just ended.
  double epoch_samples_per_second() const;

 private:
  std::string line(bool bar) const;
  void draw();
  void clear();

  const int64_t epochs_, steps_per_epoch_;
  ProgressOptions options_;
  std::ostream& out_;
  bool terminal_;
  bool drawn_ = false;
  int64_t epoch_ = 0, step_ = 0, first_step_ = -1, samples_ = 0, epoch_samples_ = 0;
  double loss_ = 0, accuracy_ = 0;
  double start_seconds_ = 0, last_step_seconds_ = 0, last_line_seconds_ = 0;
  double training_seconds_ = 0, epoch_seconds_ = 0;
};

// Memory of this process, all of it, as the system counts it.
size_t resident_bytes();
size_t peak_resident_bytes();

std::string format_duration(double seconds);  // "0:07", "12:34", "1:02:03"
std::string format_count(int64_t count);      // "41,210"

}  // namespace lockstep
