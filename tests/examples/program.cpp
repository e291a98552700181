#include "tests/examples/program.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <stdexcept>

namespace lockstep::test {
namespace {

int exit_code(int status) { return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status); }

}  // namespace

Program::Program(const std::vector<std::string>& arguments, const Limits& limits) {
  int out[2], error[2];
  if (pipe2(out, O_CLOEXEC) != 0 || pipe2(error, O_CLOEXEC) != 0) throw std::runtime_error("no pipe");
  std::vector<char*> words;
  for (const std::string& argument : arguments) words.push_back(const_cast<char*>(argument.c_str()));
  words.push_back(nullptr);
  pid_ = fork();
  if (pid_ < 0) throw std::runtime_error("no fork");
  if (pid_ == 0) {
    dup2(open("/dev/null", O_RDONLY), STDIN_FILENO);
    dup2(out[1], STDOUT_FILENO);
    dup2(error[1], STDERR_FILENO);
    if (limits.file_bytes > 0) {
      rlimit limit{limits.file_bytes, limits.file_bytes};
      setrlimit(RLIMIT_FSIZE, &limit);
      signal(SIGXFSZ, SIG_IGN);  // stays ignored in the program: writes fail instead
    }
    execv(words[0], words.data());
    _exit(127);
  }
  close(out[1]);
  close(error[1]);
  out_ = out[0];
  error_ = error[0];
}

Program::~Program() {
  if (!ended_) {
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
  }
  close(out_);
  close(error_);
}

void Program::send(int signal) const { kill(pid_, signal); }

bool Program::running() {
  int status = 0;
  if (!ended_ && waitpid(pid_, &status, WNOHANG) == pid_) {
    ended_ = true;
    result_.code = exit_code(status);
  }
  return !ended_;
}

void Program::collect() {
  pollfd pipes[] = {{out_, POLLIN, 0}, {error_, POLLIN, 0}};
  std::string* texts[] = {&result_.out, &result_.error};
  for (int open = 2; open > 0;) {
    if (poll(pipes, 2, -1) < 0 && errno != EINTR) return;
    for (int i = 0; i < 2; i++) {
      if (pipes[i].fd < 0 || pipes[i].revents == 0) continue;
      char buffer[4096];
      ssize_t bytes = read(pipes[i].fd, buffer, sizeof buffer);
      if (bytes > 0) {
        texts[i]->append(buffer, size_t(bytes));
      } else {
        pipes[i].fd = -1;
        open--;
      }
    }
  }
}

Result Program::wait() {
  collect();
  int status = 0;
  if (!ended_ && waitpid(pid_, &status, 0) == pid_) {
    ended_ = true;
    result_.code = exit_code(status);
  }
  return result_;
}

Result run(const std::vector<std::string>& arguments, const Limits& limits) {
  return Program(arguments, limits).wait();
}

}  // namespace lockstep::test
