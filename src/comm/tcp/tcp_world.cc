#include "comm/tcp/tcp_world.h"

#include <sched.h>
#include <unistd.h>

#include <chrono>
#include <numeric>
#include <thread>

#include "base/file.h"
#include "base/interrupt.h"
#include "comm/group.h"
#include "comm/tcp/hub.h"
#include "comm/tcp/tcp_comm.h"

namespace trireme {
namespace tcp {
namespace {

// Host name, a space, and which cores this process may use: launchers may have given each rank its own.
void describe_machine(std::array<char, 112>& to) {
  std::array<char, 64> host{};
  (void)::gethostname(host.data(), host.size() - 1);
  cpu_set_t mine;
  CPU_ZERO(&mine);
  sched_getaffinity(0, sizeof mine, &mine);
  fmt::format("{} {:x}", host.data(), hash64(&mine, sizeof mine)).copy(to.data(), to.size() - 1);
}

class TcpBoard final : public BeatBoard {
 public:
  explicit TcpBoard(Client& c) : client_(c), all_(size_t(c.size())) { client_.copy_beats(all_); }
  void exchange(std::span<const Beat> mine) override {
    client_.copy_beats(all_);
    const int last = client_.size() - 1;
    for (const Beat& b : mine) {
      own_ = b;
      for (int to : {0, last})
        if (to != client_.rank() && (to == 0 || client_.rank() == 0))
          // One that would have to wait is left out: the next says more, and after the last there is none.
          (void)client_.send_within(b.left ? 0.5 : 0,
                                    {.kind = FrameKind::beat, .from = client_.rank(), .to = to},
                                    std::as_bytes(std::span(&b, 1)));
    }
    all_[size_t(client_.rank())] = own_;
  }
  std::span<const Beat> all() const override { return all_; }
  bool judges() const override { return client_.rank() == 0 || client_.rank() == client_.size() - 1; }
  bool says(const Verdict& v) const override {
    return client_.rank() == 0 || (v.rank == 0 && v.fate == Fate::dead);
  }

 private:
  Client& client_;
  Beat own_;
  std::vector<Beat> all_;
};

class TcpFactory final : public CommFactory {
 public:
  TcpFactory(Client& client, std::map<uint64_t, uint64_t>& made, Device* device)
      : client_(client), made_(made), device_(device) {
    std::vector<int> all(size_t(client.size()));
    std::iota(all.begin(), all.end(), 0);
    control_ = communicator(all, "control", nullptr);
  }
  int rank() const override { return client_.rank(); }
  int world() const override { return client_.size(); }
  std::unique_ptr<Communicator> split(std::span<const int> ranks, std::string_view name) override {
    return communicator(ranks, name, device_);
  }
  void fail(std::string_view why) override { client_.fail(rank(), why, true, 0); }
  Communicator& control() override { return *control_; }

 private:
  std::unique_ptr<Communicator> communicator(std::span<const int> ranks, std::string_view name,
                                             Device* device) {
    const int place = place_in_group(ranks, rank(), world());
    if (client_.failure().is_set()) client_.failure().raise();
    const uint64_t key = group_key(ranks, name, made_[group_key(ranks, name, 0)]++);
    return std::make_unique<TcpCommunicator>(client_, key, name, ranks, place, device);
  }

