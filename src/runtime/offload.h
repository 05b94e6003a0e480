// Tensors that wait in a file while their memory holds others (docs/recompute.md): on CPU, where host and
// device are one, this is what an offload to the host is elsewhere.
#pragma once
#include <vector>

#include "base/file.h"
#include "device/device.h"

namespace trireme {

// Bytes travel on two streams beside compute, out and in. A transfer is one of `jobs`, by number; the same
// one is not asked for again before its event. Driven from the rank's thread.
class OffloadFile {
 public:
  // In the folder, made where missing; without a name there, so that it goes with the process. On meta no
  // file is opened.
  OffloadFile(const fs::path& folder, Device&, int64_t jobs, int64_t bytes);
  OffloadFile(const OffloadFile&) = delete;
  ~OffloadFile();  // when nothing is under way

  // Contiguous, untouched until the event; `at` and what follows lie in the file's bytes. Behind what compute
  // was given.
  Event put(int64_t job, int64_t at, const Tensor&);
  Event get(int64_t job, int64_t at, const Tensor&);

  // All its bytes as memory (on meta: addresses), zero at first; the disk has room for them from here on. For
  // what is read and written between steps: in them an error of the disk is to be told, which memory cannot.
  std::byte* map();

 private:
  struct Job {
    std::byte* data = nullptr;
    int64_t at = 0, bytes = 0;
  };
  Event start(Stream, std::vector<Job>&, int64_t job, int64_t at, const Tensor&, HostTask);
  static void write(void* self, int64_t job);
  static void read(void* self, int64_t job);

  fs::path folder_;
  Device& device_;
  Stream out_, in_;
  int64_t bytes_;
  int fd_ = -1;
  std::byte* mapped_ = nullptr;
  std::vector<Job> puts_, gets_;
};

}  // namespace trireme
