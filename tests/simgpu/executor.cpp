#include "simgpu/executor.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <numeric>

#include "simgpu/block.h"
#include "simgpu/device.h"
#include "simgpu/report.h"

uint3 threadIdx, blockIdx, blockDim, gridDim;

namespace simgpu {

thread_local Running* running = nullptr;
Block block;

namespace {

alignas(256) char dynamic_shared_bytes[kMaxSharedBytes + 1024];
size_t dynamic_shared_size = 0;

std::mutex registry_mutex;
std::map<const void*, Kernel>& registry() {
  static auto* map = new std::map<const void*, Kernel>;  // outlives every other static object
  return *map;
}

// "... [with auto kernel = {anonymous}::axpby_kernel<float>; ...]" or clang's "[kernel = &axpby_kernel]".
std::string short_name(std::string text) {
  const size_t at = text.find("kernel = ");
  if (at == std::string::npos) return text;
  text = text.substr(at + 9);
  int depth = 0;
  size_t end = 0;
  for (; end < text.size(); ++end) {
    const char c = text[end];
    if (c == '<' || c == '(' || c == '[') ++depth;
    if (depth == 0 && (c == ';' || c == ']' || c == ',')) break;
    if (c == '>' || c == ')' || c == ']') --depth;
  }
  text.resize(end);
  for (const char* noise : {"& ", "&", "{anonymous}::", "(anonymous namespace)::"})
    for (size_t p; (p = text.find(noise)) != std::string::npos;) text.erase(p, std::strlen(noise));
  return text;
}

void fiber_main() {
  for (;;) {
    while (block.next < block.count) {
      block.begin_thread(block.order[static_cast<size_t>(block.next++)]);
      block.kernel->thunk(block.kernel->function, block.args);
      block.end_thread();
    }
    switch_context(block.fibers[block.fiber], block.main);
  }
}

}  // namespace

Kernel* find_kernel(const void* function) {
  std::lock_guard lock(registry_mutex);
  auto it = registry().find(function);
  return it == registry().end() ? nullptr : &it->second;
}

void register_kernel(const void* function, const char* signature, Thunk thunk, const size_t* sizes, int count,
                     bool instrumented) {
  std::lock_guard lock(registry_mutex);
  Kernel& kernel = registry()[function];
  if (kernel.function != nullptr) return;
  kernel.function = function;
  kernel.name = short_name(signature);
  kernel.thunk = thunk;
  kernel.sizes.assign(sizes, sizes + count);
  kernel.instrumented = instrumented;
}

void* dynamic_shared() { return dynamic_shared_bytes; }
bool on_fiber_stack(const void* address) { return block.stacks.contains(address); }
bool near_dynamic_shared(const void* address) {
  const auto* p = static_cast<const char*>(address);
  return dynamic_shared_bytes <= p && p < dynamic_shared_bytes + sizeof dynamic_shared_bytes;
}
bool in_dynamic_shared(const void* address, size_t bytes) {
  return near_dynamic_shared(address) &&
         static_cast<const char*>(address) + bytes <= dynamic_shared_bytes + dynamic_shared_size;
}

cudaError_t execute(const Launch& launch, Running& actor, Rng& rng) {
  std::vector<void*> args;
  for (size_t offset : launch.offsets) args.push_back(const_cast<std::byte*>(launch.args.data()) + offset);
  gridDim = {launch.grid.x, launch.grid.y, launch.grid.z};
  blockDim = {launch.block.x, launch.block.y, launch.block.z};
  dynamic_shared_size = launch.shared_bytes;

  const uint64_t blocks = uint64_t{launch.grid.x} * launch.grid.y * launch.grid.z;
  std::vector<uint64_t> order(blocks);
  std::iota(order.begin(), order.end(), uint64_t{0});
  const uint32_t mode = rng.below(3);  // ascending, descending, shuffled
  if (mode == 1) std::reverse(order.begin(), order.end());
  if (mode == 2) shuffle_order(order, rng);

  block.begin_launch(launch.kernel, args.data(), actor, rng);
  bool ok = true;
  for (uint64_t i = 0; i < blocks && ok; ++i) {
    const uint64_t b = order[i];
    blockIdx = {static_cast<unsigned>(b % launch.grid.x),
                static_cast<unsigned>(b / launch.grid.x % launch.grid.y),
                static_cast<unsigned>(b / launch.grid.x / launch.grid.y)};
    std::memset(dynamic_shared_bytes, 0xff, launch.shared_bytes);
    static uint64_t serial = 0;
    actor.block_serial = ++serial;
    actor.who.block = static_cast<uint32_t>(i);
    ok = block.run(fiber_main);
  }
  block.end_launch();
  return block.aborted;
}

}  // namespace simgpu