  Client& client_;
  std::map<uint64_t, uint64_t>& made_;
  Device* device_;
  std::unique_ptr<Communicator> control_;
};

class TcpWorld final : public ProcessWorld {
 public:
  TcpWorld(const TcpOptions& o, Socket listener) {
    if (o.size < 1 || o.rank < 0 || o.rank >= o.size)
      bad_request("rendezvous: rank {} of {} ranks; right are 0 to {}", o.rank, o.size, o.size - 1);
    Hello hello{.rank = o.rank, .world = o.size, .job = o.job};
    describe_machine(hello.machine);
    if (o.rank == 0) {
      make_room_for(o.size);
      make_room_for_strangers(o.size);
      if (!listener) listener = listen_at(o.listen.empty() ? o.host : o.listen, o.port);
      auto [mine, hubs] = socket_pair();
      hub_ = std::make_unique<Hub>(std::move(listener), std::move(hubs),
                                   HubOptions{.world = o.size,
                                              .job = o.job,
                                              .secret = o.secret,
                                              .timeout_s = o.timeout_s,
                                              .linger_s = o.linger_s});
      client_ = std::make_unique<Client>(std::move(mine), hello, o.timeout_s + 30, o.secret);
      return;
    }
    // Rank 0 may close a connection that was slow to prove itself while many others came.
    const Deadline end = Deadline::after(o.timeout_s);
    while (!client_) {
      Socket to_hub = connect_to(o.host, o.port, std::max(0.0, end.seconds_left()));
      tune(to_hub);
      try {
        client_ = std::make_unique<Client>(std::move(to_hub), hello, o.timeout_s + 30, o.secret);
      } catch (const HubClosed&) {
        if (end.passed()) throw;
        std::this_thread::sleep_for(std::chrono::milliseconds(200));
      }
    }
  }
  ~TcpWorld() override {
    client_.reset();  // then the hub, when all have left
  }
  int rank() const override { return client_->rank(); }
  int size() const override { return client_->size(); }
  int local_ranks() const override { return client_->welcome().local_ranks; }
  int local_rank() const override { return client_->welcome().local_rank; }
  std::unique_ptr<CommFactory> factory(Device* device, const CommOptions& options) override {
    trireme::check(options, "algorithm");
    return std::make_unique<TcpFactory>(*client_, made_, device);
  }
  std::unique_ptr<BeatBoard> board() override { return std::make_unique<TcpBoard>(*client_); }

  Error end_failed(const Error& e) override {
    client_->fail(rank(), e.what(), true, int(e.fault));
    if (client_->accused()) return Error("", Fault(client_->fault_of(rank())));  // who accused it says why
    const int first = client_->failure().rank();
    if (first != rank()) {  // who told us why says it; for the dead, the lowest who lives
      if (!client_->is_dead(first)) {
        const bool there = client_->lowest_leaving(2, size()) >= 0;
        return Error(there ? "" : e.what(), Fault(client_->fault_of(first)));
      }
      int lowest = 0;
      while (lowest < rank() && client_->is_dead(lowest)) lowest++;
      return Error(lowest == rank() ? e.what() : "", Fault::environment);
    }
    const int lower = rank() > 0 ? client_->lowest_leaving(0.3, rank()) : -1;
    if (lower >= 0) return Error("", Fault(client_->fault_of(lower)));
    return Error(size() == 1 ? e.what() : fmt::format("rank {}: {}", rank(), e.what()), e.fault);
  }
  // Returns when the hub, which may end with this process, has told the others, or after two seconds: it may
  //  be the hub's process that hangs.
  void condemn(int condemned, std::string_view why, Fault fault) override {
    constexpr uint64_t kBack = 0x434f4e44454d4e;
    client_->fail(condemned, why, true, int(fault), 0.5);
    if (!client_->send_within(0.5, {.kind = FrameKind::mail, .from = rank(), .to = rank(), .key = kBack}, {}))
      return;
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(1);
    while (!client_->mail(rank(), kBack, false) && std::chrono::steady_clock::now() < end)
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }

  const Failure& news() override { return client_->failure(); }
  void fail(std::string_view why, bool certain) override { client_->fail(rank(), why, certain, 0); }
  void post(int to, uint64_t key, std::string_view bytes) override {
    require(bytes.size() <= kMostNote, "a note is short");
    client_->send({.kind = FrameKind::mail, .from = rank(), .to = to, .key = key},
                  std::as_bytes(std::span(bytes)));
  }
  std::optional<std::string> fetch(int from, uint64_t key) override {
    const auto body = client_->mail(from, key, false);
    if (!body) return {};
    return std::string(reinterpret_cast<const char*>(body->data()), body->size());
  }

 private:
  std::unique_ptr<Hub> hub_;
  std::unique_ptr<Client> client_;
  std::map<uint64_t, uint64_t> made_;  // groups, by key
};

}  // namespace
}  // namespace tcp

std::unique_ptr<ProcessWorld> join_tcp_world(const TcpOptions& options, tcp::Socket listener) {
  return std::make_unique<tcp::TcpWorld>(options, std::move(listener));
}

}  // namespace trireme
