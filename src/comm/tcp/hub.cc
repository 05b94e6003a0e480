#include "comm/tcp/hub.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <deque>
#include <map>

#include "base/no_signals.h"
#include "comm/tcp/answer.h"

namespace trireme::tcp {
namespace {

using HubClock = std::chrono::steady_clock;

double seconds_since(HubClock::time_point t) {
  return std::chrono::duration<double>(HubClock::now() - t).count();
}

}  // namespace

struct Connection {
  explicit Connection(Socket s) : socket(std::move(s)), reader(kMostHello) {
    ::fcntl(socket.fd(), F_SETFL, ::fcntl(socket.fd(), F_GETFL) | O_NONBLOCK);
  }
  Socket socket;
  FrameReader reader;
  int rank = -1;         // unknown before it has proved that it belongs to the job
  bool own = false;      // rank 0's, in this process
  bool greeted = false;  // challenged: hello and nonce are set
  Hello hello;
  Digest nonce{};
  short ready = POLLIN;                    // events of poll(); a new connection is served at once
  bool said_bye = false, closing = false;  // closing: when all has been sent
  std::vector<std::byte> out;
  size_t out_at = 0;
  HubClock::time_point since = HubClock::now();
};

// A collective whose parts come in.
struct Gathering {
  std::vector<Frame> frames;  // by place
  std::vector<int> ranks;     // by place; -1: not yet
  int there = 0;
};

std::string ranks_text(std::span<const int> r) {
  std::string text;
  for (size_t i = 0; i < r.size();) {
    size_t j = i;
    while (j + 1 < r.size() && r[j + 1] == r[j] + 1) j++;
    text += (text.empty() ? "" : ", ") + std::to_string(r[i]);
    if (j > i) text += (j > i + 1 ? " to " : ", ") + std::to_string(r[j]);
    i = j + 1;
  }
  return text;
}

class Hub::Server {
 public:
  Server(Socket listener, Socket own, const HubOptions& o)
      : listener_(std::move(listener)), options_(o), by_rank_(size_t(o.world)) {
    ::fcntl(listener_.fd(), F_SETFL, ::fcntl(listener_.fd(), F_GETFL) | O_NONBLOCK);
    connections_.push_back(std::make_unique<Connection>(std::move(own)));
    connections_.back()->own = true;
  }

  void run() {
    while (!over()) {
      wait();
      if (listener_) take_strangers();
      for (size_t i = 0; i < connections_.size(); i++) serve(*connections_[i]);
      std::erase_if(connections_, [](const auto& c) { return !c->socket; });
      if (!met_) look_at_the_clock();
    }
  }

 private:
  static constexpr double kHelloSeconds = 10;     // for a connection to prove that it belongs to the job
  static constexpr double kSilentSeconds = 0.05;  // from then on it makes room for another one
  size_t most_strangers() const { return 512 + size_t(options_.world); }

  bool over() {
    if (connections_.empty()) return true;
    if (!left_ &&
        std::none_of(connections_.begin(), connections_.end(), [](auto& c) { return c->rank == 0; }) &&
        (met_ || ended_))
      left_ = HubClock::now();
    return left_ && seconds_since(*left_) > options_.linger_s;
  }

  void wait() {
    polled_.clear();
    for (const auto& c : connections_)
      polled_.push_back({c->socket.fd(), short(POLLIN | (c->out.empty() ? 0 : POLLOUT)), 0});
    if (listener_ && !full_) polled_.push_back({listener_.fd(), POLLIN, 0});
    (void)::poll(polled_.data(), nfds_t(polled_.size()), full_ ? 10 : 100);
    for (size_t i = 0; i < connections_.size(); i++) connections_[i]->ready = polled_[i].revents;
  }

  bool is_stranger(const Connection& c) const { return c.rank < 0 && !c.own && c.socket; }
  // Closes the oldest connection that has proved nothing. False: none is old enough to have had its chance.
  bool make_room() {
    for (const auto& c : connections_) {
      if (!is_stranger(*c)) continue;
      if (seconds_since(c->since) < kSilentSeconds) return false;
      c->socket.close();
      return true;
    }
    return false;
  }
  // A rank is taken up at once, however many connections are silent, and whether files are left or not.
  void take_strangers() {
    size_t there = size_t(
        std::count_if(connections_.begin(), connections_.end(), [&](auto& c) { return is_stranger(*c); }));
    full_ = false;
    for (int i = 0; i < 256; i++) {  // then the others have their turn
      if (there >= most_strangers()) {
        full_ = !make_room();
        if (full_) return;
        there--;
      }
      Socket s(::accept4(listener_.fd(), nullptr, nullptr, SOCK_CLOEXEC));
      if (!s) {
        if (errno != EMFILE && errno != ENFILE && errno != ENOBUFS && errno != ENOMEM) return;
        full_ = !make_room();
        if (full_) return;
        there--;
        continue;
      }
      tune(s);
      connections_.push_back(std::make_unique<Connection>(std::move(s)));
      there++;
    }
  }

