#include "lockstep/training/progress.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <iostream>

#include "lockstep/runtime/check.h"

namespace lockstep {
namespace {

constexpr double kRedrawSeconds = 0.1;  // a terminal needs no more, and drawing costs time
constexpr int kBarWidth = 20;

double steady_seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

int terminal_columns() {
  winsize size{};
  return ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : 120;
}

template <class... Args>
std::string format(const char* pattern, Args... args) {
  char text[160];
  int length = std::snprintf(text, sizeof text, pattern, args...);
  return std::string(text, size_t(std::clamp(length, 0, int(sizeof text) - 1)));
}

// A field of /proc/self/status, in bytes; 0 where there is no such file.
size_t process_status(const std::string& field) {
  std::ifstream file("/proc/self/status");
  for (std::string line; std::getline(file, line);)
    if (line.starts_with(field)) return size_t(std::stoull(line.substr(field.size() + 1))) * 1024;
  return 0;
}

}  // namespace

Progress::Progress(int64_t epochs, int64_t steps_per_epoch, ProgressOptions options)
    : epochs_(epochs),
      steps_per_epoch_(steps_per_epoch),
      options_(std::move(options)),
      out_(options_.out ? *options_.out : std::cout),
      terminal_(options_.out ? options_.terminal : isatty(STDOUT_FILENO) != 0) {
  LOCKSTEP_CHECK(epochs >= 0 && steps_per_epoch > 0, "[progress] got ", epochs, " epochs of ",
                 steps_per_epoch, " steps, expected at least one step");
  if (!options_.seconds) options_.seconds = steady_seconds;
  start_seconds_ = last_step_seconds_ = last_line_seconds_ = options_.seconds();
}

Progress::~Progress() { clear(); }

void Progress::begin_epoch(int64_t epoch, int64_t step) {
  epoch_ = epoch;
  step_ = step;
  epoch_samples_ = 0;
  epoch_seconds_ = 0;
  last_step_seconds_ = options_.seconds();
  if (first_step_ < 0) {
    first_step_ = epoch * steps_per_epoch_ + step;
    start_seconds_ = last_line_seconds_ = last_step_seconds_;
  }
}

void Progress::step(double loss, double accuracy, int64_t samples) {
  double now = options_.seconds(), seconds = now - last_step_seconds_;
  last_step_seconds_ = now;
  training_seconds_ += seconds;
  epoch_seconds_ += seconds;
  samples_ += samples;
  epoch_samples_ += samples;
  loss_ = loss;
  accuracy_ = accuracy;
  step_++;
  if (!options_.quiet &&
      now - last_line_seconds_ >= (terminal_ ? kRedrawSeconds : options_.plain_interval_seconds)) {
    last_line_seconds_ = now;
    draw();
  }
}

void Progress::end_epoch(const std::string& summary) {
  if (options_.quiet) return;
  clear();
  out_ << "epoch " << epoch_ + 1 << "/" << epochs_ << "  " << summary << std::endl;
  last_line_seconds_ = options_.seconds();
}

void Progress::message(const std::string& text) {
  clear();
  out_ << text << std::endl;
}

double Progress::samples_per_second() const {
  return training_seconds_ > 0 ? double(samples_) / training_seconds_ : 0;
}

double Progress::epoch_samples_per_second() const {
  return epoch_seconds_ > 0 ? double(epoch_samples_) / epoch_seconds_ : 0;
}

std::string Progress::line(bool bar) const {
  double part = double(step_) / double(steps_per_epoch_);
  std::string text =
      format("epoch %lld/%lld ", static_cast<long long>(epoch_ + 1), static_cast<long long>(epochs_));
  if (bar) {
    int filled = std::clamp(int(part * kBarWidth), 0, kBarWidth);
    text += '[';
    text.append(size_t(filled), '=');
    if (filled < kBarWidth) text.append(1, '>').append(size_t(kBarWidth - filled - 1), ' ');
    text += ']';
  }
  text += format(" %3.0f %%  loss %.4f  accuracy %.2f %%", 100 * part, loss_, 100 * accuracy_);
  text.append("  ").append(format_count(int64_t(epoch_samples_per_second()))).append(" images/s");
  // By the wall clock, so that the evaluations between the epochs are part of the estimate once one has been
  // seen.
  int64_t done = epoch_ * steps_per_epoch_ + step_ - first_step_;
  int64_t left = epochs_ * steps_per_epoch_ - first_step_ - done;
  if (done > 0) {
    double step_seconds = (options_.seconds() - start_seconds_) / double(done);
    text.append("  ").append(format_duration(step_seconds * double(left))).append(" left");
  }
  return text + format("  %.0f MB", double(resident_bytes()) / 1e6);
}

void Progress::draw() {
  if (!terminal_) {
    out_ << line(false) << std::endl;
    return;
  }
  // A line wider than the terminal would wrap and could not be redrawn.
  std::string text = line(true).substr(0, size_t(std::max(terminal_columns() - 1, 1)));
  out_ << "\r" << text << "\x1b[K" << std::flush;
  drawn_ = true;
}

void Progress::clear() {
  if (drawn_) out_ << "\r\x1b[K" << std::flush;
  drawn_ = false;
}

size_t resident_bytes() { return process_status("VmRSS:"); }

// Not getrusage: its maximum is inherited from the program that started this one.
size_t peak_resident_bytes() { return process_status("VmHWM:"); }

std::string format_duration(double seconds) {
  if (!(seconds >= 0) || seconds > 3.6e8) return "?";
  long long total = std::llround(seconds), hours = total / 3600, minutes = total / 60 % 60;
  if (hours > 0) return format("%lld:%02lld:%02lld", hours, minutes, total % 60);
  return format("%lld:%02lld", minutes, total % 60);
}

std::string format_count(int64_t count) {
  std::string digits = std::to_string(count), text;
  for (size_t i = 0; i < digits.size(); i++) {
    bool first = text.empty() || text == "-";
    if (!first && (digits.size() - i) % 3 == 0) text += ',';
    text += digits[i];
  }
  return text;
}

}  // namespace lockstep
