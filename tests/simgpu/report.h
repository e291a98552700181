// What the simulator has to say. A report names the operation that made it, in the words of the reader:
// kernel or call, number, stream, device, and the seed with which it comes again.
#pragma once

#include <cstdint>
#include <string>

#include "simgpu/running.h"
#include "simgpu/simgpu.h"

namespace simgpu {

// Files a report. A report with the same kind and `key` (the message, if empty) is counted, not repeated.
void report(const std::string& kind, const std::string& message, const std::string& key = "");
// The same, by the operation that is running: its description is put in front.
void report(const std::string& kind, const std::string& message, const Running& actor);

}  // namespace simgpu
