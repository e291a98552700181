// Streams, events and the order in which queued work runs.
#pragma once

#include <memory>
#include <string>

#include "simgpu/op.h"
#include "simgpu/world.h"

namespace simgpu {

Stream* make_stream(int device, unsigned flags, int priority);
// The stream of a handle: null, with a report, for a handle that is none of ours or was destroyed. `call`
// names the caller. The NULL stream is reported if the simulation is strict.
Stream* stream_of(cudaStream_t handle, const char* call);
inline cudaStream_t handle_of(Stream* stream) { return reinterpret_cast<cudaStream_t>(stream); }

// Appends work; recorded instead while the stream is captured.
std::shared_ptr<Op> enqueue(Stream* stream, std::shared_ptr<const Work> work);
std::shared_ptr<Op> enqueue(Stream* stream, std::string name, std::vector<Range> ranges,
                            std::function<void(Op&)> run, double cost_us);
std::shared_ptr<Op> enqueue_wait(Stream* stream, const std::shared_ptr<Op>& target);
std::shared_ptr<Op> enqueue_meeting(Stream* stream, const std::shared_ptr<Meeting>& meeting, int rank,
                                    std::vector<Range> ranges);
std::shared_ptr<Op> record_event(Event* event, Stream* stream);

// Runs what is needed until `op` is done, then lets the host know of all that happened before it. An error
// if nothing can bring it about: the deadlock is reported.
cudaError_t wait_for(const std::shared_ptr<Op>& op);
void host_learns(const Op& op);
bool run_toward(const std::shared_ptr<Op>& op);  // without waiting for other host threads; true if it is done
void make_progress();                            // what the policy does after an API call
// Waits, without the lock, until another host thread adds work or `ready` holds. False when time is up.
bool wait_for_host(const std::function<bool()>& ready);

}  // namespace simgpu
