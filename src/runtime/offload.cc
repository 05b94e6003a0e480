#include "runtime/offload.h"

#include <fcntl.h>
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

OffloadFile::OffloadFile(const fs::path& folder, Device& device, int64_t places, int64_t bytes)
    : folder_(folder),
      device_(device),
      out_(device.stream("offload")),
      in_(device.stream("fetch")),
      bytes_(bytes),
      puts_(size_t(places)),
      gets_(size_t(places)) {
  if (device.has_data()) fd_ = open_nameless(folder);
}

OffloadFile::~OffloadFile() {
  for (Stream s : {out_, in_}) try {
      device_.sync(s);
    } catch (const std::exception&) {
      // It is told by whoever caught what ended the run.
    }
  if (fd_ >= 0) ::close(fd_);
}

void OffloadFile::write(void* self, int64_t place) {
  auto* f = static_cast<OffloadFile*>(self);
  const Job& j = f->puts_[size_t(place)];
  for (int64_t done = 0; done < j.bytes;) {
    const ssize_t n = ::pwrite(f->fd_, j.data + done, size_t(j.bytes - done), place * f->bytes_ + done);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0)
      run_failed("{}: offloading fails: {}", f->folder_.string(), std::strerror(n < 0 ? errno : ENOSPC));
    done += n;
  }
}

void OffloadFile::read(void* self, int64_t place) {
  auto* f = static_cast<OffloadFile*>(self);
  const Job& j = f->gets_[size_t(place)];
  for (int64_t done = 0; done < j.bytes;) {
    const ssize_t n = ::pread(f->fd_, j.data + done, size_t(j.bytes - done), place * f->bytes_ + done);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0)
      run_failed("{}: what was offloaded cannot be read: {}", f->folder_.string(),
                 n < 0 ? std::strerror(errno) : "the file ends before it");
    done += n;
  }
}

Event OffloadFile::start(Stream s, std::vector<Job>& jobs, int64_t place, const Tensor& t,
                         void (*run)(void*, int64_t)) {
  require(t.contiguous() && t.bytes() <= bytes_, "a tensor larger than its place in the file");
  jobs.at(size_t(place)) = {.data = t.data, .bytes = t.bytes()};
  device_.wait(s, device_.record(device_.stream("compute")));
  device_.enqueue(s, {.run = run, .self = this, .arg = place});
  return device_.record(s);
}

Event OffloadFile::put(int64_t place, const Tensor& t) {
  return start(out_, puts_, place, t, &OffloadFile::write);
}
Event OffloadFile::get(int64_t place, const Tensor& t) {
  return start(in_, gets_, place, t, &OffloadFile::read);
}

}  // namespace trireme
