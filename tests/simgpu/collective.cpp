#include "simgpu/collective.h"

#include <algorithm>
#include <cstring>

namespace simgpu {

std::vector<Range> Collective::ranges(const void* s, void* r, int rank, int ranks) const {
  const size_t bytes = count * size_of(type), all = bytes * static_cast<size_t>(ranks);
  switch (kind) {
    case all_reduce: return {{s, bytes, false}, {r, bytes, true}};
    case reduce:
      if (rank != root) return {{s, bytes, false}};
      return {{s, bytes, false}, {r, bytes, true}};
    case broadcast:
      if (rank != root) return {{r, bytes, true}};
      return {{s, bytes, false}, {r, bytes, true}};
    case all_gather: return {{s, bytes, false}, {r, all, true}};
    case reduce_scatter: return {{s, all, false}, {r, bytes, true}};
  }
  return {};
}

bool to_type(ncclDataType_t t, Type* result) {
  switch (t) {
    case ncclInt8: *result = Type::i8; return true;
    case ncclUint8: *result = Type::u8; return true;
    case ncclInt32: *result = Type::i32; return true;
    case ncclUint32: *result = Type::u32; return true;
    case ncclInt64: *result = Type::i64; return true;
    case ncclUint64: *result = Type::u64; return true;
    case ncclFloat16: *result = Type::f16; return true;
    case ncclFloat32: *result = Type::f32; return true;
    case ncclFloat64: *result = Type::f64; return true;
    case ncclBfloat16: *result = Type::bf16; return true;
    default: return false;
  }
}

std::string compare(const Collective& a, const Collective& b) {
  const auto pair = [](const auto& x, const auto& y) {
    return std::to_string(x) + " and " + std::to_string(y);
  };
  if (a.kind != b.kind) return std::string(a.name) + " and " + b.name;
  if (a.count != b.count) return "counts " + pair(a.count, b.count);
  if (a.nccl_type != b.nccl_type)
    return "types " + pair(static_cast<int>(a.nccl_type), static_cast<int>(b.nccl_type));
  if (a.op != b.op) return "operators " + pair(static_cast<int>(a.op), static_cast<int>(b.op));
  if (a.root != b.root) return "roots " + pair(a.root, b.root);
  return "";
}

namespace {

double combine(ncclRedOp_t op, double a, double b) {
  switch (op) {
    case ncclProd: return a * b;
    case ncclMax: return std::max(a, b);
    case ncclMin: return std::min(a, b);
    default: return a + b;
  }
}

std::vector<double> reduced(const Collective& c, size_t count, Rng& rng) {
  const size_t ranks = c.send.size(), first = rng.below(static_cast<uint32_t>(ranks));
  const bool round = rng.chance(2) && c.type != Type::i64 && c.type != Type::u64;
  std::vector<double> sum(count);
  unsigned char cell[8];
  for (size_t i = 0; i < count; ++i) {
    double value = load(c.type, c.send[first], i);
    for (size_t r = 1; r < ranks; ++r) {
      value = combine(c.op, value, load(c.type, c.send[(first + r) % ranks], i));
      if (!round) continue;
      store(c.type, cell, 0, value);
      value = load(c.type, cell, 0);
    }
    sum[i] = c.op == ncclAvg ? value / static_cast<double>(ranks) : value;
  }
  return sum;
}

}  // namespace

void run_collective(const Collective& c, Rng& rng) {
  if (c.mismatched) return;
  const size_t ranks = c.send.size(), bytes = c.count * size_of(c.type);
  const auto put = [&](void* to, const std::vector<double>& from, size_t begin) {
    for (size_t i = 0; i < c.count; ++i) store(c.type, to, i, from[begin + i]);
  };
  switch (c.kind) {
    case Collective::all_reduce: {
      const std::vector<double> sum = reduced(c, c.count, rng);
      for (void* r : c.recv) put(r, sum, 0);
      break;
    }
    case Collective::reduce: put(c.recv[static_cast<size_t>(c.root)], reduced(c, c.count, rng), 0); break;
    case Collective::broadcast: {
      const void* from = c.send[static_cast<size_t>(c.root)];
      for (void* r : c.recv)
        if (r != from) std::memcpy(r, from, bytes);
      break;
    }
    case Collective::all_gather:
      for (size_t from = 0; from < ranks; ++from)
        for (void* to : c.recv) std::memmove(static_cast<char*>(to) + from * bytes, c.send[from], bytes);
      break;
    case Collective::reduce_scatter: {
      const std::vector<double> sum = reduced(c, c.count * ranks, rng);
      for (size_t r = 0; r < ranks; ++r) put(c.recv[r], sum, r * c.count);
      break;
    }
  }
}

}  // namespace simgpu
