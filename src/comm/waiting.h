// How a call that waits for peers says so, several times per second. A rank that neither works nor says that
// it waits is frozen: without these reports it cannot be told from the ranks that wait for it
// (watch/judge.h).
#pragma once
#include <chrono>

#include "comm/communicator.h"

namespace trireme {

inline constexpr std::chrono::milliseconds kWaitReport{100};  // between reports of one call

// While it lives, the calling thread executes this call, and its waits are reported to the observer.
class ExecutingCall {
 public:
  ExecutingCall(CommObserver*, const CommCall&);
  ExecutingCall(const ExecutingCall&) = delete;
  ~ExecutingCall();

 private:
  friend void still_waiting();
  CommObserver* observer_;
  const CommCall& call_;
  ExecutingCall* outer_;  // the call of a decorator, which this one serves
  std::chrono::steady_clock::time_point reported_;
};

// To be called again and again by every loop that waits for peers, at least every kWaitReport.
void still_waiting();

}  // namespace trireme
