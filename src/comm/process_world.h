// Ranks as processes: what one of them has of the others, whatever carries the messages (mpi, tcp), and what
// a backend that moves tensors by ways of its own (nccl) takes from it.
#pragma once
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "base/error.h"
#include "comm/comm_set.h"
#include "comm/failure.h"
#include "comm/options.h"
#include "comm/watch/watchdog.h"

namespace trireme {

class ProcessWorld {
 public:
  virtual ~ProcessWorld() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;
  virtual int local_ranks() const = 0;  // that share this one's processor cores, itself among them
  virtual int local_rank() const = 0;   // place among the ranks on this machine
  // As ThreadWorld::factory; of this process's rank. Collective over all ranks.
  virtual std::unique_ptr<CommFactory> factory(Device*, const CommOptions& = {}) = 0;

  // Where the ranks see each other's beats, for this process's watchdog. Collective over all ranks.
  virtual std::unique_ptr<BeatBoard> board() = 0;

  // This rank leaves with an error. The others are told why, and one rank says it: of those that failed by
  // themselves within a third of a second the lowest. What comes back is the line, which names the rank, and
  // empty where another rank says it; its fault is the same on all ranks.
  virtual Error end_failed(const Error&) = 0;

  // This process's watchdog says that a rank is late or dead, and ends the process next: the others hear of
  // it where nothing else ends them.
  virtual void condemn(int rank, std::string_view why, Fault = Fault::run) {}

  // ---- for backends over this world; on any thread ----
  // The first failure that this process has heard of by now: looks for news.
  virtual const Failure& news() = 0;
  virtual void fail(std::string_view why, bool certain) = 0;  // as Failure::set, and the others are told
  // A note of at most kMostNote bytes for another rank, or for itself, under a key that the two agree on;
  // those of one key come in their order. Never waits for the other.
  virtual void post(int to, uint64_t key, std::string_view bytes) = 0;
  virtual std::optional<std::string> fetch(int from, uint64_t key) = 0;  // nothing: it has not come yet
  static constexpr size_t kMostNote = 1000;
};

}  // namespace trireme
