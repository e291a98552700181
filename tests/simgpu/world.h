// The state of the whole simulation, behind one lock: two processors gain nothing from more, and the order in
// which things run is then ours to choose.
#pragma once

#include <cuda_runtime_api.h>

#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <unordered_map>
#include <vector>

#include "simgpu/op.h"
#include "simgpu/simgpu.h"

namespace simgpu {

constexpr int kMaxDevices = 8;

struct World {
  std::mutex mutex;
  std::condition_variable changed;  // work was added or finished
  Config config;
  Rng rng;

  std::vector<std::unique_ptr<Stream>> streams;  // by index, never removed before reset
  std::vector<Stream*> null_streams;             // by device
  std::set<Event*> events;
  std::set<std::pair<int, int>> peers;  // (device, device it may reach)
  Clock host_clock;                     // one for all host threads: races between them are TSan's business
  double host_us = 0;

  // What is needed of an operation for as long as memory remembers it.
  struct Past {
    uint32_t stream, number;
    int device;
    std::shared_ptr<const Work> work;
  };
  std::vector<Past> past;  // by id; 0 is nobody

  std::vector<Span> spans;
  std::map<std::string, int64_t> calls;
  struct Fault {
    std::string call;
    int countdown;
    int status;
  };
  std::vector<Fault> faults;
  cudaError_t lost = cudaSuccess;  // a sticky error: every later call returns it
  bool uninstrumented = false;     // a kernel ran whose writes the checker could not see

  int host_threads = 0, waiting_threads = 0;
};

World& world();

// What a host thread keeps for itself.
struct HostThread {
  int device = 0;
  cudaError_t last_error = cudaSuccess;
  const char* call = "";         // the latest
  const char* failed_call = "";  // that set last_error
  bool in_callback = false;
  std::unique_lock<std::mutex>* lock = nullptr;  // held now, if any
  bool counted = false;
  ~HostThread();
};
extern thread_local HostThread host;

// Every API function begins with one: takes the lock, counts the call, applies an injected failure.
class Call {
 public:
  explicit Call(const char* name);
  ~Call();
  Call(const Call&) = delete;
  Call& operator=(const Call&) = delete;
  int injected() const { return injected_; }  // status to return at once; 0: none
  const char* name() const { return name_; }

 private:
  const char* name_;
  std::unique_lock<std::mutex> lock_;
  std::unique_lock<std::mutex>* outer_;
  int injected_ = 0;
};

// The status to return when something of CUDA's runtime fails; remembered for cudaGetLastError.
cudaError_t finish(cudaError_t status);

// For functions of the CUDA runtime: name the call, return injected and sticky errors.
#define SIMGPU_CALL(name)                                                                       \
  ::simgpu::Call call(#name);                                                                   \
  if (call.injected() != 0) return ::simgpu::finish(static_cast<cudaError_t>(call.injected())); \
  if (::simgpu::world().lost != cudaSuccess) return ::simgpu::finish(::simgpu::world().lost)

// "axpby_kernel<float> (operation 12, stream 3, device 0)"
std::string describe_op(uint32_t id);
std::string describe_stream(const Stream& stream);

}  // namespace simgpu
