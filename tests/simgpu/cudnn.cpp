// cuDNN's backend API. Three engines are offered for each graph, in an order drawn from the seed: one without
// workspace, one with, and one that refuses when a plan is made of it, so that the caller's fallback loop
// runs.
#include <cudnn.h>

#include <cstring>
#include <set>

#include "simgpu/dnn_descriptor.h"
#include "simgpu/libraries.h"
#include "simgpu/memory.h"
#include "simgpu/report.h"
#include "simgpu/scheduler.h"

namespace simgpu {
namespace {

enum Engine : int64_t { kPlain = 0, kWorkspace = 1, kRefuses = 2, kEngines = 3 };

struct Dnn {
  int device = 0;
  cudaStream_t stream = nullptr;
};
std::set<Dnn*> handles;
std::set<Descriptor*> descriptors;
std::string last_error;

cudnnStatus_t fail_with(cudnnStatus_t status, const std::string& why) {
  last_error = why;
  return status;
}

Descriptor* descriptor_of(cudnnBackendDescriptor_t handle) {
  auto* d = static_cast<Descriptor*>(handle);
  return descriptors.contains(d) ? d : nullptr;
}

int64_t workspace_of(const Descriptor& engine) {
  return engine.integer(CUDNN_ATTR_ENGINE_GLOBAL_INDEX, kPlain) == kWorkspace ? 4096 : 0;
}

cudnnStatus_t set_attribute(Descriptor* d, cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type,
                            int64_t count, const void* elements) {
  if (d == nullptr || count < 0 || (elements == nullptr && count > 0))
    return fail_with(CUDNN_STATUS_BAD_PARAM, "null");
  if (d->finalized) return fail_with(CUDNN_STATUS_NOT_INITIALIZED, "attribute set after finalize");
  Descriptor::Value v{type, count, {}, {}};
  if (type == CUDNN_TYPE_BACKEND_DESCRIPTOR) {
    const auto* parts = static_cast<const cudnnBackendDescriptor_t*>(elements);
    for (int64_t i = 0; i < count; ++i) {
      const Descriptor* part = descriptor_of(parts[i]);
      if (part == nullptr || !part->finalized)
        return fail_with(CUDNN_STATUS_BAD_PARAM, "a part is not finalized");
      v.parts.push_back(*part);
    }
  } else {
    const auto* bytes = static_cast<const unsigned char*>(elements);
    v.bytes.assign(bytes, bytes + static_cast<size_t>(count) * size_of(type));
  }
  d->attributes[name] = std::move(v);
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t finalize(Descriptor* d) {
  if (d == nullptr) return fail_with(CUDNN_STATUS_BAD_PARAM, "null");
  DnnGraph graph;
  std::string why;
  switch (d->type) {
    case CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR:
      if (cudnnStatus_t s = build_graph(*d, &graph, &why); s != CUDNN_STATUS_SUCCESS)
        return fail_with(s, "not simulated: " + why);
      d->put(CUDNN_ATTR_OPERATIONGRAPH_ENGINE_GLOBAL_COUNT, kEngines);
      break;
    case CUDNN_BACKEND_ENGINE_DESCRIPTOR:
      if (d->part(CUDNN_ATTR_ENGINE_OPERATION_GRAPH) == nullptr)
        return fail_with(CUDNN_STATUS_BAD_PARAM, "no graph");
      if (d->integer(CUDNN_ATTR_ENGINE_GLOBAL_INDEX, -1) >= kEngines)
        return fail_with(CUDNN_STATUS_NOT_SUPPORTED, "engine");
      break;
    case CUDNN_BACKEND_ENGINECFG_DESCRIPTOR: {
      const Descriptor* engine = d->part(CUDNN_ATTR_ENGINECFG_ENGINE);
      if (engine == nullptr) return fail_with(CUDNN_STATUS_BAD_PARAM, "no engine");
      d->put(CUDNN_ATTR_ENGINECFG_WORKSPACE_SIZE, workspace_of(*engine));
      d->put(CUDNN_ATTR_ENGINECFG_SHARED_MEMORY_USED, 0);
      break;
    }
    case CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR: {
      const Descriptor* g = d->part(CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH);
      if (g == nullptr) return fail_with(CUDNN_STATUS_BAD_PARAM, "no graph");
      std::vector<int64_t> order{kPlain, kWorkspace, kRefuses};
      shuffle_order(order, world().rng);
      Descriptor::Value results{CUDNN_TYPE_BACKEND_DESCRIPTOR, kEngines, {}, {}};
      for (int64_t index : order) {
        Descriptor engine, config;
        engine.type = CUDNN_BACKEND_ENGINE_DESCRIPTOR;
        engine.put(CUDNN_ATTR_ENGINE_OPERATION_GRAPH, *g);
        engine.put(CUDNN_ATTR_ENGINE_GLOBAL_INDEX, index);
        engine.finalized = true;
        config.type = CUDNN_BACKEND_ENGINECFG_DESCRIPTOR;
        config.put(CUDNN_ATTR_ENGINECFG_ENGINE, engine);
        finalize(&config);
        results.parts.push_back(std::move(config));
      }
      d->attributes[CUDNN_ATTR_ENGINEHEUR_RESULTS] = std::move(results);
      break;
    }
    case CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR: {
      const Descriptor* config = d->part(CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG);
      if (config == nullptr) return fail_with(CUDNN_STATUS_BAD_PARAM, "no engine configuration");
      const Descriptor* engine = config->part(CUDNN_ATTR_ENGINECFG_ENGINE);
      if (engine->integer(CUDNN_ATTR_ENGINE_GLOBAL_INDEX, 0) == kRefuses)
        return fail_with(CUDNN_STATUS_NOT_SUPPORTED, "this simulated engine always refuses");
      d->put(CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE, workspace_of(*engine));
      break;
    }
    default: break;
  }
  d->finalized = true;
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t get_attribute(const Descriptor* d, cudnnBackendAttributeName_t name,
                            cudnnBackendAttributeType_t type, int64_t requested, int64_t* count,
                            void* elements) {
  if (d == nullptr || !d->finalized) return fail_with(CUDNN_STATUS_NOT_INITIALIZED, "not finalized");
  const Descriptor::Value* v = d->find(name);
  const int64_t available = v == nullptr ? 0 : v->count;
  if (count != nullptr) *count = available;
  if (elements == nullptr || v == nullptr)
    return CUDNN_STATUS_SUCCESS;  // only counting; or a list with nothing in it
  const int64_t n = std::min(requested, available);
  if (type != CUDNN_TYPE_BACKEND_DESCRIPTOR) {
    const size_t stored = size_of(v->type), wanted = size_of(type);
    for (int64_t i = 0; i < n; ++i)  // sizes that we keep as 64 bits may be asked for as 32
      std::memcpy(static_cast<char*>(elements) + static_cast<size_t>(i) * wanted,
                  v->bytes.data() + static_cast<size_t>(i) * stored, std::min(stored, wanted));
    return CUDNN_STATUS_SUCCESS;
  }
  // Descriptors are filled, not made: the caller brings them.
  auto* parts = static_cast<cudnnBackendDescriptor_t*>(elements);
  for (int64_t i = 0; i < n; ++i) {
    Descriptor* target = descriptor_of(parts[i]);
    if (target == nullptr || target->type != v->parts[static_cast<size_t>(i)].type)
      return fail_with(CUDNN_STATUS_BAD_PARAM, "descriptor of another type");
    *target = v->parts[static_cast<size_t>(i)];
  }
  if (count != nullptr) *count = n;
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t execute(Dnn* dnn, const Descriptor* plan, const Descriptor* pack, const char* call) {
  if (plan == nullptr || pack == nullptr || !plan->finalized || !pack->finalized)
    return fail_with(CUDNN_STATUS_BAD_PARAM, "plan or variant pack not finalized");
  const Descriptor* engine =
      plan->part(CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG)->part(CUDNN_ATTR_ENGINECFG_ENGINE);
  auto graph = std::make_shared<DnnGraph>();
  std::string why;
  build_graph(*engine->part(CUDNN_ATTR_ENGINE_OPERATION_GRAPH), graph.get(), &why);

  const std::vector<int64_t> uids = pack->integers(CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS);
  const std::vector<int64_t> addresses = pack->integers(CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS);
  std::map<int64_t, void*> pointers;
  for (size_t i = 0; i < std::min(uids.size(), addresses.size()); ++i)
    pointers[uids[i]] = reinterpret_cast<void*>(addresses[i]);
  std::map<int64_t, double> scalars;
  for (const auto& [uid, t] : graph->tensors) {
    if (t.is_virtual) continue;
    auto it = pointers.find(uid);
    if (it == pointers.end() || it->second == nullptr)
      return fail_with(CUDNN_STATUS_BAD_PARAM, "no data for tensor " + std::to_string(uid));
    if (t.by_value) scalars[uid] = load(t.type, it->second, 0);  // host memory, read now
    else if (reinterpret_cast<uintptr_t>(it->second) % 16 != 0)
      report("misaligned",
             std::string(call) + ": tensor " + std::to_string(uid) + " is not aligned to 16 bytes");
  }
  Stream* stream = stream_of(dnn->stream, call);
  if (stream == nullptr) return CUDNN_STATUS_EXECUTION_FAILED;

  std::vector<Range> ranges = dnn_ranges(*graph, pointers);
  const auto workspace_bytes =
      static_cast<size_t>(plan->integer(CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE, 0));
  auto* workspace = reinterpret_cast<void*>(pack->integer(CUDNN_ATTR_VARIANT_PACK_WORKSPACE, 0));
  if (workspace_bytes > 0) {
    if (workspace == nullptr) {
      report("misuse", std::string(call) + ": a plan that needs a workspace is executed without one");
      return fail_with(CUDNN_STATUS_BAD_PARAM, "no workspace");
    }
    ranges.push_back({workspace, workspace_bytes, true});
  }
  enqueue(
      stream, graph->name(), std::move(ranges),
      [graph, pointers, scalars, workspace, workspace_bytes](Op&) {
        if (workspace_bytes > 0) std::memset(workspace, 0xff, workspace_bytes);
        run_dnn(*graph, pointers, scalars);
      },
      20);
  return CUDNN_STATUS_SUCCESS;
}

}  // namespace

void reset_cudnn() {
  for (Dnn* d : handles) delete d;
  for (Descriptor* d : descriptors) delete d;
  handles.clear();
  descriptors.clear();
}

}  // namespace simgpu

using namespace simgpu;

#define SIMGPU_DNN_CALL(name) \
  ::simgpu::Call call(#name); \
  if (call.injected() != 0) return fail_with(static_cast<cudnnStatus_t>(call.injected()), "injected")

extern "C" {

cudnnStatus_t cudnnCreate(cudnnHandle_t* handle) {
  SIMGPU_DNN_CALL(cudnnCreate);
  auto* dnn = new Dnn{host.device};
  handles.insert(dnn);
  *handle = reinterpret_cast<cudnnHandle_t>(dnn);
  return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnDestroy(cudnnHandle_t handle) {
  SIMGPU_DNN_CALL(cudnnDestroy);
  auto* dnn = reinterpret_cast<Dnn*>(handle);
  if (handles.erase(dnn) == 0) return fail_with(CUDNN_STATUS_NOT_INITIALIZED, "no such handle");
  delete dnn;
  return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnSetStream(cudnnHandle_t handle, cudaStream_t stream) {
  SIMGPU_DNN_CALL(cudnnSetStream);
  auto* dnn = reinterpret_cast<Dnn*>(handle);
  if (!handles.contains(dnn)) return fail_with(CUDNN_STATUS_NOT_INITIALIZED, "no such handle");
  dnn->stream = stream;
  return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnGetStream(cudnnHandle_t handle, cudaStream_t* stream) {
  SIMGPU_DNN_CALL(cudnnGetStream);
  auto* dnn = reinterpret_cast<Dnn*>(handle);
  if (!handles.contains(dnn)) return fail_with(CUDNN_STATUS_NOT_INITIALIZED, "no such handle");
  *stream = dnn->stream;
  return CUDNN_STATUS_SUCCESS;
}
size_t cudnnGetVersion() { return CUDNN_VERSION; }
size_t cudnnGetCudartVersion() { return CUDART_VERSION; }
const char* cudnnGetErrorString(cudnnStatus_t status) {
  switch (status) {
    case CUDNN_STATUS_SUCCESS: return "CUDNN_STATUS_SUCCESS";
    case CUDNN_STATUS_NOT_INITIALIZED: return "CUDNN_STATUS_NOT_INITIALIZED";
    case CUDNN_STATUS_BAD_PARAM: return "CUDNN_STATUS_BAD_PARAM";
    case CUDNN_STATUS_NOT_SUPPORTED: return "CUDNN_STATUS_NOT_SUPPORTED";
    case CUDNN_STATUS_EXECUTION_FAILED: return "CUDNN_STATUS_EXECUTION_FAILED";
    default: return "CUDNN_STATUS_INTERNAL_ERROR";
  }
}
void cudnnGetLastErrorString(char* text, size_t size) {
  if (size == 0) return;
  std::strncpy(text, last_error.c_str(), size - 1);
  text[size - 1] = 0;
}

cudnnStatus_t cudnnBackendCreateDescriptor(cudnnBackendDescriptorType_t type,
                                           cudnnBackendDescriptor_t* handle) {
  SIMGPU_DNN_CALL(cudnnBackendCreateDescriptor);
  auto* d = new Descriptor;
  d->type = type;
  descriptors.insert(d);
  *handle = d;
  return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnBackendDestroyDescriptor(cudnnBackendDescriptor_t handle) {
  SIMGPU_DNN_CALL(cudnnBackendDestroyDescriptor);
  Descriptor* d = descriptor_of(handle);
  if (d == nullptr) return fail_with(CUDNN_STATUS_BAD_PARAM, "no such descriptor");
  descriptors.erase(d);
  delete d;
  return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnBackendFinalize(cudnnBackendDescriptor_t handle) {
  SIMGPU_DNN_CALL(cudnnBackendFinalize);
  return finalize(descriptor_of(handle));
}
cudnnStatus_t cudnnBackendSetAttribute(cudnnBackendDescriptor_t handle, cudnnBackendAttributeName_t name,
                                       cudnnBackendAttributeType_t type, int64_t count,
                                       const void* elements) {
  SIMGPU_DNN_CALL(cudnnBackendSetAttribute);
  return set_attribute(descriptor_of(handle), name, type, count, elements);
}
cudnnStatus_t cudnnBackendGetAttribute(cudnnBackendDescriptor_t const handle,
                                       cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type,
                                       int64_t requested, int64_t* count, void* elements) {
  SIMGPU_DNN_CALL(cudnnBackendGetAttribute);
  return get_attribute(descriptor_of(handle), name, type, requested, count, elements);
}
cudnnStatus_t cudnnBackendExecute(cudnnHandle_t handle, cudnnBackendDescriptor_t plan,
                                  cudnnBackendDescriptor_t pack) {
  SIMGPU_DNN_CALL(cudnnBackendExecute);
  auto* dnn = reinterpret_cast<Dnn*>(handle);
  if (!handles.contains(dnn)) return fail_with(CUDNN_STATUS_NOT_INITIALIZED, "no such handle");
  if (dnn->device != host.device)
    report("misuse", std::string(call.name()) + " uses a handle of device " + std::to_string(dnn->device) +
                         " while device " + std::to_string(host.device) + " is current");
  return execute(dnn, descriptor_of(plan), descriptor_of(pack), call.name());
}
}
