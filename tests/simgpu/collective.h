// What a collective computes, apart from who calls it when.
#pragma once

#include <string>
#include <vector>

#include "nccl.h"
#include "simgpu/element.h"
#include "simgpu/op.h"
#include "simgpu/rng.h"

namespace simgpu {

struct Collective {
  enum Kind { all_reduce, reduce, broadcast, all_gather, reduce_scatter } kind = all_reduce;
  const char* name = "";
  size_t count = 0;  // as NCCL counts: elements of one rank for all_gather and reduce_scatter
  ncclDataType_t nccl_type = ncclFloat;
  ncclRedOp_t op = ncclSum;
  int root = 0;
  Type type = Type::f32;
  std::vector<const void*> send = {};  // by rank
  std::vector<void*> recv = {};
  bool mismatched = false;

  // The bytes of `rank` that it reads and writes.
  std::vector<Range> ranges(const void* send, void* recv, int rank, int ranks) const;
};

bool to_type(ncclDataType_t t, Type* result);
// In what two ranks' calls differ, or empty.
std::string compare(const Collective& a, const Collective& b);
// Reduces in an order, and with intermediate roundings, drawn from `rng`: NCCL promises neither.
void run_collective(const Collective& c, Rng& rng);

}  // namespace simgpu
