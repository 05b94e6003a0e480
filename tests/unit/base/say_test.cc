#include "base/say.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>

namespace trireme {
namespace {

// Runs `work` in its own process. Returns the exit code, or minus the number of the signal that ended it.
template <class Work>
int in_child(const Work& work) {
  const pid_t child = ::fork();
  if (child == 0) ::_exit(work());
  int status = 0;
  ::waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

TEST(Say, ALineThatCannotBeWrittenIsDropped) {
  std::FILE* full = std::fopen("/dev/full", "w");
  ASSERT_NE(full, nullptr);
  for (int i = 0; i < 3; i++) put_text(full, "a line\n");
  EXPECT_EQ(std::ferror(full), 0) << "the next line has its chance";
  std::fclose(full);
}

TEST(Say, APipeWithoutReaderAndALimitOnFilesEndNothing) {
  EXPECT_EQ(in_child([] {
              int ends[2];
              if (::pipe(ends) != 0) return 9;
              prepare_standard_streams();
              ::close(ends[0]), ::dup2(ends[1], STDERR_FILENO);
              say("a line for {}\n", "nobody");
              return 7;
            }),
            7);
  EXPECT_EQ(in_child([] {
              prepare_standard_streams();
              const rlimit none{0, 0};
              ::setrlimit(RLIMIT_FSIZE, &none);
              std::FILE* file = std::tmpfile();
              if (!file) return 9;
              put_text(file, "beyond the limit");
              return 7;
            }),
            7);
}

// Otherwise the next file that is opened would get the lines for the user.
TEST(Say, ClosedStreamsAreOpened) {
  EXPECT_EQ(in_child([] {
              for (int fd : {0, 1, 2}) ::close(fd);
              prepare_standard_streams();
              const int next = ::open("/dev/null", O_RDONLY);
              char c;
              const bool in = ::read(0, &c, 1) == 0;
              const bool out = ::write(1, "x", 1) < 0 && errno == ENOSPC;
              const bool err = ::write(2, "x", 1) < 0 && errno == ENOSPC;
              return next > 2 && in && out && err ? 7 : 8;
            }),
            7);
}

}  // namespace
}  // namespace trireme
