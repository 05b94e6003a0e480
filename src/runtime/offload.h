// Tensors that wait elsewhere while their device memory holds others (docs/recompute.md): in the host's
// memory, where the device has its own, or in a file.
#pragma once
#include <vector>

#include "base/file.h"
#include "device/device.h"

namespace trireme {

struct OffloadTo {
  fs::path folder;    // of a file
  bool host = false;  // not a file: the host's memory
};

// Bytes travel on two streams beside compute, out and in. A transfer is one of `jobs`, by number; the same
// one is not asked for again before its event. Driven from the rank's thread.
class OffloadStore {
 public:
  // A file: in the folder, made where missing; without a name there, so that it goes with the process. On
  // meta no file is opened. The host's memory: taken here, from the device.
  OffloadStore(const OffloadTo&, Device&, int64_t jobs, int64_t bytes);
  OffloadStore(const OffloadStore&) = delete;
  ~OffloadStore();  // when nothing is under way

  // Contiguous, untouched until the event; `at` and what follows lie in the store's bytes. Behind what
  // compute was given.
  Event put(int64_t job, int64_t at, const Tensor&);
  Event get(int64_t job, int64_t at, const Tensor&);

  // All its bytes as memory of the host (on meta: addresses), zero at first; the disk has room for them from
  // here on. For what is read and written between steps: in them an error of the disk is to be told, which
  // memory cannot.
  std::byte* map();
  int64_t host_bytes() const { return host_ ? bytes_ : 0; }  // of the host's memory, taken from start to end

 private:
  struct Job {
    std::byte* data = nullptr;
    int64_t at = 0, bytes = 0;
  };
  // One way to or from the file. bounce: host memory that pieces go by where the device's is its own.
  struct Way {
    Stream stream;
    std::vector<Job> jobs;
    std::byte* bounce = nullptr;
  };
  Event start(Way&, int64_t job, int64_t at, const Tensor&, HostTask);
  Event copy(Way&, const Tensor& dst, const Tensor& src);
  Tensor place(int64_t at, const Tensor& like) const;
  void give_back();  // all that it took
  template <class Piece>
  static void in_pieces(const Job&, std::byte* bounce, const Piece&);
  static void write(void* self, int64_t job);
  static void read(void* self, int64_t job);

  fs::path folder_;
  Device& device_;
  Way out_, in_;
  int64_t bytes_;
  int fd_ = -1;
  std::byte* mapped_ = nullptr;  // of the file
  std::byte* host_ = nullptr;    // null: a file
};

}  // namespace trireme
