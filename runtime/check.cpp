#include "lockstep/runtime/check.h"

namespace lockstep {

void throw_error(const std::string& message) { throw Error(message); }

void throw_assert(const char* file, int line, const char* expression, const std::string& message) {
  throw Error(
      concat("internal error at ", file, ":", line, ": ", expression, message.empty() ? "" : ": ", message));
}

}  // namespace lockstep
