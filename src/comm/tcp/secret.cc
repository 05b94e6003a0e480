#include "comm/tcp/secret.h"

#include <fcntl.h>
#include <pwd.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "base/error.h"
#include "base/file.h"
#include "base/hmac.h"
#include "base/printable.h"

namespace trireme {
namespace {

constexpr const char* kRemedy = "set TRIREME_SECRET to the same text on all ranks, of 16 characters or more";

fs::path key_file(const Environment& environment) {
  if (const auto config = environment("XDG_CONFIG_HOME")) return fs::path(*config) / "trireme/secret";
  std::string home;
  if (const auto named = environment("HOME")) home = *named;
  if (home.empty())
    if (const passwd* user = ::getpwuid(::geteuid())) home = user->pw_dir;
  if (home.empty()) bad_request("rendezvous: there is no home folder for the secret of the job: {}", kRemedy);
  return fs::path(home) / ".config/trireme/secret";
}

// Several ranks may make the file at once: one wins, and it is never seen half-written.
void make_key_file(const fs::path& path) {
  std::array<std::byte, 32> bytes;
  random_bytes(bytes);
  std::string text;
  for (std::byte b : bytes) text += fmt::format("{:02x}", int(b));
  text += '\n';
  make_folders(path.parent_path());
  const fs::path mine = path.string() + "." + text.substr(0, 16) + ".part";
  const int fd = ::open(mine.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
  if (fd < 0)
    system_failed(errno, "rendezvous: cannot write {}: {}; {}", mine.string(), std::strerror(errno), kRemedy);
  try {
    write_all(fd, text.data(), text.size(), mine);
  } catch (...) {
    ::close(fd);
    ::unlink(mine.c_str());
    throw;
  }
  ::fsync(fd);
  ::close(fd);
  const int linked = ::link(mine.c_str(), path.c_str());
  const int why = errno;
  ::unlink(mine.c_str());
  if (linked != 0 && why != EEXIST)
    system_failed(why, "rendezvous: cannot write {}: {}; {}", path.string(), std::strerror(why), kRemedy);
}

}  // namespace

std::string secret_of_job(const Environment& environment) {
  if (const auto given = environment("TRIREME_SECRET")) {
    if (given->size() < kLeastSecret)
      bad_request("the environment's TRIREME_SECRET has {} characters; expected {} or more", given->size(),
                  kLeastSecret);
    return *given;
  }
  const fs::path path = key_file(environment);
  struct stat st {};
  if (::stat(path.c_str(), &st) != 0) {
    if (errno != ENOENT && errno != ENOTDIR)
      system_failed(errno, "rendezvous: cannot read {}: {}; {}", printable(path.string()),
                    std::strerror(errno), kRemedy);
    make_key_file(path);
    if (::stat(path.c_str(), &st) != 0)
      system_failed(errno, "rendezvous: cannot read {}: {}; {}", printable(path.string()),
                    std::strerror(errno), kRemedy);
  }
  if (!S_ISREG(st.st_mode) || st.st_uid != ::geteuid() || (st.st_mode & 077) != 0)
    bad_request("rendezvous: {} must be a file of yours that no other user may read: chmod 600 it, or {}",
                printable(path.string()), kRemedy);
  std::string text = read_text(path);
  while (!text.empty() && uint8_t(text.back()) <= ' ') text.pop_back();
  if (text.size() < kLeastSecret)
    bad_request("rendezvous: {} has {} characters; expected {} or more: remove it, or {}",
                printable(path.string()), text.size(), kLeastSecret, kRemedy);
  return text;
}

}  // namespace trireme
