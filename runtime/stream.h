// Streams and events. Work on the CPU runs when it is called, so there a stream is always idle and an event
// has always happened; the types exist so that a kernel has one signature for every device. User code names
// no stream: it sets the current one of its thread by StreamGuard. Kernels take a Stream as their last
// argument.
#pragma once

#include "lockstep/runtime/device.h"

namespace lockstep {

struct Stream {
  Device device;
  void* native = nullptr;  // cudaStream_t; null on the CPU and on meta

  void synchronize() const;  // blocks the host until all work issued so far has run
  friend bool operator==(const Stream&, const Stream&) = default;
};

class Event {
 public:
  void record(const Stream& stream);  // happens when the work issued to `stream` so far has run
  void wait(
      const Stream& stream) const;  // later work on `stream` starts after the event; does not block the host
  void synchronize() const;         // blocks the host until the event has happened
  bool query() const;               // has it happened? True for an event never recorded.

 private:
  Stream stream_;
};

// The calling thread's current stream on `device`. Throws for a device that this build or machine does not
// have.
Stream current_stream(Device device);

// Makes `stream` current for its device in this thread until the guard ends.
class StreamGuard {
 public:
  explicit StreamGuard(const Stream& stream);
  ~StreamGuard();
  StreamGuard(const StreamGuard&) = delete;
  StreamGuard& operator=(const StreamGuard&) = delete;

 private:
  Stream previous_;
};

}  // namespace lockstep
