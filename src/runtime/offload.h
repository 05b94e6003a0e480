// Tensors that wait in a file while their memory holds others (docs/recompute.md): on CPU, where host and
// device are one, this is what an offload to the host is elsewhere.
#pragma once
#include <vector>

#include "base/file.h"
#include "device/device.h"

namespace trireme {

// A file of equal places. Bytes travel on two streams beside compute, out and in; the same place is not asked
// for again before its event. Driven from the rank's thread.
class OffloadFile {
 public:
  // In the folder, made where missing; without a name there, so that it goes with the process. On meta no
  // file is opened.
  OffloadFile(const fs::path& folder, Device&, int64_t places, int64_t bytes);
  OffloadFile(const OffloadFile&) = delete;
  ~OffloadFile();  // when nothing is under way

  // Contiguous, at most a place's bytes, untouched until the event. Behind what compute was given.
  Event put(int64_t place, const Tensor&);
  Event get(int64_t place, const Tensor&);

 private:
  struct Job {
    std::byte* data = nullptr;
    int64_t bytes = 0;
  };
  Event start(Stream, std::vector<Job>&, int64_t place, const Tensor&, void (*run)(void*, int64_t));
  static void write(void* self, int64_t place);
  static void read(void* self, int64_t place);

  fs::path folder_;
  Device& device_;
  Stream out_, in_;
  int64_t bytes_;
  int fd_ = -1;
  std::vector<Job> puts_, gets_;  // by place
};

}  // namespace trireme
