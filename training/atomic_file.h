// Files that are there whole or not at all.
//
// A file is written under a temporary name in the same folder, flushed to the disk, and renamed over the old
// one; then the folder is flushed. At any moment, through a kill, a crash of the machine or a full disk,
// `path` is either the old file or the new one. On an error the temporary is removed, the old file stays, and
// the Error names the path and the system's reason.
#pragma once

#include <cstddef>
#include <functional>
#include <string>
#include <string_view>

namespace lockstep {

// What write_file_atomically hands to the caller's function: writes go one behind the other.
class FileWriter {
 public:
  FileWriter(int file, const std::string& path) : file_(file), path_(path) {}
  void write(const void* data, size_t bytes);
  void write(std::string_view bytes) { write(bytes.data(), bytes.size()); }

 private:
  int file_;
  const std::string& path_;
};

// The folder must exist. A symbolic link at `path` is replaced, not followed.
void write_file_atomically(const std::string& path, const std::function<void(FileWriter&)>& write);
void write_file_atomically(const std::string& path, std::string_view bytes);

// Removes the temporaries that killed processes left in `folder` for files whose name begins with `prefix`;
// those that a process is writing at the moment stay. Errors are ignored: it is only housekeeping.
void remove_stray_temporaries(const std::string& folder, std::string_view prefix);

}  // namespace lockstep
