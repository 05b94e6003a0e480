#include "runtime/offload.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>

#include "base/error.h"
#include "device/device_memory.h"

namespace trireme {
namespace {

constexpr int64_t kBounce = 1 << 20;

int open_nameless(const fs::path& folder) {
  make_folders(folder);
  std::string path = (folder / "offload-XXXXXX").string();
  const int fd = ::mkostemp(path.data(), O_CLOEXEC);
  if (fd < 0)
    system_failed(errno, "{}: no file can be made to offload into: {}", folder.string(),
                  std::strerror(errno));
  ::unlink(path.c_str());
  return fd;
}

}  // namespace

OffloadStore::OffloadStore(const OffloadTo& to, Device& device, int64_t jobs, int64_t bytes)
    : folder_(to.folder),
      device_(device),
      out_{device.stream("offload"), std::vector<Job>(size_t(jobs)), nullptr},
      in_{device.stream("fetch"), std::vector<Job>(size_t(jobs)), nullptr},
      bytes_(bytes) {
  if (to.host) {
    host_ = device.reserve_host(bytes);
    return;
  }
  if (!device.has_data()) return;
  fd_ = open_nameless(folder_);
  if (device.own_memory()) try {
      for (Way* w : {&out_, &in_}) w->bounce = device.reserve_host(kBounce);
    } catch (...) {  // no destructor follows
      give_back();
      throw;
    }
}

void OffloadStore::give_back() {
  for (Way* w : {&out_, &in_})
    if (w->bounce) device_.release_host(w->bounce, kBounce);
  if (host_) device_.release_host(host_, bytes_);
  if (mapped_ && !device_.has_data()) device_.release(mapped_, bytes_);
  if (mapped_ && device_.has_data()) ::munmap(mapped_, size_t(bytes_));
  if (fd_ >= 0) ::close(fd_);
}

OffloadStore::~OffloadStore() {
  for (Way* w : {&out_, &in_}) try {
      device_.sync(w->stream);
    } catch (const std::exception&) {
      // It is told by whoever caught what ended the run.
    }
  give_back();
}

std::byte* OffloadStore::map() {
  if (host_) return host_;
  if (mapped_ || bytes_ == 0) return mapped_;
  if (!device_.has_data()) return mapped_ = device_.reserve(bytes_);
  if (const int error = ::posix_fallocate(fd_, 0, bytes_); error != 0)
    bad_request("{}: no room for {} bytes to offload into: {}", folder_.string(), bytes_,
                std::strerror(error));
  void* p = ::mmap(nullptr, size_t(bytes_), PROT_READ | PROT_WRITE, MAP_SHARED, fd_, 0);
  if (p == MAP_FAILED)
    system_failed(errno, "{}: a file to offload into cannot be mapped: {}", folder_.string(),
                  std::strerror(errno));
  return mapped_ = static_cast<std::byte*>(p);
}

// On the stream's thread. piece(memory of the host, bytes before it, bytes, move): move(dst, src, bytes)
// where that memory stands for the device's, else null.
template <class Piece>
void OffloadStore::in_pieces(const Job& j, std::byte* bounce, const Piece& piece) {
  const CopyBytes move = device_copy_of(j.data);
  if (!move) return piece(j.data, 0, j.bytes, move);
  require(bounce != nullptr, "memory that the host cannot reach, of a device that has none of its own");
  for (int64_t done = 0; done < j.bytes; done += kBounce)
    piece(bounce, done, std::min(kBounce, j.bytes - done), move);
}

void OffloadStore::write(void* self, int64_t job) {
  auto* f = static_cast<OffloadStore*>(self);
  const Job& j = f->out_.jobs[size_t(job)];
  in_pieces(j, f->out_.bounce, [&](std::byte* from, int64_t before, int64_t bytes, CopyBytes move) {
    if (move) move(from, j.data + before, bytes);
    for (int64_t done = 0; done < bytes;) {
      const ssize_t n = ::pwrite(f->fd_, from + done, size_t(bytes - done), j.at + before + done);
      if (n < 0 && errno == EINTR) continue;
      if (n <= 0)
        system_failed_in_run(n < 0 ? errno : ENOSPC, "{}: offloading fails: {}", f->folder_.string(),
                             std::strerror(n < 0 ? errno : ENOSPC));
      done += n;
    }
  });
}

void OffloadStore::read(void* self, int64_t job) {
  auto* f = static_cast<OffloadStore*>(self);
  const Job& j = f->in_.jobs[size_t(job)];
  in_pieces(j, f->in_.bounce, [&](std::byte* to, int64_t before, int64_t bytes, CopyBytes move) {
    for (int64_t done = 0; done < bytes;) {
      const ssize_t n = ::pread(f->fd_, to + done, size_t(bytes - done), j.at + before + done);
      if (n < 0 && errno == EINTR) continue;
      if (n <= 0)
        system_failed_in_run(n < 0 ? errno : 0, "{}: what was offloaded cannot be read: {}",
                             f->folder_.string(), n < 0 ? std::strerror(errno) : "the file ends before it");
      done += n;
    }
    if (move) move(j.data + before, to, bytes);
  });
}

Event OffloadStore::start(Way& way, int64_t job, int64_t at, const Tensor& t, HostTask task) {
  way.jobs.at(size_t(job)) = {.data = t.data, .at = at, .bytes = t.bytes()};
  device_.wait(way.stream, device_.record(device_.stream("compute")));
  task.self = this, task.arg = job;
  device_.enqueue(way.stream, task);
  return device_.record(way.stream);
}

Event OffloadStore::copy(Way& way, const Tensor& dst, const Tensor& src) {
  device_.wait(way.stream, device_.record(device_.stream("compute")));
  device_.copy(dst, src, way.stream);
  return device_.record(way.stream);
}

// Of the host's memory; null where the tensor waits in a file.
Tensor OffloadStore::place(int64_t at, const Tensor& like) const {
  require(like.contiguous() && at >= 0 && at + like.bytes() <= bytes_,
          "a tensor larger than its place in the store");
  return Tensor(host_ ? host_ + at : nullptr, like.shape, like.dtype);
}

Event OffloadStore::put(int64_t job, int64_t at, const Tensor& t) {
  const Tensor there = place(at, t);
  if (host_) return copy(out_, there, t);
  return start(out_, job, at, t, {.run = &OffloadStore::write, .disk_written = t.bytes()});
}
Event OffloadStore::get(int64_t job, int64_t at, const Tensor& t) {
  const Tensor there = place(at, t);
  if (host_) return copy(in_, t, there);
  return start(in_, job, at, t, {.run = &OffloadStore::read, .disk_read = t.bytes()});
}

}  // namespace trireme
