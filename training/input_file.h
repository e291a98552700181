// Reading a file that may be gzip or plain, and that may be damaged or made to harm.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

namespace lockstep {

// The content of a file from front to back. gzip is recognised by its first two bytes and decompressed on the
// way, so no more is ever in memory than was asked for. Every Error begins with the file's path.
class InputFile {
 public:
  explicit InputFile(const std::string& path);  // throws unless it is a readable regular file
  ~InputFile();
  InputFile(const InputFile&) = delete;
  InputFile& operator=(const InputFile&) = delete;

  const std::string& path() const;
  // The content is no longer than this: the file's size, or the most that deflate can have made of it. Sizes
  // told by a header are compared with it before anything is allocated.
  uint64_t size_limit() const;

  size_t read_some(std::span<std::byte> out);             // fewer bytes than asked for only at the end
  void read(std::span<std::byte> out, const char* what);  // all of them, or throws naming `what`
  void expect_end(const char* what);                      // throws if anything follows `what`

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace lockstep
