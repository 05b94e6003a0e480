// The lock of a run folder.
#pragma once
#include <string_view>

#include "base/file.h"

namespace trireme {

// One trainer per run folder. Locks the file `lock`, and the folder itself, since a user may remove that file
// while the run lives. Sets the file's time, by which a supervisor sees that the run has started.
class RunLock {
 public:
  // Throws Error (request) if another run holds the folder; `option` is what chooses the folder.
  explicit RunLock(const fs::path& dir, std::string_view option = "train.dir");
  RunLock(const RunLock&) = delete;
  ~RunLock() { close(); }

 private:
  void close();
  int fd_ = -1;
  int folder_ = -1;  // not locked on file systems that lock only files open for writing
};

}  // namespace trireme
