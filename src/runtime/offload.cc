#include "runtime/offload.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>

#include "base/error.h"

namespace trireme {
namespace {

int open_nameless(const fs::path& folder) {
  make_folders(folder);
  std::string path = (folder / "offload-XXXXXX").string();
  const int fd = ::mkostemp(path.data(), O_CLOEXEC);
  if (fd < 0)
    bad_request("{}: no file can be made to offload into: {}", folder.string(), std::strerror(errno));
  ::unlink(path.c_str());
  return fd;
}

}  // namespace

OffloadFile::OffloadFile(const fs::path& folder, Device& device, int64_t jobs, int64_t bytes)
    : folder_(folder),
      device_(device),
      out_(device.stream("offload")),
      in_(device.stream("fetch")),
      bytes_(bytes),
      puts_(size_t(jobs)),
      gets_(size_t(jobs)) {
  if (device.has_data()) fd_ = open_nameless(folder);
}

OffloadFile::~OffloadFile() {
  for (Stream s : {out_, in_}) try {
      device_.sync(s);
    } catch (const std::exception&) {
      // It is told by whoever caught what ended the run.
    }
  if (mapped_ && !device_.has_data()) device_.release(mapped_, bytes_);
  if (mapped_ && device_.has_data()) ::munmap(mapped_, size_t(bytes_));
  if (fd_ >= 0) ::close(fd_);
}

std::byte* OffloadFile::map() {
  if (mapped_ || bytes_ == 0) return mapped_;
  if (!device_.has_data()) return mapped_ = device_.reserve(bytes_);
  if (const int error = ::posix_fallocate(fd_, 0, bytes_); error != 0)
    bad_request("{}: no room for {} bytes to offload into: {}", folder_.string(), bytes_,
                std::strerror(error));
  void* p = ::mmap(nullptr, size_t(bytes_), PROT_READ | PROT_WRITE, MAP_SHARED, fd_, 0);
  if (p == MAP_FAILED)
    bad_request("{}: a file to offload into cannot be mapped: {}", folder_.string(), std::strerror(errno));
  return mapped_ = static_cast<std::byte*>(p);
}

void OffloadFile::write(void* self, int64_t job) {
  auto* f = static_cast<OffloadFile*>(self);
  const Job& j = f->puts_[size_t(job)];
  for (int64_t done = 0; done < j.bytes;) {
    const ssize_t n = ::pwrite(f->fd_, j.data + done, size_t(j.bytes - done), j.at + done);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0)
      run_failed("{}: offloading fails: {}", f->folder_.string(), std::strerror(n < 0 ? errno : ENOSPC));
    done += n;
  }
}

void OffloadFile::read(void* self, int64_t job) {
  auto* f = static_cast<OffloadFile*>(self);
  const Job& j = f->gets_[size_t(job)];
  for (int64_t done = 0; done < j.bytes;) {
    const ssize_t n = ::pread(f->fd_, j.data + done, size_t(j.bytes - done), j.at + done);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0)
      run_failed("{}: what was offloaded cannot be read: {}", f->folder_.string(),
                 n < 0 ? std::strerror(errno) : "the file ends before it");
    done += n;
  }
}

Event OffloadFile::start(Stream s, std::vector<Job>& jobs, int64_t job, int64_t at, const Tensor& t,
                         HostTask task) {
  require(t.contiguous() && at >= 0 && at + t.bytes() <= bytes_,
          "a tensor larger than its place in the file");
  jobs.at(size_t(job)) = {.data = t.data, .at = at, .bytes = t.bytes()};
  device_.wait(s, device_.record(device_.stream("compute")));
  task.self = this, task.arg = job;
  device_.enqueue(s, task);
  return device_.record(s);
}

Event OffloadFile::put(int64_t job, int64_t at, const Tensor& t) {
  return start(out_, puts_, job, at, t, {.run = &OffloadFile::write, .disk_written = t.bytes()});
}
Event OffloadFile::get(int64_t job, int64_t at, const Tensor& t) {
  return start(in_, gets_, job, at, t, {.run = &OffloadFile::read, .disk_read = t.bytes()});
}

}  // namespace trireme
