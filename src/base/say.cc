#include "base/say.h"

#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

namespace trireme {

void put_text(std::FILE* to, std::string_view text) noexcept {
  (void)std::fwrite(text.data(), 1, text.size(), to);
  (void)std::fflush(to);
  std::clearerr(to);
}

void prepare_standard_streams() {
  for (int fd : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) {
    if (::fcntl(fd, F_GETFD) >= 0) continue;
    const bool in = fd == STDIN_FILENO;
    int opened = ::open(in ? "/dev/null" : "/dev/full", in ? O_RDONLY : O_WRONLY);
    if (opened < 0) opened = ::open("/dev/null", O_RDWR);
    if (opened >= 0 && opened != fd) {  // the lowest free number is this one, unless another thread took it
      ::dup2(opened, fd);
      ::close(opened);
    }
  }
  ::signal(SIGPIPE, SIG_IGN);
  ::signal(SIGXFSZ, SIG_IGN);
}

}  // namespace trireme
