#include "lockstep/training/atomic_file.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <utility>

#include "lockstep/runtime/check.h"

namespace lockstep {

namespace fs = std::filesystem;

namespace {

constexpr std::string_view kTemporary = ".tmp-";  // then the process and a number

[[noreturn]] void fail(const std::string& path, const char* what, int error) {
  throw_error(concat(path, ": ", what, ": ", std::strerror(error)));
}

class Descriptor {
 public:
  explicit Descriptor(int fd = -1) : fd_(fd) {}
  Descriptor(Descriptor&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Descriptor& operator=(Descriptor&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~Descriptor() {
    if (fd_ >= 0) ::close(fd_);
  }
  int get() const { return fd_; }
  // Some file systems tell of a failed write only here.
  int close() { return ::close(std::exchange(fd_, -1)) == 0 ? 0 : errno; }

 private:
  int fd_;
};

template <class F>
auto retry_interrupted(F&& call) {
  auto result = call();
  while (result == -1 && errno == EINTR) result = call();
  return result;
}

// A new file beside `path`, locked while it is being written, and removed unless it is committed.
class Temporary {
 public:
  explicit Temporary(const std::string& path) : path_(path) {
    static std::atomic<unsigned> counter{0};
    for (;;) {
      name_ = concat(path, kTemporary, ::getpid(), "-", counter++);
      file_ = Descriptor(::open(name_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666));
      if (file_.get() < 0 && errno == EEXIST) continue;  // left by a process that had our number
      if (file_.get() < 0) fail(path, "cannot be written", errno);
      // Another process that tidies up may have removed the file before we locked it: then take the next
      // name.
      struct stat info;
      if (retry_interrupted([&] { return ::flock(file_.get(), LOCK_EX); }) == 0 &&
          ::fstat(file_.get(), &info) == 0 && info.st_nlink == 0)
        continue;
      return;
    }
  }
  ~Temporary() {
    if (!committed_) ::unlink(name_.c_str());
  }
  Temporary(const Temporary&) = delete;
  Temporary& operator=(const Temporary&) = delete;

  int file() const { return file_.get(); }

  void commit() {
    if (retry_interrupted([&] { return ::fsync(file_.get()); }) != 0)
      fail(path_, "cannot be flushed to the disk", errno);
    // Renamed before it is closed: closing ends the lock, and an unlocked temporary is a stray one.
    if (std::rename(name_.c_str(), path_.c_str()) != 0) fail(path_, "cannot be replaced", errno);
    committed_ = true;
    if (int error = file_.close()) fail(path_, "cannot be closed", error);
  }

 private:
  const std::string& path_;
  std::string name_;
  Descriptor file_;
  bool committed_ = false;
};

std::string folder_of(const std::string& path) {
  std::string folder = fs::path(path).parent_path().string();
  return folder.empty() ? "." : folder;
}

}  // namespace

void FileWriter::write(const void* data, size_t bytes) {
  const char* at = static_cast<const char*>(data);
  while (bytes > 0) {
    ssize_t written = retry_interrupted([&] { return ::write(file_, at, std::min<size_t>(bytes, 1 << 30)); });
    if (written < 0) fail(path_, "cannot be written", errno);
    at += written;
    bytes -= size_t(written);
  }
}

void write_file_atomically(const std::string& path, const std::function<void(FileWriter&)>& write) {
  Temporary temporary(path);
  FileWriter writer(temporary.file(), path);
  write(writer);
  temporary.commit();
  Descriptor folder(::open(folder_of(path).c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  // EINVAL: a file system that has no such thing as flushing a folder.
  if (folder.get() < 0 || (retry_interrupted([&] { return ::fsync(folder.get()); }) != 0 && errno != EINVAL))
    fail(path, "its folder cannot be flushed to the disk", errno);
}

void write_file_atomically(const std::string& path, std::string_view bytes) {
  write_file_atomically(path, [&](FileWriter& file) { file.write(bytes); });
}

void remove_stray_temporaries(const std::string& folder, std::string_view prefix) {
  std::error_code ignored;
  for (fs::directory_iterator entry(folder, ignored), end; !ignored && entry != end;
       entry.increment(ignored)) {
    std::string name = entry->path().filename().string();
    if (!name.starts_with(prefix) || name.find(kTemporary) == name.npos) continue;
    Descriptor file(::open(entry->path().c_str(), O_WRONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC));
    if (file.get() >= 0 && ::flock(file.get(), LOCK_EX | LOCK_NB) == 0) ::unlink(entry->path().c_str());
  }
}

}  // namespace lockstep
