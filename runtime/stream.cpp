#include "lockstep/runtime/stream.h"

#include "lockstep/runtime/check.h"

namespace lockstep {
namespace {

void require_available(Device device) {
  LOCKSTEP_CHECK(device.type != DeviceType::cuda, "[device] ", device,
                 " is not available: this build has no CUDA back end");
}

}  // namespace

void Stream::synchronize() const { require_available(device); }

void Event::record(const Stream& stream) {
  require_available(stream.device);
  stream_ = stream;
}

void Event::wait(const Stream& stream) const { require_available(stream.device); }

void Event::synchronize() const { stream_.synchronize(); }

bool Event::query() const { return true; }

Stream current_stream(Device device) {
  require_available(device);
  return {device, nullptr};
}

// With one stream a device there is nothing to switch, but the stream must be one that exists.
StreamGuard::StreamGuard(const Stream& stream) : previous_(current_stream(stream.device)) {}
StreamGuard::~StreamGuard() = default;

}  // namespace lockstep
