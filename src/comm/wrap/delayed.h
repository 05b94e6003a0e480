// A slower link than the backend's: every call ends no earlier than a link of given alpha and beta would have
// ended it. For tests of overlap, and to see here how a run would behave on a cluster's network.
#pragma once
#include <memory>

#include "comm/comm_set.h"
#include "comm/options.h"

namespace trireme {

// Time as delayed links see it; the steady clock unless a test gives its own.
class LinkClock {
 public:
  virtual ~LinkClock() = default;
  virtual int64_t now_ns();
  virtual void sleep_until(int64_t ns);  // takes no CPU
};

// A call that met its peers at t ends at t + alpha rounds + wire beta at the earliest, where rounds are the
// messages one after another of its algorithm (rounds_of) and wire is wire_bytes(), or what comes in where
// only others send. The stream is busy until then, and no other. device: as the inner factory's; null = the
// caller's thread sleeps. clock: outlives it.
std::unique_ptr<CommFactory> make_delayed(std::unique_ptr<CommFactory>, LinkCost, Device*,
                                          LinkClock* clock = nullptr);
// Of a factory that outlives what is made.
std::unique_ptr<CommFactory> make_delayed(CommFactory&, LinkCost, Device*, LinkClock* clock = nullptr);

}  // namespace trireme
