#include "comm/waiting.h"

namespace trireme {
namespace {

thread_local ExecutingCall* executing = nullptr;

}  // namespace

ExecutingCall::ExecutingCall(CommObserver* observer, const CommCall& call)
    : observer_(observer), call_(call), outer_(executing), reported_(std::chrono::steady_clock::now()) {
  executing = this;
}

ExecutingCall::~ExecutingCall() {
  executing = outer_;
}

void still_waiting() {
  ExecutingCall* e = executing;
  while (e && !e->observer_) e = e->outer_;
  if (!e) return;
  const auto now = std::chrono::steady_clock::now();
  if (now - e->reported_ < kWaitReport / 2) return;
  e->reported_ = now;
  e->observer_->waiting(e->call_);
}

}  // namespace trireme
