// The core of the checker: one cell's past accesses against a new one.
#pragma once

#include "simgpu/shadow.h"

namespace simgpu {

// The operation that is running, prepared for fast comparison. Set by the scheduler before it runs.
void begin_checking(const Op& op);

// Compares the access by `running` with the cell's past ones, reports races and remembers it.
void record_access(Cell& cell, uint8_t mask, uint8_t flags, uintptr_t address);

}  // namespace simgpu
