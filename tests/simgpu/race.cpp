#include "simgpu/race.h"

#include <algorithm>
#include <string>
#include <unordered_set>

#include "simgpu/memory.h"
#include "simgpu/report.h"
#include "simgpu/world.h"

namespace simgpu {
namespace {

const Clock* current_clock = nullptr;
uint32_t ordered[64] =
    {};  // operations found to be before the current one; by the last bits of their numbers

bool op_before(uint32_t id) {
  if (ordered[id % 64] == id) return true;
  const World::Past& p = world().past[id];
  if (current_clock->at(p.stream) < p.number) return false;
  ordered[id % 64] = id;
  return true;
}

// Has the slot's access, by the operation that runs now, happened before what `who` does next?
bool thread_before(const Slot& s, const Who& who) {
  if (s.block != who.block) return false;
  return s.thread == who.thread || s.epoch != who.epoch ||
         (s.thread / 32 == who.thread / 32 && s.warp_epoch < who.warp_epoch);
}

const char* verb(uint8_t flags) {
  return flags & kAtomic ? "atomically updates " : flags & kWrite ? "writes " : "reads ";
}
const char* past_verb(uint8_t flags) {
  return flags & kAtomic ? "atomically updated" : flags & kWrite ? "written" : "read";
}

[[gnu::cold, gnu::noinline]] void report_op_race(const Slot& s, uint8_t flags, uintptr_t address) {
  const World& w = world();
  const World::Past& before = w.past[s.op];
  const World::Past& now = w.past[running->who.op];
  const Allocation* a = find_allocation(reinterpret_cast<const void*>(address));
  const std::string block = std::to_string(a != nullptr ? a->number : 0);
  const uint32_t seen = current_clock->at(before.stream);
  std::string edge = "Nothing orders stream " + std::to_string(now.stream) + " after it: ";
  edge += seen == 0 ? "it has waited for no event of stream " + std::to_string(before.stream)
                    : "it has waited for stream " + std::to_string(before.stream) + " only up to number " +
                          std::to_string(seen) + " of its operations, and this is number " +
                          std::to_string(before.number);
  report("race",
         describe_op(running->who.op) + " " + verb(flags) +
             describe_address(reinterpret_cast<const void*>(address)) + ", " + past_verb(s.flags) + " by " +
             describe_op(s.op) + ". " + edge,
         before.work->name + "/" + std::to_string(before.stream) + "/" + now.work->name + "/" +
             std::to_string(now.stream) + "/" + block);
}

[[gnu::cold, gnu::noinline]] void report_thread_race(const Slot& s, uint8_t flags, uintptr_t address) {
  const Who& who = running->who;
  const bool shared = !in_arena(reinterpret_cast<const void*>(address));
  report(shared ? "shared race" : "race",
         describe_op(who.op) + ": thread " + std::to_string(who.thread) + " of block " +
             std::to_string(who.block) + " " + verb(flags) +
             (shared ? "shared memory" : describe_address(reinterpret_cast<const void*>(address))) + ", " +
             past_verb(s.flags) + " by thread " + std::to_string(s.thread) +
             (s.block == who.block ? ", with no __syncthreads between"
                                   : " of block " + std::to_string(s.block) + "; blocks are not ordered"),
         world().past[who.op].work->name);
}

// Whom we have told about already: formatting thousands of the same race would take minutes.
std::unordered_set<uint64_t> told;
bool first_time(uint32_t a, uint32_t b, bool shared) {
  return told.insert(uint64_t{a} << 32 | (b << 1) | (shared ? 1u : 0u)).second;
}

}  // namespace

void begin_checking(const Op& op) {
  current_clock = &op.clock;
  std::fill(std::begin(ordered), std::end(ordered), 0u);
  told.clear();
}

void record_access(Cell& cell, uint8_t mask, uint8_t flags, uintptr_t address) {
  const Who who = running->who;
  Slot* room = nullptr;      // where to remember this access
  Slot* likeness = nullptr;  // the older of two concurrent accesses of the same sort
  int alike = 0;
  for (Slot& s : cell.slots) {
    if (s.mask == 0) {
      if (room == nullptr) room = &s;
      continue;
    }
    const bool same_op = s.op == who.op;
    const bool before = same_op ? thread_before(s, who) : op_before(s.op);
    const bool harmless = !((s.flags | flags) & kWrite) || (s.flags & flags & kAtomic);
    if (!before && !harmless && (s.mask & mask) != 0 && !(same_op && (s.flags & kManyThreads))) [[unlikely]] {
      if (first_time(s.op, who.op, !in_arena(reinterpret_cast<const void*>(address)))) {
        if (same_op) report_thread_race(s, flags, address);
        else report_op_race(s, flags, address);
      }
    }
    // What this access makes superfluous: whatever would conflict with the old one and not with the new one
    // is ordered after both.
    const bool covers = (s.mask & ~mask) == 0 && ((flags & kWrite) || !(s.flags & kWrite)) &&
                        (!(flags & kAtomic) || (s.flags & kAtomic));
    if (before && covers) {
      if (room == nullptr || room->mask == 0) {
        room = &s;
      } else {
        s.mask = 0;
      }
    } else if (same_op && !before && harmless && s.mask == mask) {
      if (++alike == 1) likeness = &s;
      if (alike == 2 && room == nullptr) room = likeness;  // two witnesses are enough
    }
  }
  if (room == nullptr) {
    // More threads than slots, as with 1-byte elements. Merge with one of the same operation and sort, whose
    // thread is then no longer known; between operations the check stays exact.
    for (Slot& s : cell.slots)
      if (s.op == who.op && ((s.flags ^ flags) & ~kManyThreads) == 0) {
        s.mask |= mask;
        s.flags |= kManyThreads;
        return;
      }
    room = &cell.slots[(address >> 3 ^ who.op) & 3];
  }
  *room = {who.op, who.block, who.thread, who.epoch, who.warp_epoch, mask, flags};
}

}  // namespace simgpu
