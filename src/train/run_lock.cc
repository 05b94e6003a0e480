#include "train/run_lock.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "base/error.h"

namespace trireme {

RunLock::RunLock(const fs::path& dir, std::string_view option) {
  make_folders(dir);
  fs::path path = dir / "lock";
  fd_ = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644);
  if (fd_ < 0)
    system_failed(errno, "cannot write in {}: {}; choose a folder that you may write to", dir.string(),
                  std::strerror(errno));
  folder_ = ::open(dir.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  for (int fd : {fd_, folder_})
    if (fd >= 0 && ::flock(fd, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK) {
      close();
      bad_request("{} is in use by another run: wait for it, or choose another {}", dir.string(), option);
    }
  (void)::futimens(fd_, nullptr);
}

void RunLock::close() {
  ::close(fd_);
  if (folder_ >= 0) ::close(folder_);
}

}  // namespace trireme
