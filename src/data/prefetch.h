// Batches ahead of time: a thread of its own fills a ring of host buffers with the microbatches to come.
#pragma once
#include <atomic>
#include <cstdint>
#include <exception>
#include <span>
#include <thread>
#include <vector>

#include "data/loader.h"

namespace trireme {

// Reads steps in order, microbatches 0, 1, ... of each, for one replica, as far ahead as the ring is long.
// All memory is taken when it is made: depth * 3 * micro * seq_len * 4 bytes. While it lives the loader is
// its thread's alone. What the loader throws is thrown by get() at the microbatch that it befell.
class Prefetcher {
 public:
  struct Options {
    int64_t depth = 1;       // microbatches, at least 1
    int64_t first_step = 1;  // where the thread begins at once
    int64_t last_step = 1;   // it reads nothing beyond
    int64_t dp_rank = 0;
  };
  Prefetcher(DataLoader&, const Options&);  // run_failed when the system gives no thread
  Prefetcher(const Prefetcher&) = delete;
  ~Prefetcher();  // waits for the microbatch that is being read, no longer

  // As DataLoader::get. In order it waits at most for the thread; another microbatch than the next makes the
  // thread begin again there (a step that is run twice). Allocates nothing. One caller.
  void get(int64_t step, int64_t microbatch, std::span<int32_t> tokens, std::span<int32_t> targets,
           std::span<int32_t> positions);

 private:
  struct Place {
    int64_t step = 1, microbatch = 0;
    bool operator==(const Place&) const = default;
  };
  struct Slot {
    std::vector<int32_t> numbers;  // tokens, targets, positions: [micro, seq_len] each
    std::exception_ptr error;
  };
  void work();
  void fill(Slot&, Place);
  void begin_again(Place);
  void ring_bell();
  Place after(Place) const;

  DataLoader& loader_;
  const Options options_;
  size_t rows_;  // micro * seq_len
  std::vector<Slot> ring_;

  // No locks: on a machine with more work than cores, a step must not wait for a thread that lost its core
  // while it held one. The reading thread fills where filled_ - taken_ < ring_.size(), the caller takes where
  // they differ. Counts wrap; only their differences mean something.
  std::atomic<uint32_t> filled_{0}, taken_{0};
  std::atomic<uint32_t> order_{0}, answer_{0};  // orders to begin again at order_place_; the last one obeyed
  std::atomic<uint32_t> bell_{0};               // rung when the reading thread may have something to do
  std::atomic<bool> stop_{false};
  Place order_place_;
  // The caller's: the microbatch to come in order, and its slot.
  Place front_;
  size_t read_ = 0;
  std::thread thread_;
};

}  // namespace trireme
