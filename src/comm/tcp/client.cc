#include "comm/tcp/client.h"

#include <poll.h>
#include <sys/socket.h>
#include <sys/time.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>

#include "base/error.h"
#include "base/no_signals.h"
#include "comm/waiting.h"

namespace trireme::tcp {

// The frame that ends the meeting.
Frame Client::meet(const Hello& hello, double timeout_s, std::string_view secret) {
  send({.kind = FrameKind::hello, .from = rank_}, body_of(hello));
  const auto end = std::chrono::steady_clock::now() + std::chrono::duration<double>(timeout_s);
  std::vector<std::byte> bytes(4096);
  bool proved = secret.empty();
  while (true) {
    while (std::optional<Frame> f = reader_.next()) {
      if (f->head.kind != FrameKind::challenge) {
        if (!proved && f->head.kind != FrameKind::refusal)
          run_failed("rendezvous: rank 0 has not proved that it knows the secret of the job");
        return std::move(*f);
      }
      const Challenge c = parse_challenge(*f);
      if (!same_digest(c.proof, proof_of(Side::hub, secret, hello, c.nonce))) bad_request("{}", kOtherSecret);
      proved = true;
      send({.kind = FrameKind::proof, .from = rank_}, body_of(proof_of(Side::rank, secret, hello, c.nonce)));
    }
    pollfd p{socket_.fd(), POLLIN, 0};
    (void)::poll(&p, 1, 100);
    if (std::chrono::steady_clock::now() > end)
      environment_failed("rendezvous: rank 0 took rank {}'s greeting and then said nothing for {:.0f} s",
                         rank_, timeout_s);
    if (!(p.revents & (POLLIN | POLLHUP | POLLERR))) continue;
    const ssize_t n = ::recv(socket_.fd(), bytes.data(), bytes.size(), 0);
    if (n <= 0)
      throw HubClosed(
          fmt::format("rendezvous: rank 0 closed rank {}'s connection; it has ended, or is another program",
                      rank_),
          Fault::environment);
    reader_.put({bytes.data(), size_t(n)});
  }
}

Client::Client(Socket s, Hello hello, double timeout_s, std::string_view secret)
    : socket_(std::move(s)), rank_(hello.rank), reader_(kMostBody) {
  random_bytes(hello.nonce);
  const Frame first_frame = meet(hello, timeout_s, secret);
  const Frame* const first = &first_frame;
  if (first->head.kind == FrameKind::refusal) {
    const int64_t fault = first->head.number;
    throw Error(text_of(*first), fault > 0 && fault < kFaults ? Fault(fault) : Fault::run);
  }
  if (first->head.kind == FrameKind::news) {  // all were here, and a rank was lost while they were told so
    const News n = parse_news(*first, hello.world);
    run_failed("rank {} failed: {}", n.rank, n.why);
  }
  if (first->head.kind != FrameKind::welcome) run_failed("rendezvous: rank 0 answers with no welcome");
  welcome_ = parse_welcome(*first);
  if (welcome_.world != hello.world)
    run_failed("rendezvous: rank 0 welcomes to a world of {} ranks, and this is one of {}", welcome_.world,
               hello.world);
  beats_.resize(size_t(size()));
  for (int r = 0; r < size(); r++) beats_[size_t(r)].rank = r;
  const timeval look{.tv_sec = 1, .tv_usec = 0};
  ::setsockopt(socket_.fd(), SOL_SOCKET, SO_RCVTIMEO, &look, sizeof look);
  NoSignals blocked;
  thread_ = std::thread([this] { listen(); });
}

Client::~Client() {
  {
    std::lock_guard lock(mutex_);
    leaving_ = true;
  }
  send({.kind = FrameKind::bye, .from = rank_}, {});
  // The hub closes its end when it has seen ours: were ours closed while bytes lie in it, the bye could be
  // lost.
  ::shutdown(socket_.fd(), SHUT_WR);
  thread_.join();
}

void Client::send(const FrameHead& head, std::span<const std::byte> body) {
  const std::vector<std::byte> all = bytes_of(head, body);
  std::lock_guard lock(sending_);
  (void)send_all(socket_.fd(), rest_);  // where the hub is gone, listen() notices
  rest_.clear();
  (void)send_all(socket_.fd(), all);
}

// Sends what fits of rest_ until then, and keeps the others.
void Client::push_rest(SendClock::time_point end) {
  size_t at = 0;
  while (at < rest_.size()) {
    const ssize_t n = ::send(socket_.fd(), rest_.data() + at, rest_.size() - at, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (n > 0) {
      at += size_t(n);
    } else if (errno == EAGAIN) {
      const auto left = std::chrono::ceil<std::chrono::milliseconds>(end - SendClock::now()).count();
      if (left <= 0) break;
      pollfd p{socket_.fd(), POLLOUT, 0};
      (void)::poll(&p, 1, int(left));
    } else if (errno != EINTR) {  // the hub is gone
      at = rest_.size();
    }
  }
  rest_.erase(rest_.begin(), rest_.begin() + std::ptrdiff_t(at));
}

bool Client::send_within(double seconds, const FrameHead& head, std::span<const std::byte> body) {
  const auto end = SendClock::now() +
                   std::chrono::duration_cast<SendClock::duration>(std::chrono::duration<double>(seconds));
  std::unique_lock lock(sending_, std::try_to_lock);
  for (; !lock && SendClock::now() < end; (void)lock.try_lock())
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  if (!lock) return false;
  push_rest(end);
  if (!rest_.empty()) return false;
  rest_ = bytes_of(head, body);
  const size_t whole = rest_.size();
  push_rest(end);
  const bool left = rest_.empty();
  if (rest_.size() == whole) rest_.clear();  // nothing of it went: it need not
  return left;
}

void Client::listen() {
  std::vector<std::byte> bytes(size_t(1) << 16);
  std::string why = "its connection ended without a word";
  int looks_left = 5;  // seconds for a hub that hangs, once we leave
  try {
    while (true) {
      while (std::optional<Frame> f = reader_.next()) take(std::move(*f));
      const ssize_t n = ::recv(socket_.fd(), bytes.data(), bytes.size(), 0);
      if (n < 0 && (errno == EINTR || errno == EAGAIN)) {
        std::lock_guard lock(mutex_);
        if (leaving_ && looks_left-- == 0) break;
        continue;
      }
      if (n <= 0) break;
      reader_.put({bytes.data(), size_t(n)});
    }
  } catch (const Error& e) {
    why = e.what();
  }
  std::lock_guard lock(mutex_);
  if (!leaving_) {
    failure_.set(0, "its process is gone: " + why, false);
    dead_.insert(0);
  }
  changed_.notify_all();
}

void Client::take(Frame f) {
  const FrameHead h = f.head;
  if (h.from < 0 || h.from >= size()) bad_request("rendezvous: a message from rank {} of {}", h.from, size());
  std::lock_guard lock(mutex_);
  switch (h.kind) {
    case FrameKind::result:
    case FrameKind::verdict:
      results_[{h.key, h.number}] = std::move(f);
      break;
    case FrameKind::mail:
      mail_[{h.from, h.key}].push_back(std::move(f.body));
      break;
    case FrameKind::news: {
      const News n = parse_news(f, size());
      accused_ |= n.rank == rank_ && !failure_.is_set();
      failure_.set(n.rank, n.why, n.certain);
      if (n.fault != 0) faults_[n.rank] = n.fault;
      if (n.dead) dead_.insert(n.rank);
      break;
    }
    case FrameKind::beat:
      if (f.body.size() != sizeof(Beat)) bad_request("rendezvous: a beat of {} bytes", f.body.size());
      std::memcpy(&beats_[size_t(h.from)], f.body.data(), sizeof(Beat));
      beats_[size_t(h.from)].rank = h.from;
      break;
    case FrameKind::refusal:
      failure_.set(rank_, text_of(f), true);
      break;
    default:
      bad_request("rendezvous: rank 0 sends a message of kind {}", int(h.kind));
  }
  changed_.notify_all();
}

template <class Done>
void Client::wait_for(std::unique_lock<std::mutex>& lock, const Done& done) {
  while (!changed_.wait_for(lock, kWaitReport, [&] { return done() || failure_.is_set(); })) still_waiting();
  if (!done()) failure_.raise();
}

std::vector<std::byte> Client::result(uint64_t key, int64_t number) {
  std::unique_lock lock(mutex_);
  wait_for(lock, [&] { return results_.count({key, number}) > 0; });
  auto it = results_.find({key, number});
  Frame f = std::move(it->second);
  results_.erase(it);
  if (f.head.kind == FrameKind::verdict) run_failed("{}", text_of(f));
  return std::move(f.body);
}

std::optional<std::vector<std::byte>> Client::mail(int from, uint64_t key, bool wait) {
  std::unique_lock lock(mutex_);
  auto there = [&] { return mail_.count({from, key}) > 0; };
  if (wait) wait_for(lock, there);
  if (!there()) return {};
  auto it = mail_.find({from, key});
  std::vector<std::byte> body = std::move(it->second.front());
  it->second.pop_front();
  if (it->second.empty()) mail_.erase(it);
  return body;
}

void Client::fail(int rank, std::string_view why, bool certain, int fault, std::optional<double> within_s) {
  {
    std::lock_guard lock(mutex_);
    const bool mine = failure_.set(rank, why, certain);
    if (!mine && (fault == 0 || failure_.rank() != rank)) return;
    changed_.notify_all();
  }
  const FrameHead head{.kind = FrameKind::news, .from = rank_};
  const auto body = body_of(News{.rank = rank, .fault = fault, .certain = certain, .why = std::string(why)});
  within_s ? (void)send_within(*within_s, head, body) : send(head, body);
}

int Client::lowest_leaving(double seconds, int below) {
  std::unique_lock lock(mutex_);
  auto there = [&] { return !faults_.empty() && faults_.begin()->first < below; };
  changed_.wait_for(lock, std::chrono::duration<double>(seconds), there);
  return there() ? faults_.begin()->first : -1;
}

int Client::fault_of(int rank) {
  std::lock_guard lock(mutex_);
  auto it = faults_.find(rank);
  return it == faults_.end() ? int(Fault::run) : it->second;
}

bool Client::accused() {
  std::lock_guard lock(mutex_);
  return accused_;
}

bool Client::is_dead(int rank) {
  std::lock_guard lock(mutex_);
  return dead_.count(rank) > 0;
}

void Client::copy_beats(std::span<Beat> to) {
  std::lock_guard lock(mutex_);
  std::copy_n(beats_.begin(), std::min(to.size(), beats_.size()), to.begin());
}

}  // namespace trireme::tcp
