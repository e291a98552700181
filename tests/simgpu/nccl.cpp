// The part of NCCL that data-parallel training uses, with ranks as threads or as one thread with groups. A
// collective is one operation for each rank, in that rank's stream; it runs when all ranks have issued theirs
// and each is at the head of its stream.
#include "nccl.h"

#include <cstring>
#include <map>
#include <set>

#include "simgpu/collective.h"
#include "simgpu/libraries.h"
#include "simgpu/report.h"
#include "simgpu/scheduler.h"

namespace simgpu {
namespace {

struct Comm;

// The ranks that share one unique id.
struct Clique {
  int ranks = 0, joined = 0;
  std::vector<Comm*> comms;
  std::vector<size_t> position;  // by rank: collectives issued so far
  struct Entry {
    Collective collective;
    std::shared_ptr<Meeting> meeting;
    int first_rank;
  };
  std::vector<std::shared_ptr<Entry>> entries;  // by position
};

struct Comm {
  std::shared_ptr<Clique> clique;
  int rank = 0, device = 0;
  bool aborted = false;
};

std::map<uint64_t, std::shared_ptr<Clique>> cliques;  // by unique id
uint64_t ids = 0;
std::set<Comm*> comms;

struct Group {
  int depth = 0;
  std::vector<std::shared_ptr<Clique>> joining;
  std::vector<std::function<ncclResult_t()>> issues;
};
thread_local Group group;

Comm* comm_of(ncclComm_t handle, const char* call) {
  auto* c = reinterpret_cast<Comm*>(handle);
  if (comms.contains(c)) return c;
  report("misuse", std::string(call) + " is given a communicator that is none");
  return nullptr;
}

// All ranks must come before any may go on.
ncclResult_t wait_for_ranks(Clique& c) {
  if (wait_for_host([&] { return c.joined == c.ranks; })) return ncclSuccess;
  std::string missing;
  for (int r = 0; r < c.ranks; ++r)
    if (c.comms[static_cast<size_t>(r)] == nullptr) missing += " " + std::to_string(r);
  report("deadlock", "a communicator of " + std::to_string(c.ranks) +
                         " ranks cannot be created: nobody calls for rank" + missing +
                         "; one thread that makes several must do it inside a group");
  return ncclSystemError;
}

ncclResult_t join(ncclComm_t* handle, int ranks, uint64_t id, int rank, int device) {
  if (ranks < 1 || rank < 0 || rank >= ranks) return ncclInvalidArgument;
  std::shared_ptr<Clique>& clique = cliques[id];
  if (!clique) {
    clique = std::make_shared<Clique>();
    clique->ranks = ranks;
    clique->comms.resize(static_cast<size_t>(ranks));
    clique->position.resize(static_cast<size_t>(ranks));
  }
  if (clique->ranks != ranks || clique->comms[static_cast<size_t>(rank)] != nullptr)
    return ncclInvalidArgument;
  for (const Comm* other : clique->comms)
    if (other != nullptr && other->device == device) {
      report("misuse", "ranks " + std::to_string(other->rank) + " and " + std::to_string(rank) +
                           " share device " + std::to_string(device));
      return ncclInvalidUsage;
    }
  auto* comm = new Comm{clique, rank, device};
  comms.insert(comm);
  clique->comms[static_cast<size_t>(rank)] = comm;
  ++clique->joined;
  world().changed.notify_all();
  *handle = reinterpret_cast<ncclComm_t>(comm);
  if (group.depth > 0) {
    group.joining.push_back(clique);
    return ncclSuccess;
  }
  return wait_for_ranks(*clique);
}

ncclResult_t issue(Comm* comm, const Collective& mine, const void* send, void* recv, cudaStream_t handle) {
  if (comm->aborted) return ncclInvalidUsage;
  const char* call = mine.name;
  Stream* stream = stream_of(handle, call);
  if (stream == nullptr) return ncclInvalidArgument;
  if (stream->device != comm->device || stream->capture != nullptr) {
    report("misuse", std::string(call) + " of rank " + std::to_string(comm->rank) + ", which is on device " +
                         std::to_string(comm->device) + ", in " + describe_stream(*stream) +
                         (stream->capture != nullptr ? ", which is being captured: not simulated" : ""));
    return ncclInvalidUsage;
  }
  Clique& clique = *comm->clique;
  const auto rank = static_cast<size_t>(comm->rank);
  const size_t position = clique.position[rank]++;
  if (position == clique.entries.size()) {
    auto entry = std::make_shared<Clique::Entry>();
    entry->collective = mine;
    entry->collective.send.resize(static_cast<size_t>(clique.ranks));
    entry->collective.recv.resize(static_cast<size_t>(clique.ranks));
    entry->first_rank = comm->rank;
    entry->meeting = std::make_shared<Meeting>();
    entry->meeting->name = call;
    entry->meeting->ops.resize(static_cast<size_t>(clique.ranks));
    std::weak_ptr<Clique::Entry> weak = entry;
    entry->meeting->run = [weak](Meeting&) {
      if (auto e = weak.lock()) run_collective(e->collective, world().rng);
    };
    clique.entries.push_back(std::move(entry));
  }
  Clique::Entry& entry = *clique.entries[position];
  const std::string difference = compare(entry.collective, mine);
  if (!difference.empty()) {
    report("collective", "collective number " + std::to_string(position) + " of a communicator: rank " +
                             std::to_string(entry.first_rank) + " and rank " + std::to_string(comm->rank) +
                             " do not call the same: " + difference);
    entry.collective.mismatched = true;
  }
  entry.collective.send[rank] = send;
  entry.collective.recv[rank] = recv;
  std::vector<Range> ranges;
  for (const Range& r : mine.ranges(send, recv, comm->rank, clique.ranks)) ranges.push_back(r);
  enqueue_meeting(stream, entry.meeting, comm->rank, std::move(ranges));
  return ncclSuccess;
}

ncclResult_t submit(ncclComm_t handle, Collective collective, const void* send, void* recv,
                    cudaStream_t stream) {
  Comm* comm = comm_of(handle, collective.name);
  if (comm == nullptr) return ncclInvalidArgument;
  if (!to_type(collective.nccl_type, &collective.type) || collective.op > ncclAvg || collective.root < 0 ||
      collective.root >= comm->clique->ranks)
    return ncclInvalidArgument;
  auto now = [=] { return issue(comm, collective, send, recv, stream); };
  if (group.depth == 0) return now();
  group.issues.push_back(now);
  return ncclSuccess;
}

}  // namespace

void reset_nccl() {
  for (Comm* c : comms) delete c;
  comms.clear();
  cliques.clear();
  group = {};
}

}  // namespace simgpu