  void serve(Connection& c) {
    if (!flush(c) || !c.socket) return;
    if (c.closing) {
      if (c.out.empty()) c.socket.close();
      return;
    }
    if (is_stranger(c) && seconds_since(c.since) > kHelloSeconds) return c.socket.close();
    if (c.ready == 0) return;
    for (int i = 0; i < 64 && c.socket; i++) {  // then others have their turn
      const ssize_t n = ::recv(c.socket.fd(), buffer_.data(), buffer_.size(), MSG_DONTWAIT);
      if (n < 0 && (errno == EAGAIN || errno == EINTR)) return;
      if (n <= 0) return lost(c);
      c.reader.put({buffer_.data(), size_t(n)});
      try {
        while (std::optional<Frame> f = c.reader.next()) {
          handle(c, *f);
          if (c.closing) return;
        }
      } catch (const Error& e) {
        return refuse(c, e.what(), e.fault);
      }
    }
  }

  bool flush(Connection& c) {
    while (c.out_at < c.out.size()) {
      const ssize_t n = ::send(c.socket.fd(), c.out.data() + c.out_at, c.out.size() - c.out_at,
                               MSG_NOSIGNAL | MSG_DONTWAIT);
      if (n < 0 && (errno == EAGAIN || errno == EINTR)) return true;
      if (n <= 0) {
        c.out.clear(), c.out_at = 0;
        lost(c);
        return false;
      }
      c.out_at += size_t(n);
    }
    c.out.clear(), c.out_at = 0;
    return true;
  }

  void send(Connection& c, const FrameHead& head, std::span<const std::byte> body) {
    const std::vector<std::byte> all = bytes_of(head, body);
    c.out.insert(c.out.end(), all.begin(), all.end());
    flush(c);
  }
  void send(int rank, const FrameHead& head, std::span<const std::byte> body) {
    if (Connection* c = by_rank_[size_t(rank)]) send(*c, head, body);
  }

  // Why a connection ends: it is told, and of a rank that is in the others are.
  void refuse(Connection& c, const std::string& why, Fault fault) {
    c.closing = true;
    if (leave(c)) announce_death(c.rank, why);
    send(c, {.kind = FrameKind::refusal, .number = int64_t(fault)}, std::as_bytes(std::span(why)));
  }

  void lost(Connection& c) {
    if (!c.socket) return;
    c.socket.close();
    if (leave(c) && !c.said_bye)
      announce_death(c.rank, "its process is gone: its connection ended without a word");
  }
  // Is it its rank's connection? It is no more: another of the rank may have come since.
  bool leave(const Connection& c) {
    if (c.rank < 0 || by_rank_[size_t(c.rank)] != &c) return false;
    by_rank_[size_t(c.rank)] = nullptr;
    if (!met_) here_--;
    return true;
  }
  void announce_death(int rank, const std::string& why) {
    if (!met_) return;  // it may come again
    const std::vector<std::byte> body = body_of(News{.rank = rank, .dead = true, .why = why});
    for (int r = 0; r < options_.world; r++) send(r, {.kind = FrameKind::news, .from = rank}, body);
  }

  // ---- before all are here ----

  void handle(Connection& c, const Frame& f) {
    if (c.rank < 0) return c.greeted ? take_proof(c, f) : greet(c, f);
    if (!met_) bad_request("rendezvous: rank {} speaks before all are here", c.rank);
    switch (f.head.kind) {
      case FrameKind::call:
        return gather(c, f);
      case FrameKind::mail:
      case FrameKind::beat: {
        if (f.head.to < 0 || f.head.to >= options_.world)
          bad_request("rendezvous: rank {} writes to rank {} of {}", c.rank, f.head.to, options_.world);
        FrameHead head = f.head;
        head.from = c.rank;
        return send(head.to, head, f.body);
      }
      case FrameKind::news: {
        (void)parse_news(f, options_.world);
        FrameHead head = f.head;
        head.from = c.rank;
        for (int r = 0; r < options_.world; r++)
          if (r != c.rank) send(r, head, f.body);
        return;
      }
      case FrameKind::bye:
        c.said_bye = true;
        return;
      default:
        bad_request("rendezvous: rank {} sends what only rank 0 does", c.rank);
    }
  }

  void greet(Connection& c, const Frame& f) {
    c.hello = parse_hello(f);
    const Hello& h = c.hello;
    if (h.job != options_.job)
      environment_failed(
          "rendezvous: rank {} is of another job, which has this MASTER_ADDR and MASTER_PORT too", h.rank);
    if (h.world != options_.world)
      bad_request("rendezvous: rank {} says that there are {} ranks, and rank 0 that there are {}", h.rank,
                  h.world, options_.world);
    if (options_.secret.empty()) return let_in(c);
    c.greeted = true;
    random_bytes(c.nonce);
    send(c, {.kind = FrameKind::challenge},
         body_of(Challenge{c.nonce, proof_of(Side::hub, options_.secret, h, c.nonce)}));
  }

