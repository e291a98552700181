// A file system that is soon full.
#pragma once

#include <sys/mount.h>

#include <string>

namespace lockstep::testing {

// Mounts a tmpfs of `bytes` on `folder` while it lives. Only root can: ask mounted().
class SmallDisk {
 public:
  SmallDisk(const std::string& folder, size_t bytes) : folder_(folder) {
    mounted_ = ::mount("none", folder.c_str(), "tmpfs", 0, ("size=" + std::to_string(bytes)).c_str()) == 0;
  }
  ~SmallDisk() {
    if (mounted_) ::umount2(folder_.c_str(), MNT_DETACH);
  }
  SmallDisk(const SmallDisk&) = delete;
  SmallDisk& operator=(const SmallDisk&) = delete;
  bool mounted() const { return mounted_; }
  bool make_read_only() { return ::mount("none", folder_.c_str(), "tmpfs", MS_REMOUNT | MS_RDONLY, "") == 0; }

 private:
  std::string folder_;
  bool mounted_ = false;
};

}  // namespace lockstep::testing
