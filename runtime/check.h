// Errors. LOCKSTEP_CHECK is for the caller's mistakes, LOCKSTEP_ASSERT for ours; both throw lockstep::Error,
// and after any exception the engine is usable. A message reads "[op] what, got, expected": the op's name in
// brackets first.
#pragma once

#include <sstream>
#include <stdexcept>
#include <string>

namespace lockstep {

class Error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

template <class T>
concept Printable = requires(std::ostream& out, const T& value) {
  out << value;
};

// The text of a message. (Lists of tensors are not printable: they are joined by the op of this name.)
template <Printable... Args>
std::string concat(const Args&... args) {
  std::ostringstream out;
  (out << ... << args);
  return out.str();
}

// Throws Error(message); out of line, so that a check costs the caller one predictable branch.
[[noreturn]] void throw_error(const std::string& message);
[[noreturn]] void throw_assert(const char* file, int line, const char* expression,
                               const std::string& message);

}  // namespace lockstep

#define LOCKSTEP_CHECK(condition, ...)                          \
  do {                                                          \
    if (!(condition)) [[unlikely]]                              \
      ::lockstep::throw_error(::lockstep::concat(__VA_ARGS__)); \
  } while (0)

#define LOCKSTEP_ASSERT(condition, ...)                                                          \
  do {                                                                                           \
    if (!(condition)) [[unlikely]]                                                               \
      ::lockstep::throw_assert(__FILE__, __LINE__, #condition, ::lockstep::concat(__VA_ARGS__)); \
  } while (0)
