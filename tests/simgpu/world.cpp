#include "simgpu/world.h"

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>

#include "simgpu/libraries.h"
#include "simgpu/memory.h"
#include "simgpu/report.h"
#include "simgpu/scheduler.h"
#include "simgpu/shadow.h"

namespace simgpu {

thread_local HostThread host;

HostThread::~HostThread() {
  if (!counted) return;
  std::lock_guard guard(world().mutex);
  --world().host_threads;
  world().changed.notify_all();
}

namespace {

// Programs that know nothing of the control interface choose by environment.
Config config_from_environment() {
  Config c;
  if (const char* s = std::getenv("SIMGPU_DEVICES")) c.devices = std::atoi(s);
  if (const char* s = std::getenv("SIMGPU_SEED")) c.seed = std::strtoull(s, nullptr, 10);
  if (const char* s = std::getenv("SIMGPU_CHECK")) c.check = std::strcmp(s, "0") != 0;
  if (const char* s = std::getenv("SIMGPU_POLICY"))
    c.policy = std::strcmp(s, "eager") == 0    ? Policy::eager
               : std::strcmp(s, "random") == 0 ? Policy::random
                                               : Policy::lazy;
  return c;
}

void begin(World& w, const Config& c) {
  w.config = c;
  w.config.devices = std::min(std::max(c.devices, 0), kMaxDevices);
  w.rng = {c.seed * 0x9e3779b97f4a7c15u + 1};
  w.streams.clear();
  w.null_streams.clear();
  w.events.clear();
  w.peers.clear();
  w.host_clock = {};
  w.host_us = 0;
  w.past.assign(1, {});
  w.spans.clear();
  w.calls.clear();
  w.faults.clear();
  w.lost = cudaSuccess;
  w.uninstrumented = false;
  for (int d = 0; d < w.config.devices; ++d) w.null_streams.push_back(make_stream(d, 0, 0));
}

}  // namespace

World& world() {
  static World* w = [] {
    std::fprintf(stderr, "simgpu: this is a SIMULATED CUDA device; no GPU is used\n");
    start_memory();
    start_shadow();
    return new World;  // never destroyed: host threads may outlive every static object
  }();
  return *w;
}

void reset(const Config& c) {
  World& w = world();
  std::lock_guard guard(w.mutex);
  reset_graphs();
  reset_cublas();
  reset_cublaslt();
  reset_cudnn();
  reset_nccl();
  reset_memory();
  begin(w, c);
  host.device = 0;
  host.last_error = cudaSuccess;
  take_reports();
}

void configure(Policy policy, uint64_t seed) {
  std::lock_guard guard(world().mutex);
  world().config.policy = policy;
  world().config.seed = seed;
  world().rng = {seed * 0x9e3779b97f4a7c15u + 1};
}

const Config& config() { return world().config; }

Call::Call(const char* name) : name_(name), outer_(host.lock) {
  World& w = world();
  if (outer_ == nullptr) {
    lock_ = std::unique_lock(w.mutex);
    host.lock = &lock_;
  }
  if (w.null_streams.empty()) begin(w, config_from_environment());
  if (!host.counted) {
    host.counted = true;
    ++w.host_threads;
  }
  host.call = name;
  ++w.calls[name];
  w.host_us += 1;
  for (auto it = w.faults.begin(); it != w.faults.end(); ++it) {
    if (it->call != name || --it->countdown > 0) continue;
    injected_ = it->status;
    w.faults.erase(it);
    break;
  }
  if (host.in_callback)
    report("misuse", std::string(name) + " called from a host callback, where CUDA forbids it");
}

Call::~Call() {
  if (outer_ != nullptr) return;
  if (!host.in_callback) make_progress();
  close_arenas();
  host.lock = nullptr;
}

cudaError_t finish(cudaError_t status) {
  if (status != cudaSuccess && status != cudaErrorNotReady) {
    host.last_error = status;
    host.failed_call = host.call;
  }
  return status;
}

void fail(const std::string& call, int nth, int status) {
  std::lock_guard guard(world().mutex);
  world().faults.push_back({call, nth, status});
}

int64_t calls(const std::string& call) {
  std::lock_guard guard(world().mutex);
  auto it = world().calls.find(call);
  return it == world().calls.end() ? 0 : it->second;
}

std::string describe_stream(const Stream& s) {
  return "stream " + std::to_string(s.index) + ", device " + std::to_string(s.device);
}

std::string describe_op(uint32_t id) {
  const World& w = world();
  if (id == 0 || id >= w.past.size()) return "host";
  const World::Past& p = w.past[id];
  return p.work->name + " (operation " + std::to_string(id) + ", stream " + std::to_string(p.stream) +
         ", device " + std::to_string(p.device) + ")";
}

std::vector<Span> timeline() {
  std::lock_guard guard(world().mutex);
  return world().spans;
}

void write_trace(const std::string& path) {
  std::ofstream out(path);
  out << "[";
  const char* separator = "\n";
  for (const Span& s : timeline()) {
    std::string name;
    for (char c : s.name) name += c == '"' || c == '\\' ? '\'' : c;
    out << separator << R"({"ph":"X","name":")" << name << R"(","pid":)" << s.device << R"(,"tid":)"
        << s.stream << R"(,"ts":)" << s.start_us << R"(,"dur":)" << s.end_us - s.start_us << "}";
    separator = ",\n";
  }
  out << "\n]\n";
}

}  // namespace simgpu
