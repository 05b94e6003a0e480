// The thread that beats for the ranks of this process once a second, and judges those of all.
#pragma once
#include <functional>
#include <memory>
#include <span>

#include "comm/watch/judge.h"
#include "comm/watch/pulse.h"

namespace trireme {

// Where ranks see each other's beats. Used by the watchdog's thread alone.
class BeatBoard {
 public:
  virtual ~BeatBoard() = default;
  // This process's beats go out, others' come in. Never waits for a peer.
  virtual void exchange(std::span<const Beat> mine) = 0;
  // The latest that is known of every rank, by rank; number 0: nothing yet.
  virtual std::span<const Beat> all() const = 0;
  virtual bool judges() const = 0;                          // does this process judge?
  virtual bool says(const Verdict&) const { return true; }  // is the verdict its own to tell?
};
// All ranks in this process.
std::unique_ptr<BeatBoard> make_thread_board(int world);

// Called on the watchdog's thread. What ends the run is told to end() and to nobody else; end() need not
// return.
struct WatchHooks {
  std::function<void(const Verdict&)> warn, end;
};

class Watchdog {
 public:
  // The pulses of this process's ranks. All that is given outlives this, or is kept.
  Watchdog(std::vector<const Pulse*>, std::unique_ptr<BeatBoard>, const WatchLimits&, WatchHooks);
  Watchdog(const Watchdog&) = delete;
  ~Watchdog();  // beats once more, so that others see who has left

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace trireme
