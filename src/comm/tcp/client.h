// A rank's connection to the hub: what it sends, and what has come for it.
#pragma once
#include <chrono>
#include <condition_variable>
#include <deque>
#include <map>
#include <mutex>
#include <set>
#include <thread>

#include "base/error.h"
#include "comm/failure.h"
#include "comm/tcp/sockets.h"
#include "comm/watch/beat.h"

namespace trireme::tcp {

// The hub closed a rank's connection before the meeting. The rank may connect again.
struct HubClosed : Error {
  using Error::Error;
};

class Client {
 public:
  // Greets, proves the secret and has the hub prove it, and returns when all ranks are here. secret: empty:
  // neither. Throws HubClosed if the hub closed the connection without a word.
  Client(Socket, Hello, double timeout_s, std::string_view secret = {});
  Client(const Client&) = delete;
  ~Client();  // says bye
  int rank() const { return rank_; }
  int size() const { return welcome_.world; }
  const Welcome& welcome() const { return welcome_; }

  void send(const FrameHead&, std::span<const std::byte> body);  // any thread; may wait for the hub
  // The same for at most so long, 0 = not at all. False: it did not leave whole; nothing of it was sent, or
  // the next who sends sends the rest of it first.
  bool send_within(double seconds, const FrameHead&, std::span<const std::byte> body);
  // Waits for what the hub makes of a call, on any thread; throws its verdict, or the world's failure.
  std::vector<std::byte> result(uint64_t key, int64_t number);
  // The next mail from a rank under a key. wait: until it is there; throws the world's failure.
  std::optional<std::vector<std::byte>> mail(int from, uint64_t key, bool wait);

  const Failure& failure() const { return failure_; }
  // within_s: the others are told if that can be had so soon; without, it waits for the hub.
  void fail(int rank, std::string_view why, bool certain, int fault, std::optional<double> within_s = {});
  // The lowest rank that said with which exit code it leaves, after having waited so long; -1 = none.
  int lowest_leaving(double seconds, int below);
  int fault_of(int rank);
  bool is_dead(int rank);
  bool accused();  // others said first that this rank failed
  void copy_beats(std::span<Beat>);

 private:
  using SendClock = std::chrono::steady_clock;
  Frame meet(const Hello&, double timeout_s, std::string_view secret);
  void push_rest(SendClock::time_point end);  // under sending_
  void listen();
  void take(Frame);
  template <class Done>
  void wait_for(std::unique_lock<std::mutex>&, const Done&);

  Socket socket_;
  int rank_;
  Welcome welcome_;
  FrameReader reader_;
  std::mutex sending_;
  std::vector<std::byte> rest_;  // under sending_: of a frame of which a part has left
  std::mutex mutex_;             // of all below
  std::condition_variable changed_;
  std::map<std::pair<uint64_t, int64_t>, Frame> results_;
  std::map<std::pair<int, uint64_t>, std::deque<std::vector<std::byte>>> mail_;
  std::map<int, int> faults_;
  std::set<int> dead_;
  std::vector<Beat> beats_;
  bool leaving_ = false, accused_ = false;
  Failure failure_;
  std::thread thread_;
};

}  // namespace trireme::tcp
