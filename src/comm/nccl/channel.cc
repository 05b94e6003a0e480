#include "comm/nccl/channel.h"

#include <algorithm>
#include <chrono>
#include <deque>
#include <exception>
#include <thread>

#include "comm/waiting.h"
#include "device/device_memory.h"

namespace trireme::nccl {
namespace {

using NcclClock = std::chrono::steady_clock;

// Once this process has heard that a rank failed, or NCCL says that a peer is gone: how long the reason may
// take to come by the host's way, and how long what is to be given back may take.
constexpr auto kNewsTime = std::chrono::seconds(3);
constexpr auto kFinishTime = std::chrono::seconds(5);

}  // namespace

void Patience::rest() {
  still_waiting();
  pause_.rest();
}
bool Grace::over(const Failure& news) {
  if (!news.is_set()) return false;
  if (heard_ == NcclClock::time_point{}) heard_ = NcclClock::now();
  return NcclClock::now() - heard_ > std::chrono::duration<double>(seconds_);
}

Channel::Channel(Shared& shared, std::string what, std::unique_ptr<DeviceQueue> queue, const UniqueId& id,
                 int ranks, int rank)
    : shared_(shared), what_(std::move(what)), queue_(std::move(queue)) {
  queue_->enter();
  Config config;
  const Result r = shared_.api.CommInitRankConfig(&comm_, ranks, id, rank, &config);
  if (r != kSuccess && r != kInProgress)
    run_failed("{}: NCCL's CommInitRankConfig failed: {}", what_, said(r));
}

Channel::Channel(Shared& shared, std::string what, std::unique_ptr<DeviceQueue> queue, Channel& like,
                 int rank)
    : shared_(shared), what_(std::move(what)), queue_(std::move(queue)) {
  queue_->enter();
  Config config;
  {
    std::lock_guard lock(like.mutex_);
    like.raise_if_aborted();
    const Result r = shared_.api.CommSplit(like.comm_, 0, rank, &comm_, &config);
    if (r != kSuccess && r != kInProgress) run_failed("{}: NCCL's CommSplit failed: {}", what_, said(r));
  }
  // The new one is there when the old one is no more in progress (NVIDIA/nccl issue 1472).
  like.ready();
  ready();
}

Channel::~Channel() {
  std::unique_lock lock(mutex_);
  if (aborted_ || !comm_) return;
  try {
    queue_->enter();
  } catch (const Error&) {  // the device is lost: so is all that it holds
    return;
  }
  for (const Registered& r : registered_)
    if (r.handle) (void)shared_.api.CommDeregister(comm_, r.handle);
  if (shared_.host.news().is_set() || std::uncaught_exceptions() > 0) {
    (void)shared_.api.CommAbort(comm_);
    return;
  }
  // What is on its way to peers still goes there.
  Result r = shared_.api.CommFinalize(comm_);
  const auto end = NcclClock::now() + kFinishTime;
  Patience patience;
  while ((r == kInProgress || r == kSuccess) && NcclClock::now() < end) {
    if (shared_.api.CommGetAsyncError(comm_, &r) != kSuccess || r == kSuccess) break;
    if (shared_.host.news().is_set()) break;
    patience.rest();
  }
  (void)(r == kSuccess ? shared_.api.CommDestroy(comm_) : shared_.api.CommAbort(comm_));
}

void Channel::await_turn(int64_t number) {
  Patience patience;
  Grace grace(shared_.grace_s);
  while (next_.load() != number) {
    const Failure& news = shared_.host.news();
    if (!news.is_set() || grace.over(news)) look();
    patience.rest();
  }
}

std::string Channel::said(Result r) {
  const char* text = shared_.api.GetErrorString(r);
  const char* last = comm_ ? shared_.api.GetLastError(comm_) : nullptr;
  return fmt::format("{} ({}){}{}", text ? text : "an error without a name", int(r),
                     last && *last ? "; " : "", last ? last : "");
}

void Channel::raise_if_aborted() {
  if (!aborted_) return;
  if (shared_.host.news().is_set()) shared_.host.news().raise();
  run_failed("{}: its NCCL communicator was aborted", what_);
}

void Channel::give_up() {
  std::lock_guard lock(mutex_);
  if (aborted_ || !comm_) return;
  aborted_ = true;
  queue_->enter();
  (void)shared_.api.CommAbort(comm_);
}

// A peer's end reaches NCCL before its reason reaches us: the reason, which names the rank, is waited for.
void Channel::fail(Result r) {
  const std::string why = said(r);
  const auto end = NcclClock::now() + kNewsTime;
  while (!shared_.host.news().is_set() && NcclClock::now() < end)
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  give_up();
  if (shared_.host.news().is_set()) shared_.host.news().raise();
  run_failed("{}: NCCL says: {}", what_, why);
}

Result Channel::async_error() {
  std::lock_guard lock(mutex_);
  raise_if_aborted();
  Result r = kSuccess;
  const Result asked = shared_.api.CommGetAsyncError(comm_, &r);
  return asked == kSuccess ? r : asked;
}

void Channel::look() {
  if (shared_.host.news().is_set()) {
    give_up();
    shared_.host.news().raise();
  }
  const Result r = async_error();
  if (r != kSuccess && r != kInProgress) fail(r);
}

void Channel::ready() {
  Patience patience;
  Grace grace(shared_.grace_s);
  const auto end = NcclClock::now() + std::chrono::duration<double>(shared_.meet_s);
  for (Result r; (r = async_error()) != kSuccess; patience.rest()) {
    if (r != kInProgress) fail(r);
    if (grace.over(shared_.host.news())) look();
    if (NcclClock::now() > end) {
      give_up();
      run_failed("{}: NCCL did not bring its ranks together in {:.0f} s", what_, shared_.meet_s);
    }
  }
}

// Before a communicator that is in progress comes out of it, nothing else may be called there. A rank that
// came out of it first, and failed on the result, may be known here already: the call still ends.
Result Channel::started(Result r) {
  Patience patience;
  Grace grace(shared_.grace_s);
  const auto end = NcclClock::now() + std::chrono::duration<double>(shared_.meet_s);
  while (r == kInProgress) {
    const bool late = NcclClock::now() > end;
    if (late || grace.over(shared_.host.news())) {
      aborted_ = true;
      (void)shared_.api.CommAbort(comm_);
      if (!late) shared_.host.news().raise();
      run_failed(
          "{}: a call has not begun for {:.0f} s: another rank has not made it, or has it of memory of the "
          "host",
          what_, shared_.meet_s);
    }
    patience.rest();
    if (const Result asked = shared_.api.CommGetAsyncError(comm_, &r); asked != kSuccess) r = asked;
  }
  return r;
}

void Channel::issue_together(std::span<Share> shares,
                             const std::function<Result(size_t, Comm, CudaStream)>& f) {
  if (shares.empty()) return;
  std::deque<Turn> turns;
  for (const Share& s : shares) turns.emplace_back(*s.channel, s.number, s.count);
  Channel* wrong = shares[0].channel;
  const Api& api = wrong->shared_.api;
  Result r = kSuccess;
  {
    std::deque<std::unique_lock<std::mutex>> locks;
    for (const Share& s : shares) {
      locks.emplace_back(s.channel->mutex_);
      s.channel->raise_if_aborted();
      s.channel->queue_->enter();
    }
    r = api.GroupStart();
    if (r == kSuccess) {
      for (size_t i = 0; i < shares.size() && r == kSuccess; i++) {
        Channel& c = *shares[i].channel;
        r = f(i, c.comm_, static_cast<CudaStream>(c.queue_->handle()));
        if (r != kSuccess) wrong = &c;
      }
      const Result end = api.GroupEnd();  // also where a call failed: a group is ended once begun
      if (r == kSuccess) r = end;
    }
    // All come out of it together, when the peers of all are there.
    for (size_t i = 0; i < shares.size() && (r == kSuccess || r == kInProgress); i++)
      if (const Result its = shares[i].channel->started(r); its != kSuccess)
        r = its, wrong = shares[i].channel;
    if (r == kInProgress) r = kSuccess;
    if (r == kSuccess)
      for (Share& s : shares) s.mark = s.channel->queue_->mark();
  }
  if (r != kSuccess) wrong->fail(r);
}

void Channel::wait(int64_t mark) {
  Patience patience;
  queue_->enter();
  Grace grace(shared_.grace_s);
  while (!queue_->passed(mark)) {
    const Failure& news = shared_.host.news();
    if (!news.is_set() || grace.over(news)) look();
    patience.rest();
  }
}

void Channel::look_after() {
  const int64_t mark = left_;
  if (mark == 0) return;
  queue_->enter();
  if (queue_->passed(mark)) return;
  const Failure& news = shared_.host.news();
  if (!news.is_set() || left_grace_.over(news)) look();
}

void Channel::use(const std::byte* p) {
  if (!shared_.api.CommRegister) return;
  const DeviceRangeOf range = device_range_of(p);
  if (!range.begin) return;
  std::lock_guard lock(mutex_);
  for (const Registered& r : registered_)
    if (r.range == range.number) return;
  raise_if_aborted();
  void* handle = nullptr;  // where NCCL does not want the range it copies, as ever
  Result r =
      shared_.api.CommRegister(comm_, const_cast<std::byte*>(range.begin), size_t(range.bytes), &handle);
  registered_.push_back({range.number, r == kSuccess ? handle : nullptr});
}

}  // namespace trireme::nccl
