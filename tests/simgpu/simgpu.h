// Control interface of the simulated CUDA device, for tests only. The device itself is reached through
// NVIDIA's own headers (cuda_runtime.h, cublas_v2.h, cudnn.h, nccl.h): the libraries of this folder are
// linked in the place of the real ones. It is a simulation and says so once on standard error.
//
// What it proves and what it cannot: tests/simgpu/README.md.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace simgpu {

// When queued work runs. A correct program gives the same result under each.
enum class Policy {
  lazy,    // only what a waiting call needs, as late as possible
  random,  // in an order drawn from the seed, within what streams and events allow
  eager,   // at once
};

struct Config {
  int devices = 2;  // at most 8
  size_t memory_bytes = size_t{1} << 30;
  Policy policy = Policy::lazy;
  uint64_t seed = 1;       // thread order, block order, order of streams, spurious NotReady, workspaces
  bool strict = true;      // report the NULL stream and asynchronous copies of pageable memory
  bool check = true;       // races, bounds, initialisation; false: fast
  int patience_ms = 2000;  // how long a wait that only another host thread can end may last
};

struct Report {
  std::string
      kind;  // race, uninitialised, out of bounds, use after free, host access, barrier, deadlock, ...
  std::string message;
  int count = 1;  // how often it came again
};

// Destroys every stream, event, allocation, handle and report and begins anew. No call may be in progress.
void reset(const Config& config = {});
// Changes policy and seed only; what exists stays.
void configure(Policy policy, uint64_t seed);
const Config& config();

// The reports since the last call, each once. Nothing else ever throws or ends the program.
std::vector<Report> take_reports();
std::string describe(const std::vector<Report>& reports);

// The `nth` call of API function `call` from now on (1: the next) returns `status` and does nothing. For a
// kernel, `call` is "kernel": its launch succeeds and the device then fails for good, as after a bad access.
void fail(const std::string& call, int nth, int status);
// How often API function `call` was called since reset.
int64_t calls(const std::string& call);
size_t live_bytes(int device);  // allocated and not freed

// Work that ran, in virtual time: a fixed cost model, no measure of real speed. For asserting overlap.
struct Span {
  std::string name;
  int device = 0;
  int stream = 0;  // number by which reports name it
  double start_us = 0, end_us = 0;
};
std::vector<Span> timeline();
void write_trace(const std::string& path);  // for chrome://tracing

}  // namespace simgpu
