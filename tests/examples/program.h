// Runs a program as a person would, and collects its exit code and what it printed.
#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

namespace lockstep::test {

struct Result {
  int code = -1;  // 128 + n for a program ended by signal n, as in a shell
  std::string out, error;
};

struct Limits {
  size_t file_bytes = 0;  // no file may grow beyond this: what a full disk looks like; 0: none
};

// Searches no PATH; standard input is empty. The program's environment is ours.
class Program {
 public:
  explicit Program(const std::vector<std::string>& arguments, const Limits& limits = {});
  ~Program();  // kills it if it still runs
  Program(const Program&) = delete;
  Program& operator=(const Program&) = delete;

  void send(int signal) const;
  bool running();
  Result wait();  // reads until the program ends

 private:
  void collect();

  pid_t pid_ = -1;
  int out_ = -1, error_ = -1;
  bool ended_ = false;
  Result result_;
};

Result run(const std::vector<std::string>& arguments, const Limits& limits = {});

}  // namespace lockstep::test