  void take_proof(Connection& c, const Frame& f) {
    const bool right = f.head.kind == FrameKind::proof &&
                       same_digest(parse_proof(f), proof_of(Side::rank, options_.secret, c.hello, c.nonce));
    if (!right) bad_request("{}", kOtherSecret);
    let_in(c);
  }

  void let_in(Connection& c) {
    const int rank = c.hello.rank;
    if (met_ || by_rank_[size_t(rank)])
      environment_failed("rendezvous: rank {} is here already: two processes have this rank", rank);
    c.rank = rank;
    c.reader.allow(kMostBody);
    by_rank_[size_t(rank)] = &c;
    if (++here_ == options_.world) welcome();
  }

  void welcome() {
    met_ = true;
    listener_.close();
    for (const auto& c : connections_)
      if (is_stranger(*c) && !c->closing) c->socket.close();
    std::vector<Welcome> all;  // before any is sent: a rank may turn out to be gone then
    for (int r = 0; r < options_.world; r++) {
      Welcome& w = all.emplace_back(Welcome{.world = options_.world, .local_rank = 0, .local_ranks = 0});
      const auto& mine = by_rank_[size_t(r)]->hello.machine;
      const std::string_view host = host_of(mine);
      for (int o = 0; o < options_.world; o++) {
        const auto& other = by_rank_[size_t(o)]->hello.machine;
        w.local_ranks += std::strcmp(other.data(), mine.data()) == 0;
        w.local_rank += o < r && host_of(other) == host;
      }
    }
    for (int r = 0; r < options_.world; r++)
      send(r, {.kind = FrameKind::welcome, .to = r}, body_of(all[size_t(r)]));
  }
  static std::string_view host_of(const std::array<char, 112>& machine) {
    const std::string_view all(machine.data());
    return all.substr(0, all.find(' '));
  }

  void look_at_the_clock() {
    if (ended_ || seconds_since(begin_) < options_.timeout_s) return;
    ended_ = true;
    std::vector<int> missing;
    for (int r = 0; r < options_.world; r++)
      if (!by_rank_[size_t(r)]) missing.push_back(r);
    const std::string why =
        fmt::format("rendezvous: after {:.0f} s rank{} {} of {} {} not come", options_.timeout_s,
                    missing.size() == 1 ? "" : "s", ranks_text(missing), options_.world,
                    missing.size() == 1 ? "has" : "have");
    listener_.close();
    for (auto& c : connections_) refuse(*c, why, Fault::environment);
  }

  // ---- collectives ----

  void gather(Connection& c, const Frame& f) {
    const Call call = parse_call(f, options_.world);
    const size_t size = size_t(call.head.size), place = size_t(call.head.place);
    Gathering& g = gatherings_[{f.head.key, f.head.number}];
    if (g.ranks.empty()) g.ranks.assign(size, -1), g.frames.resize(size);
    if (g.ranks.size() != size || g.ranks[place] >= 0)
      bad_request("rendezvous: rank {} takes place {} of {} in group {}, which is not there", c.rank, place,
                  size, call.head.group.data());
    g.frames[place] = f, g.ranks[place] = c.rank;
    if (++g.there < int(size)) return;
    const Gathering whole = std::move(g);
    gatherings_.erase({f.head.key, f.head.number});
    answer_all(whole, f.head);
  }

  void answer_all(const Gathering& g, const FrameHead& head) {
    std::vector<Call> parts;
    for (const Frame& part : g.frames) parts.push_back(parse_call(part, options_.world));
    FrameHead back{.kind = FrameKind::result, .key = head.key, .number = head.number};
    try {
      const auto results = answer(parts, parts[0].head.group.data(), g.ranks);
      for (size_t p = 0; p < results.size(); p++) send(g.ranks[p], back, results[p]);
    } catch (const Error& e) {
      const std::string why = e.what();
      back.kind = FrameKind::verdict;
      for (int r : g.ranks) send(r, back, std::as_bytes(std::span(why)));
    }
  }

  Socket listener_;
  const HubOptions options_;
  std::vector<std::unique_ptr<Connection>> connections_;
  std::vector<Connection*> by_rank_;
  std::vector<pollfd> polled_;
  std::map<std::pair<uint64_t, int64_t>, Gathering> gatherings_;
  std::vector<std::byte> buffer_ = std::vector<std::byte>(size_t(1) << 16);
  int here_ = 0;
  bool met_ = false, ended_ = false;
  bool full_ = false;  // more wait, and no connection is old enough to make room
  const HubClock::time_point begin_ = HubClock::now();
  std::optional<HubClock::time_point> left_;
};

Hub::Hub(Socket listener, Socket own, const HubOptions& options)
    : server_(std::make_unique<Server>(std::move(listener), std::move(own), options)) {
  NoSignals blocked;  // they are the main thread's
  thread_ = std::thread([s = server_.get()] { s->run(); });
}

Hub::~Hub() {
  thread_.join();
}

}  // namespace trireme::tcp
