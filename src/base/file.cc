#include "base/file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

#include <cerrno>
#include <cstring>
#include <system_error>
#include <utility>

#include "base/error.h"
#include "base/mapping_table.h"

namespace trireme {
namespace {

constexpr int kNoWait =
    O_NONBLOCK;  // open() of a pipe would wait for its other end; no effect on regular files

[[noreturn]] void io_error(std::string_view what, const fs::path& p, int err) {
  std::string hint;
  if (err == ENOSPC) hint = "; free some space or choose another folder";
  if (err == EACCES || err == EROFS || err == EPERM) hint = "; choose a folder that you may write to";
  system_failed(err, "{} {}: {}{}", what, p.string(), std::strerror(err), hint);
}

// An open file to read, never a pipe or a folder.
class RegularFile {
 public:
  explicit RegularFile(const fs::path& path) : fd_(::open(path.c_str(), O_RDONLY | O_CLOEXEC | kNoWait)) {
    if (fd_ < 0) system_failed(errno, "cannot open {}: {}", path.string(), std::strerror(errno));
    struct stat st;
    if (::fstat(fd_, &st) != 0 || !S_ISREG(st.st_mode)) {
      ::close(fd_);
      bad_request("{} is not a regular file", path.string());
    }
    bytes_ = size_t(st.st_size);
  }
  ~RegularFile() { ::close(fd_); }
  RegularFile(const RegularFile&) = delete;
  int fd() const { return fd_; }
  size_t bytes() const { return bytes_; }

 private:
  int fd_;
  size_t bytes_ = 0;
};

}  // namespace

MappedFile::MappedFile(const fs::path& path) : path_(path) {
  const RegularFile file(path);
  size_ = file.bytes();
  if (size_ == 0) return;
  void* p = ::mmap(nullptr, size_, PROT_READ, MAP_PRIVATE, file.fd(), 0);
  if (p == MAP_FAILED) io_error("cannot map", path, errno);
  data_ = static_cast<const std::byte*>(p);
  add_mapping(data_, size_, path);
}
MappedFile::MappedFile(MappedFile&& o) noexcept
    : path_(std::move(o.path_)), data_(std::exchange(o.data_, nullptr)), size_(std::exchange(o.size_, 0)) {}
MappedFile& MappedFile::operator=(MappedFile&& o) noexcept {
  std::swap(path_, o.path_), std::swap(data_, o.data_), std::swap(size_, o.size_);
  return *this;
}
MappedFile::~MappedFile() {
  if (!data_) return;
  remove_mapping(data_);
  ::munmap(const_cast<std::byte*>(data_), size_);
}

AtomicFile::AtomicFile(fs::path target) : target_(std::move(target)), part_(target_.string() + ".part") {
  std::error_code ec;  // checked now: commit() may be hours away
  const fs::file_type there = fs::status(target_, ec).type();
  if (there == fs::file_type::directory) io_error("cannot write", target_, EISDIR);
  // commit() would replace a device, such as /dev/null, by a file.
  if (there != fs::file_type::regular && there != fs::file_type::not_found && there != fs::file_type::none)
    bad_request("cannot write {}: it exists and is not a regular file; choose another name",
                target_.string());
  fd_ = ::open(part_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | kNoWait, 0644);
  if (fd_ < 0) io_error("cannot write", target_, errno);
}
AtomicFile::~AtomicFile() {
  if (fd_ >= 0) {
    ::close(fd_);
    ::unlink(part_.c_str());
  }
}
void AtomicFile::write(const void* data, size_t bytes) {
  write_all(fd_, data, bytes, part_);
}
void AtomicFile::commit() {
  if (::fsync(fd_) != 0) io_error("cannot flush", part_, errno);
  int rc = ::close(fd_);
  fd_ = -1;
  if (rc != 0 || ::rename(part_.c_str(), target_.c_str()) != 0) {
    int err = errno;
    ::unlink(part_.c_str());
    io_error("cannot publish", target_, err);
  }
  sync_folder(target_.has_parent_path() ? target_.parent_path() : fs::path("."));
}

void write_all(int fd, const void* data, size_t bytes, const fs::path& for_message) {
  auto p = static_cast<const char*>(data);
  while (bytes > 0) {
    ssize_t n = ::write(fd, p, std::min<size_t>(bytes, size_t(1) << 30));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) io_error("cannot write", for_message, errno);
    p += n, bytes -= size_t(n);
  }
}

// By read(): through a mapping, an I/O error would raise SIGBUS.
std::string read_text(const fs::path& path) {
  const RegularFile file(path);
  std::string text(file.bytes() + 1, '\0');  // one byte more: the last read finds the end
  for (size_t done = 0;;) {
    const ssize_t n = ::read(file.fd(), text.data() + done, text.size() - done);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) io_error("cannot read", path, errno);
    if (n == 0) {
      text.resize(done);
      return text;
    }
    done += size_t(n);
    if (done == text.size()) text.resize(2 * done);  // it has grown
  }
}

void write_text_atomic(const fs::path& path, std::string_view text) {
  AtomicFile f(path);
  f.write(text);
  f.commit();
}

void append_line(const fs::path& path, std::string_view line) {
  int fd = ::open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | kNoWait, 0644);
  if (fd < 0) io_error("cannot write", path, errno);
  std::string s(line);
  s += '\n';
  try {
    write_all(fd, s.data(), s.size(), path);
  } catch (...) {
    ::close(fd);
    throw;
  }
  ::close(fd);
}

void make_folders(const fs::path& path) {
  std::error_code ec;
  fs::create_directories(path, ec);
  if (ec) io_error("cannot make folder", path, ec.value());
  if (!fs::is_directory(path)) bad_request("{} exists and is not a folder", path.string());
}

void sync_folder(const fs::path& path) {
  int fd = ::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) io_error("cannot open folder", path, errno);
  int rc = ::fsync(fd), err = errno;
  ::close(fd);
  if (rc != 0 && err != EINVAL) io_error("cannot flush folder", path, err);
}

uint64_t hash64(const void* data, size_t bytes, uint64_t seed) {
  return XXH3_64bits_withSeed(data, bytes, seed);
}
std::string hex64(uint64_t h) {
  return fmt::format("{:016x}", h);
}

}  // namespace trireme