using namespace simgpu;

#define SIMGPU_NCCL_CALL(name) \
  ::simgpu::Call call(#name);  \
  if (call.injected() != 0) return static_cast<ncclResult_t>(call.injected())

extern "C" {

ncclResult_t ncclGetVersion(int* version) {
  *version = NCCL_VERSION_CODE;
  return ncclSuccess;
}
ncclResult_t ncclGetUniqueId(ncclUniqueId* id) {
  SIMGPU_NCCL_CALL(ncclGetUniqueId);
  std::memset(id, 0, sizeof *id);
  const uint64_t value = ++ids;
  std::memcpy(id->internal, &value, sizeof value);
  return ncclSuccess;
}
ncclResult_t ncclCommInitRank(ncclComm_t* comm, int ranks, ncclUniqueId id, int rank) {
  SIMGPU_NCCL_CALL(ncclCommInitRank);
  uint64_t value;
  std::memcpy(&value, id.internal, sizeof value);
  return join(comm, ranks, value, rank, host.device);
}
ncclResult_t ncclCommInitAll(ncclComm_t* handles, int count, const int* devices) {
  SIMGPU_NCCL_CALL(ncclCommInitAll);
  const uint64_t id = ++ids;
  ++group.depth;
  ncclResult_t status = ncclSuccess;
  for (int r = 0; r < count && status == ncclSuccess; ++r)
    status = join(handles + r, count, id, r, devices != nullptr ? devices[r] : r);
  --group.depth;
  group.joining.clear();
  return status;
}
ncclResult_t ncclCommFinalize(ncclComm_t handle) {
  SIMGPU_NCCL_CALL(ncclCommFinalize);
  return comm_of(handle, call.name()) == nullptr ? ncclInvalidArgument : ncclSuccess;
}

static ncclResult_t end_comm(ncclComm_t handle, const char* name, bool abort) {
  Comm* comm = comm_of(handle, name);
  if (comm == nullptr) return ncclInvalidArgument;
  if (abort) {  // what waits for this rank goes on, with whatever data there is
    for (const auto& entry : comm->clique->entries) entry->meeting->done = true;
    for (Comm* other : comm->clique->comms)
      if (other != nullptr) other->aborted = true;
    world().changed.notify_all();
  }
  comm->clique->comms[static_cast<size_t>(comm->rank)] = nullptr;
  comms.erase(comm);
  delete comm;
  return ncclSuccess;
}
ncclResult_t ncclCommDestroy(ncclComm_t handle) {
  SIMGPU_NCCL_CALL(ncclCommDestroy);
  return end_comm(handle, call.name(), false);
}
ncclResult_t ncclCommAbort(ncclComm_t handle) {
  SIMGPU_NCCL_CALL(ncclCommAbort);
  return end_comm(handle, call.name(), true);
}

// A failure injected into this call is one of the communicator, not of the call.
ncclResult_t ncclCommGetAsyncError(ncclComm_t handle, ncclResult_t* status) {
  Call call("ncclCommGetAsyncError");
  const Comm* comm = comm_of(handle, call.name());
  if (comm == nullptr) return ncclInvalidArgument;
  *status = call.injected() != 0 ? static_cast<ncclResult_t>(call.injected())
            : comm->aborted      ? ncclRemoteError
                                 : ncclSuccess;
  return ncclSuccess;
}
ncclResult_t ncclCommCount(const ncclComm_t handle, int* count) {
  SIMGPU_NCCL_CALL(ncclCommCount);
  const Comm* comm = comm_of(handle, call.name());
  if (comm == nullptr) return ncclInvalidArgument;
  *count = comm->clique->ranks;
  return ncclSuccess;
}
ncclResult_t ncclCommUserRank(const ncclComm_t handle, int* rank) {
  SIMGPU_NCCL_CALL(ncclCommUserRank);
  const Comm* comm = comm_of(handle, call.name());
  if (comm == nullptr) return ncclInvalidArgument;
  *rank = comm->rank;
  return ncclSuccess;
}
ncclResult_t ncclCommCuDevice(const ncclComm_t handle, int* device) {
  SIMGPU_NCCL_CALL(ncclCommCuDevice);
  const Comm* comm = comm_of(handle, call.name());
  if (comm == nullptr) return ncclInvalidArgument;
  *device = comm->device;
  return ncclSuccess;
}
const char* ncclGetErrorString(ncclResult_t result) {
  switch (result) {
    case ncclSuccess: return "no error";
    case ncclUnhandledCudaError: return "unhandled cuda error";
    case ncclSystemError: return "unhandled system error";
    case ncclInvalidArgument: return "invalid argument";
    case ncclInvalidUsage: return "invalid usage";
    case ncclRemoteError: return "remote process exited or there was a network error";
    case ncclInProgress: return "NCCL operation in progress";
    default: return "internal error";
  }
}
const char* ncclGetLastError(ncclComm_t) { return "see the simulator's reports"; }

ncclResult_t ncclGroupStart() {
  SIMGPU_NCCL_CALL(ncclGroupStart);
  ++group.depth;
  return ncclSuccess;
}
ncclResult_t ncclGroupEnd() {
  SIMGPU_NCCL_CALL(ncclGroupEnd);
  if (group.depth == 0) return ncclInvalidUsage;
  if (--group.depth > 0) return ncclSuccess;
  Group work = std::move(group);
  group = {};
  for (const auto& clique : work.joining)
    if (ncclResult_t status = wait_for_ranks(*clique); status != ncclSuccess) return status;
  for (const auto& issue : work.issues)
    if (ncclResult_t status = issue(); status != ncclSuccess) return status;
  return ncclSuccess;
}

ncclResult_t ncclAllReduce(const void* send, void* recv, size_t count, ncclDataType_t type, ncclRedOp_t op,
                           ncclComm_t comm, cudaStream_t stream) {
  SIMGPU_NCCL_CALL(ncclAllReduce);
  return submit(comm, {Collective::all_reduce, call.name(), count, type, op}, send, recv, stream);
}
ncclResult_t ncclReduce(const void* send, void* recv, size_t count, ncclDataType_t type, ncclRedOp_t op,
                        int root, ncclComm_t comm, cudaStream_t stream) {
  SIMGPU_NCCL_CALL(ncclReduce);
  return submit(comm, {Collective::reduce, call.name(), count, type, op, root}, send, recv, stream);
}
ncclResult_t ncclBroadcast(const void* send, void* recv, size_t count, ncclDataType_t type, int root,
                           ncclComm_t comm, cudaStream_t stream) {
  SIMGPU_NCCL_CALL(ncclBroadcast);
  return submit(comm, {Collective::broadcast, call.name(), count, type, ncclSum, root}, send, recv, stream);
}
ncclResult_t ncclBcast(void* buffer, size_t count, ncclDataType_t type, int root, ncclComm_t comm,
                       cudaStream_t stream) {
  SIMGPU_NCCL_CALL(ncclBcast);
  return submit(comm, {Collective::broadcast, call.name(), count, type, ncclSum, root}, buffer, buffer,
                stream);
}
ncclResult_t ncclAllGather(const void* send, void* recv, size_t count, ncclDataType_t type, ncclComm_t comm,
                           cudaStream_t stream) {
  SIMGPU_NCCL_CALL(ncclAllGather);
  return submit(comm, {Collective::all_gather, call.name(), count, type}, send, recv, stream);
}
ncclResult_t ncclReduceScatter(const void* send, void* recv, size_t count, ncclDataType_t type,
                               ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream) {
  SIMGPU_NCCL_CALL(ncclReduceScatter);
  return submit(comm, {Collective::reduce_scatter, call.name(), count, type, op}, send, recv, stream);
}
}
