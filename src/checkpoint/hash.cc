#include "checkpoint/hash.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <vector>

#include "base/error.h"

namespace trireme {

namespace {
constexpr size_t kPiece = size_t(1) << 20;  // bytes
}

FileDigest digest_file(const fs::path& path) {
  struct Fd {
    int fd;
    ~Fd() {
      if (fd >= 0) ::close(fd);
    }
  } file{::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK)};  // O_NONBLOCK: a pipe must not hang us
  struct stat st;
  if (file.fd < 0 || ::fstat(file.fd, &st) != 0)
    system_failed(errno, "cannot open {}: {}", path.string(), std::strerror(errno));
  if (!S_ISREG(st.st_mode)) bad_request("{} is not a regular file", path.string());
  // Advice that drops clean pages, or does nothing. It waits for every core of the machine, so only where it
  // pays.
  if (st.st_size >= int64_t(kPiece)) ::posix_fadvise(file.fd, 0, 0, POSIX_FADV_DONTNEED);
  FileDigest out;
  Hasher hasher;
  std::vector<char> buffer(std::clamp<size_t>(size_t(st.st_size), 4096, kPiece));
  for (;;) {
    ssize_t n = ::read(file.fd, buffer.data(), buffer.size());
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) system_failed(errno, "cannot read {}: {}", path.string(), std::strerror(errno));
    if (n == 0) break;
    hasher.add(buffer.data(), size_t(n));
    out.bytes += n;
  }
  out.xxh3 = hasher.value();
  return out;
}

}  // namespace trireme
