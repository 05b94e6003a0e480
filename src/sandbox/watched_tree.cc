#include "sandbox/watched_tree.h"

#include <dirent.h>
#include <fcntl.h>
#include <unistd.h>

#include <cstdlib>
#include <string>
#include <vector>

#include <fmt/format.h>

namespace trireme {
namespace {

// The beginning of a file of /proc; empty if it is gone.
std::string read_proc(const std::string& path) {
  std::string text(4096, '\0');
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  const ssize_t n = fd < 0 ? 0 : ::read(fd, text.data(), text.size());
  if (fd >= 0) ::close(fd);
  text.resize(n > 0 ? size_t(n) : 0);
  return text;
}

std::vector<std::string> threads_of_process(pid_t pid) {
  std::vector<std::string> all;
  DIR* folder = ::opendir(fmt::format("/proc/{}/task", pid).c_str());
  if (folder == nullptr) return all;
  while (const dirent* e = ::readdir(folder))
    if (e->d_name[0] != '.') all.emplace_back(e->d_name);
  ::closedir(folder);
  return all;
}

}  // namespace

TreeUse tree_use(pid_t first) {
  TreeUse use;
  std::vector<pid_t> open = {first};
  const int64_t page = ::sysconf(_SC_PAGESIZE);
  while (!open.empty() && use.tasks < 10000) {
    const pid_t pid = open.back();
    open.pop_back();
    long long size = 0;
    long long resident = 0;
    long long shared = 0;
    const std::string sizes = read_proc(fmt::format("/proc/{}/statm", pid));
    if (pid != first && std::sscanf(sizes.c_str(), "%lld %lld %lld", &size, &resident, &shared) == 3)
      use.memory += (resident - shared) * page;
    for (const std::string& thread : threads_of_process(pid)) {
      use.tasks++;
      const std::string children = read_proc(fmt::format("/proc/{}/task/{}/children", pid, thread));
      for (const char* at = children.c_str(); *at != 0;) {
        char* end = nullptr;
        const long child = std::strtol(at, &end, 10);
        if (end == at) break;
        if (child > 0) open.push_back(pid_t(child));
        at = end;
      }
    }
  }
  return use;
}

bool lists_children() {
  return ::access("/proc/thread-self/children", R_OK) == 0;
}

}  // namespace trireme
