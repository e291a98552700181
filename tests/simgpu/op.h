// Operations, streams and events. Every asynchronous call appends an operation to its stream; the scheduler
// runs it later. An operation's clock is fixed when it is appended: by its stream, by the events the stream
// waits for, and by what the host had synchronised with.
#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "simgpu/clock.h"
#include "simgpu/rng.h"

namespace simgpu {

struct Stream;
struct Op;
struct Capture;

// Bytes that a library call, a copy or a memset reads or writes: `rows` rows of `width` bytes, `pitch` apart.
struct Range {
  const void* base = nullptr;
  size_t width = 0;
  bool write = false;
  size_t rows = 1;
  size_t pitch = 0;
};

// What an operation does. Shared, since the replay of a graph makes many operations of one Work.
struct Work {
  enum Kind { device, callback, marker };
  std::string name;
  Kind kind = device;
  std::vector<Range> ranges;
  std::function<void(Op&)> run;
  double cost_us = 5;
};

// A collective: one operation for each rank, which run together once each is at the head of its stream.
struct Meeting {
  std::string name;
  std::vector<std::shared_ptr<Op>> ops;  // by rank; null: not issued yet
  std::function<void(Meeting&)> run;     // done once, by whoever comes last
  bool done = false;
  double end_us = 0;
};

struct Op {
  uint32_t id = 0;
  Stream* stream = nullptr;
  uint32_t number = 0;  // within its stream
  Clock clock;
  std::shared_ptr<const Work> work;
  std::shared_ptr<Op> target;  // this is a wait for it
  std::shared_ptr<Meeting> meeting;
  enum State { queued, active, done } state = queued;
  double host_us = 0, start_us = 0, end_us = 0;
  Capture* capture = nullptr;  // recorded into it, never run
  std::vector<int> nodes;      // nodes of it that come before what follows this operation
};

struct Stream {
  uint32_t index = 0;  // component of the clocks, and its name in reports
  int device = 0;
  int priority = 0;
  unsigned flags = 0;
  Clock clock;
  uint32_t issued = 0;
  std::deque<std::shared_ptr<Op>> queue;
  std::shared_ptr<Op> last;  // the latest issued
  double now_us = 0;
  uint32_t luck = 0;  // rank among runnable streams under the random policy
  bool destroyed = false;
  Capture* capture = nullptr;
};

struct Event {
  int device = 0;
  unsigned flags = 0;
  std::shared_ptr<Op> record;  // the latest
  int polls = 0;               // queries since then
};

inline bool happens_before(const Op& a, const Clock& b) { return b.at(a.stream->index) >= a.number; }

}  // namespace simgpu
