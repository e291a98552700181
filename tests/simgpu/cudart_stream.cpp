// Streams and events.
#include <cuda_runtime_api.h>

#include "simgpu/capture.h"
#include "simgpu/report.h"
#include "simgpu/scheduler.h"

using namespace simgpu;

namespace {

Event* event_of(cudaEvent_t handle, const char* call) {
  auto* e = reinterpret_cast<Event*>(handle);
  if (world().events.contains(e)) return e;
  report("misuse", std::string(call) + " is given a handle that is no event");
  return nullptr;
}

cudaError_t create_stream(cudaStream_t* handle, unsigned flags, int priority) {
  if ((flags & ~unsigned{cudaStreamNonBlocking}) != 0) return finish(cudaErrorInvalidValue);
  if (flags != cudaStreamNonBlocking && config().strict)
    report("misuse",
           "a stream is created that is not cudaStreamNonBlocking: it would wait for the NULL stream");
  *handle = handle_of(make_stream(host.device, flags, std::min(0, std::max(-5, priority))));
  return cudaSuccess;
}

// Done? Then the host knows of it. Polling makes work go on in the end, but says NotReady for a while, and
// under the random policy even of what is over.
cudaError_t query(const std::shared_ptr<Op>& op, int& polls) {
  World& w = world();
  if (!op) return cudaSuccess;
  if (++polls % 4 == 0) run_toward(op);
  if (op->state != Op::done || (w.config.policy == Policy::random && w.rng.chance(2)))
    return cudaErrorNotReady;
  host_learns(*op);
  return w.lost;
}

}  // namespace

extern "C" {

cudaError_t cudaStreamCreate(cudaStream_t* handle) {
  SIMGPU_CALL(cudaStreamCreate);
  return create_stream(handle, 0, 0);
}
cudaError_t cudaStreamCreateWithFlags(cudaStream_t* handle, unsigned flags) {
  SIMGPU_CALL(cudaStreamCreateWithFlags);
  return create_stream(handle, flags, 0);
}
cudaError_t cudaStreamCreateWithPriority(cudaStream_t* handle, unsigned flags, int priority) {
  SIMGPU_CALL(cudaStreamCreateWithPriority);
  return create_stream(handle, flags, priority);
}

#define SIMGPU_STREAM(handle)                      \
  Stream* stream = stream_of(handle, call.name()); \
  if (stream == nullptr) return finish(cudaErrorInvalidResourceHandle)

cudaError_t cudaStreamDestroy(cudaStream_t handle) {
  SIMGPU_CALL(cudaStreamDestroy);
  SIMGPU_STREAM(handle);
  stream->destroyed = true;  // what is queued still runs
  return cudaSuccess;
}
cudaError_t cudaStreamSynchronize(cudaStream_t handle) {
  SIMGPU_CALL(cudaStreamSynchronize);
  SIMGPU_STREAM(handle);
  if (cudaError_t status = forbidden_in_capture(stream, call.name()); status != cudaSuccess)
    return finish(status);
  return finish(wait_for(stream->last));
}
cudaError_t cudaStreamQuery(cudaStream_t handle) {
  SIMGPU_CALL(cudaStreamQuery);
  SIMGPU_STREAM(handle);
  if (cudaError_t status = forbidden_in_capture(stream, call.name()); status != cudaSuccess)
    return finish(status);
  static int polls = 0;
  return finish(query(stream->last, polls));
}
cudaError_t cudaStreamWaitEvent(cudaStream_t handle, cudaEvent_t event_handle, unsigned) {
  SIMGPU_CALL(cudaStreamWaitEvent);
  SIMGPU_STREAM(handle);
  Event* event = event_of(event_handle, call.name());
  if (event == nullptr) return finish(cudaErrorInvalidResourceHandle);
  if (!event->record) {
    report("misuse",
           describe_stream(*stream) + " waits for an event that was never recorded, which does nothing");
    return cudaSuccess;
  }
  enqueue_wait(stream, event->record);
  return cudaSuccess;
}
cudaError_t cudaStreamGetPriority(cudaStream_t handle, int* priority) {
  SIMGPU_CALL(cudaStreamGetPriority);
  SIMGPU_STREAM(handle);
  *priority = stream->priority;
  return cudaSuccess;
}
cudaError_t cudaStreamGetFlags(cudaStream_t handle, unsigned* flags) {
  SIMGPU_CALL(cudaStreamGetFlags);
  SIMGPU_STREAM(handle);
  *flags = stream->flags;
  return cudaSuccess;
}
cudaError_t cudaStreamGetDevice(cudaStream_t handle, int* device) {
  SIMGPU_CALL(cudaStreamGetDevice);
  SIMGPU_STREAM(handle);
  *device = stream->device;
  return cudaSuccess;
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* handle, unsigned flags) {
  SIMGPU_CALL(cudaEventCreateWithFlags);
  auto* event = new Event{host.device, flags, nullptr, 0};
  world().events.insert(event);
  *handle = reinterpret_cast<cudaEvent_t>(event);
  return cudaSuccess;
}
cudaError_t cudaEventCreate(cudaEvent_t* handle) {
  return cudaEventCreateWithFlags(handle, cudaEventDefault);
}

#define SIMGPU_EVENT(handle)                    \
  Event* event = event_of(handle, call.name()); \
  if (event == nullptr) return finish(cudaErrorInvalidResourceHandle)

cudaError_t cudaEventRecord(cudaEvent_t event_handle, cudaStream_t handle) {
  SIMGPU_CALL(cudaEventRecord);
  SIMGPU_STREAM(handle);
  SIMGPU_EVENT(event_handle);
  if (event->device != stream->device) {
    report("misuse", "an event of device " + std::to_string(event->device) + " is recorded on " +
                         describe_stream(*stream));
    return finish(cudaErrorInvalidResourceHandle);
  }
  event->polls = 0;
  record_event(event, stream);
  return cudaSuccess;
}
cudaError_t cudaEventQuery(cudaEvent_t handle) {
  SIMGPU_CALL(cudaEventQuery);
  SIMGPU_EVENT(handle);
  if (event->record && event->record->capture != nullptr) return finish(cudaErrorCapturedEvent);
  return finish(query(event->record, event->polls));
}
cudaError_t cudaEventSynchronize(cudaEvent_t handle) {
  SIMGPU_CALL(cudaEventSynchronize);
  SIMGPU_EVENT(handle);
  return finish(wait_for(event->record));
}
cudaError_t cudaEventElapsedTime(float* ms, cudaEvent_t start, cudaEvent_t end) {
  SIMGPU_CALL(cudaEventElapsedTime);
  const Event* a = event_of(start, call.name());
  const Event* b = event_of(end, call.name());
  if (a == nullptr || b == nullptr || !a->record || !b->record ||
      ((a->flags | b->flags) & cudaEventDisableTiming))
    return finish(cudaErrorInvalidResourceHandle);
  if (a->record->state != Op::done || b->record->state != Op::done) return finish(cudaErrorNotReady);
  *ms = static_cast<float>((b->record->end_us - a->record->end_us) / 1000);
  return cudaSuccess;
}
cudaError_t cudaEventDestroy(cudaEvent_t handle) {
  SIMGPU_CALL(cudaEventDestroy);
  SIMGPU_EVENT(handle);
  world().events.erase(event);
  delete event;
  return cudaSuccess;
}
}
