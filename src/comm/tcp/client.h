// A rank's connection to the hub: what it sends, and what has come for it.
#pragma once
#include <condition_variable>
#include <deque>
#include <map>
#include <mutex>
#include <set>
#include <thread>

#include "comm/failure.h"
#include "comm/tcp/sockets.h"
#include "comm/watch/beat.h"

namespace trireme::tcp {

class Client {
 public:
  // Greets, and returns when all ranks are here.
  Client(Socket, const Hello&, double timeout_s);
  Client(const Client&) = delete;
  ~Client();  // says bye
  int rank() const { return rank_; }
  int size() const { return welcome_.world; }
  const Welcome& welcome() const { return welcome_; }

  void send(const FrameHead&, std::span<const std::byte> body);  // any thread
  // Waits for what the hub makes of a call, on any thread; throws its verdict, or the world's failure.
  std::vector<std::byte> result(uint64_t key, int64_t number);
  // The next mail from a rank under a key. wait: until it is there; throws the world's failure.
  std::optional<std::vector<std::byte>> mail(int from, uint64_t key, bool wait);

  const Failure& failure() const { return failure_; }
  void fail(int rank, std::string_view why, bool certain, int fault);
  // The lowest rank that said with which exit code it leaves, after having waited so long; -1 = none.
  int lowest_leaving(double seconds, int below);
  int fault_of(int rank);
  bool is_dead(int rank);
  void copy_beats(std::span<Beat>);

 private:
  void listen();
  void take(Frame);
  template <class Done>
  void wait_for(std::unique_lock<std::mutex>&, const Done&);

  Socket socket_;
  int rank_;
  Welcome welcome_;
  FrameReader reader_;
  std::mutex sending_;
  std::mutex mutex_;  // of all below
  std::condition_variable changed_;
  std::map<std::pair<uint64_t, int64_t>, Frame> results_;
  std::map<std::pair<int, uint64_t>, std::deque<std::vector<std::byte>>> mail_;
  std::map<int, int> faults_;
  std::set<int> dead_;
  std::vector<Beat> beats_;
  bool leaving_ = false;
  Failure failure_;
  std::thread thread_;
};

}  // namespace trireme::tcp
