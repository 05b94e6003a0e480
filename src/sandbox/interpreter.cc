#include "sandbox/interpreter.h"

#include <fcntl.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <sstream>

#include "base/error.h"

extern char** environ;

namespace trireme {
namespace {

namespace fs = std::filesystem;

// Library folders on sys.path that belong to the installation; the folders of shared libraries that are
// loaded, or the libraries alone if their folder may hold other files.
constexpr const char* kQuestions = R"py(
import os, platform, sys, sysconfig
import ctypes, hashlib, decimal, zlib, bz2, lzma
real = os.path.realpath
prefixes = {real(p) for p in (sys.base_prefix, sys.base_exec_prefix)}
system = ("/usr/", "/lib", "/opt/", "/nix/store/")
def within(path, roots):
    return any(path.startswith(root.rstrip("/") + "/") for root in roots)
print(real(getattr(sys, "_base_executable", sys.executable) or sys.executable))
print(platform.python_version())
for path in {real(p) for p in sys.path if p} | {real(sysconfig.get_path(n)) for n in ("stdlib", "platstdlib")}:
    if os.path.exists(path) and (within(path, prefixes) or path.startswith(system)):
        print(path)
for line in open("/proc/self/maps"):
    path = line.split(None, 5)[-1].strip()
    if ".so" in path and os.path.isfile(path):
        folder = os.path.dirname(real(path))
        print(folder if folder.startswith(system) or within(folder, prefixes) else real(path))
)py";

// Standard output of a program. Throws if it cannot be started or fails.
std::string output_of(const std::vector<std::string>& command) {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) system_failed_in_run(errno, "pipe: {}", std::strerror(errno));
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, ends[1], STDOUT_FILENO);
  posix_spawn_file_actions_addopen(&actions, STDERR_FILENO, "/dev/null", O_WRONLY, 0);
  std::vector<char*> argv;
  for (const std::string& a : command) argv.push_back(const_cast<char*>(a.c_str()));
  argv.push_back(nullptr);
  pid_t pid = 0;
  const int failed = ::posix_spawnp(&pid, argv[0], &actions, nullptr, argv.data(), environ);
  posix_spawn_file_actions_destroy(&actions);
  ::close(ends[1]);
  std::string text;
  char buffer[4096];
  for (ssize_t n = 0; !failed;) {
    n = ::read(ends[0], buffer, sizeof buffer);
    if (n > 0) text.append(buffer, size_t(n));
    if (n == 0 || (n < 0 && errno != EINTR)) break;
  }
  ::close(ends[0]);
  if (failed)
    bad_request("{}: {}; name a Python 3 interpreter with --python", command[0], std::strerror(failed));
  int status = 0;
  while (::waitpid(pid, &status, 0) < 0 && errno == EINTR) {
  }
  if (status != 0) bad_request("{}: not a working Python 3 interpreter; name one with --python", command[0]);
  return text;
}

bool is_within(const std::string& path, const std::string& folder) {
  return path.size() > folder.size() && path.starts_with(folder) && path[folder.size()] == '/';
}

}  // namespace

Interpreter find_interpreter(const std::string& python) {
  std::istringstream answer(output_of({python, "-I", "-B", "-c", kQuestions}));
  Interpreter found;
  std::getline(answer, found.executable);
  std::getline(answer, found.version);
  std::vector<std::string> all = {found.executable};
  for (std::string line; std::getline(answer, line);)
    if (!line.empty()) all.push_back(line);
  for (const char* more : {"/etc/ld.so.cache", "/usr/share/zoneinfo", "/usr/lib64"})
    if (fs::exists(more)) all.push_back(more);
  std::sort(all.begin(), all.end());
  all.erase(std::unique(all.begin(), all.end()), all.end());
  for (const std::string& path : all) {
    auto holds = [&](const std::string& other) { return is_within(path, other); };
    if (std::none_of(all.begin(), all.end(), holds)) found.visible.push_back(path);
  }
  return found;
}

}  // namespace trireme
