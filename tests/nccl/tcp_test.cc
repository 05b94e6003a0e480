// The rendezvous: who is missing is named, who does not belong is turned away, and bytes are believed
// nothing.
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include <chrono>
#include <cstring>
#include <thread>

#include "comm/tcp/client.h"
#include "comm/tcp/frames.h"
#include "comm/tcp/hub.h"
#include "comm/tcp/tcp_world.h"
#include "processes.h"
#include "ranks.h"

namespace trireme {
namespace {
using namespace testing;
using tcp::FrameHead;
using tcp::FrameKind;

// What each of these joins says, "" = it met the others; all at once, rank 0 with a listener.
std::vector<std::string> join_all(std::vector<TcpOptions> all,
                                  const std::function<void(int port)>& meanwhile = {}) {
  tcp::Socket listener = tcp::listen_at(0);
  const int port = tcp::port_of(listener);
  std::vector<std::string> said(all.size());
  std::vector<std::thread> threads;
  for (size_t i = 0; i < all.size(); i++)
    threads.emplace_back([&, i] {
      try {
        all[i].port = port;
        auto world = join_tcp_world(all[i], all[i].rank == 0 ? std::move(listener) : tcp::Socket());
        EXPECT_EQ(agree_sum(world->factory(nullptr)->control(), 1), all[i].size);
      } catch (const Error& e) {
        said[i] = e.what();
      }
    });
  if (meanwhile) meanwhile(port);
  for (auto& t : threads) t.join();
  return said;
}

TEST(Rendezvous, WhoDoesNotComeIsNamedToThoseWhoDid) {
  const auto said =
      join_all({{.rank = 0, .size = 7, .timeout_s = 1}, {.rank = 2, .size = 7, .timeout_s = 1}});
  for (const std::string& s : said) EXPECT_EQ(s, "rendezvous: after 1 s ranks 1, 3 to 6 of 7 have not come");
  EXPECT_EQ(join_all({{.rank = 0, .size = 2, .timeout_s = 0.5}})[0],
            "rendezvous: after 0 s rank 1 of 2 has not come");
}

// A world larger than the files that rank 0 may open is refused before anybody waits for it; one that only
// the soft limit forbids meets.
TEST(Rendezvous, WantsAFileForEachRank) {
  const auto limited = [](rlim_t soft, rlim_t hard, int ranks) {
    return run_forked(1, [=](int) -> std::string {
      const rlimit limit{soft, hard};
      if (::setrlimit(RLIMIT_NOFILE, &limit) != 0) return "the limit cannot be set";
      tcp::make_room_for(ranks);
      rlimit now{};
      (void)::getrlimit(RLIMIT_NOFILE, &now);
      return std::to_string(now.rlim_cur);
    })[0];
  };
  EXPECT_EQ(limited(200, 200, 500),
            "rendezvous: rank 0 keeps a connection to each of 500 ranks, and its process may open 200 files "
            "(ulimit -n); 564 would be enough; or start the ranks by mpirun");
  EXPECT_EQ(limited(100, 1000, 500), "564");
  EXPECT_EQ(limited(100, 1000, 20), "100");
  EXPECT_EQ(run_forked(1,
                       [](int) -> std::string {
                         const rlimit limit{100, 100};
                         (void)::setrlimit(RLIMIT_NOFILE, &limit);
                         (void)join_tcp_world({.rank = 0, .size = 101, .timeout_s = 30});
                         return "";
                       })[0]
                .find("rendezvous: rank 0 keeps a connection to each of 101 ranks"),
            0u);
}

TEST(Rendezvous, RanksAsText) {
  const std::vector<int> r{0, 2, 3, 5, 6, 7, 9};
  EXPECT_EQ(tcp::ranks_text(r), "0, 2, 3, 5 to 7, 9");
  EXPECT_EQ(tcp::ranks_text({}), "");
}

TEST(Rendezvous, WhoDoesNotBelongIsTurnedAwayAndTheOthersMeet) {
  const auto said = join_all({{.rank = 0, .size = 3, .job = 7, .timeout_s = 20},
                              {.rank = 1, .size = 3, .job = 7, .timeout_s = 20},
                              {.rank = 2, .size = 3, .job = 8, .timeout_s = 20},
                              {.rank = 2, .size = 4, .job = 7, .timeout_s = 20}},
                             [](int port) {
                               std::this_thread::sleep_for(std::chrono::milliseconds(500));
                               auto late = join_tcp_world({.port = port, .rank = 2, .size = 3, .job = 7});
                               EXPECT_EQ(agree_sum(late->factory(nullptr)->control(), 1), 3);
                             });
  EXPECT_EQ(said[0], "");
  EXPECT_EQ(said[1], "");
  EXPECT_EQ(said[2], "rendezvous: rank 2 is of another job, which has this MASTER_ADDR and MASTER_PORT too");
  EXPECT_EQ(said[3], "rendezvous: rank 2 says that there are 4 ranks, and rank 0 that there are 3");
}

TEST(Rendezvous, OfTwoWithOneRankTheSecondIsRefused) {
  const auto said = join_all({{.rank = 0, .size = 3, .timeout_s = 2},
                              {.rank = 1, .size = 3, .timeout_s = 2},
                              {.rank = 1, .size = 3, .timeout_s = 2}});
  int refused = 0;
  for (const std::string& s : said)
    refused += s == "rendezvous: rank 1 is here already: two processes have this rank";
  EXPECT_EQ(refused, 1);
}

TEST(Rendezvous, StrangersDoNotDisturb) {
  std::vector<tcp::Socket> strangers;
  const auto said = join_all({{.rank = 0, .size = 2, .timeout_s = 20}}, [&](int port) {
    uint64_t seed = 5;
    for (int i = 0; i < 40; i++) {  // silence, garbage of any length, a head that promises gigabytes
      strangers.push_back(tcp::connect_to("127.0.0.1", port, 5));
      std::vector<std::byte> bytes;
      for (uint64_t k = 0; k < below(seed, uint64_t(i), 300); k++)
        bytes.push_back(std::byte(below(seed + 1, uint64_t(i) * 1000 + k, 256)));
      FrameHead head{.kind = FrameKind(i % 12), .bytes = int64_t(1) << (20 + i % 40)};
      if (i % 3 == 1) std::memcpy((bytes.resize(sizeof head), bytes.data()), &head, sizeof head);
      if (i % 3 > 0) tcp::send_all(strangers.back().fd(), bytes);
    }
    auto second = join_tcp_world({.port = port, .rank = 1, .size = 2});
    EXPECT_EQ(agree_sum(second->factory(nullptr)->control(), 1), 2);
  });
  EXPECT_EQ(said[0], "");
}

TEST(Rendezvous, WithoutRankZeroItIsSaid) {
  const int port = [] { return tcp::port_of(tcp::listen_at(0)); }();
  try {
    join_tcp_world({.port = port, .rank = 1, .size = 2, .timeout_s = 0.3});
    FAIL();
  } catch (const Error& e) {
    EXPECT_EQ(
        std::string(e.what()),
        fmt::format("rendezvous: rank 0 does not answer at 127.0.0.1:{} for 0 s: Connection refused; are "
                    "MASTER_ADDR and MASTER_PORT right?",
                    port));
  }
}

TEST(TcpProcesses, BeatsReachTheJudgesAndADeadRankIsNamed) {
  const int port = [] { return tcp::port_of(tcp::listen_at(0)); }();
  const auto said = run_forked(4, [&](int r) {
    auto world = join_tcp_world({.port = port, .rank = r, .size = 4, .timeout_s = 60});
    auto board = world->board();
    auto factory = world->factory(nullptr);
    Beat b{.number = 5 + r, .rank = r};
    for (int i = 0; i < 20; i++) {
      board->exchange({&b, 1});
      factory->control().barrier({});
    }
    std::string seen = fmt::format("{} of {} here:", world->local_rank(), world->local_ranks());
    for (const Beat& x : board->all()) seen += fmt::format(" {}", x.number);
    if (r == 2) ::kill(::getpid(), SIGKILL);
    try {
      factory->control().barrier({});
    } catch (const Error& e) {
      seen += std::string("; ") + e.what();
    }
    return seen;
  });
  const std::string dead = "; rank 2 failed: its process is gone: its connection ended without a word";
  EXPECT_EQ(said[0], "0 of 4 here: 5 6 7 8" + dead);
  EXPECT_EQ(said[1], "1 of 4 here: 0 6 0 0" + dead);
  EXPECT_EQ(said[2], "killed by signal 9");
  EXPECT_EQ(said[3], "3 of 4 here: 5 0 0 8" + dead);
}

TEST(TcpProcesses, RankZerosEndIsNoticed) {
  const int port = [] { return tcp::port_of(tcp::listen_at(0)); }();
  const auto said = run_forked(3, [&](int r) {
    auto world = join_tcp_world({.port = port, .rank = r, .size = 3, .timeout_s = 60});
    auto factory = world->factory(nullptr);
    try {  // rank 0 may be gone before it has answered the others' first barrier
      factory->control().barrier({});
      if (r == 0) ::kill(::getpid(), SIGKILL);
      factory->control().barrier({});
    } catch (const Error& e) {
      return std::string(world->end_failed(e).what());
    }
    return std::string("no error");
  });
  EXPECT_EQ(said[1], "rank 0 failed: its process is gone: its connection ended without a word");
  EXPECT_EQ(said[2], "");  // rank 1 says it
}

TEST(TcpProcesses, OneSaysWhyItFailed) {
  const int port = [] { return tcp::port_of(tcp::listen_at(0)); }();
  const auto said = run_forked(3, [&](int r) {
    auto world = join_tcp_world({.port = port, .rank = r, .size = 3, .timeout_s = 60});
    auto factory = world->factory(nullptr);
    try {
      factory->control().barrier({});
      if (r == 1) bad_request("a wrong file");
      factory->control().barrier({});
    } catch (const Error& e) {
      const Error last = world->end_failed(e);
      return fmt::format("{} {}", int(last.fault), last.what());
    }
    return std::string("no error");
  });
  EXPECT_EQ(said[0], "2 ");
  EXPECT_EQ(said[1], "2 rank 1: a wrong file");
  EXPECT_EQ(said[2], "2 ");
}

// ---- what the hub and its connections do in a strait ----

using TestClock = std::chrono::steady_clock;
double since(TestClock::time_point begin) {
  return std::chrono::duration<double>(TestClock::now() - begin).count();
}

void greet(const tcp::Socket& s, int rank, int world, const std::vector<std::byte>& more = {}) {
  std::vector<std::byte> bytes =
      tcp::bytes_of({.kind = FrameKind::hello}, tcp::body_of(tcp::Hello{.rank = rank, .world = world}));
  bytes.insert(bytes.end(), more.begin(), more.end());
  EXPECT_TRUE(tcp::send_all(s.fd(), bytes));
}
// Ends a connection so that the other end's next send fails; what was sent before is still read there.
void reset(tcp::Socket& s) {
  const linger at_once{.l_onoff = 1, .l_linger = 0};
  ::setsockopt(s.fd(), SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once);
  s.close();
}
// The kinds of the frames that come until the other end closes, or `most` are there.
std::vector<FrameKind> kinds_from(const tcp::Socket& s, size_t most = 1000) {
  tcp::FrameReader reader(1 << 24);
  std::vector<FrameKind> kinds;
  std::vector<std::byte> bytes(1 << 16);
  const timeval wait{.tv_sec = 20, .tv_usec = 0};
  ::setsockopt(s.fd(), SOL_SOCKET, SO_RCVTIMEO, &wait, sizeof wait);
  while (kinds.size() < most) {
    if (auto f = reader.next()) {
      kinds.push_back(f->head.kind);
      continue;
    }
    const ssize_t n = ::recv(s.fd(), bytes.data(), bytes.size(), 0);
    if (n <= 0) break;
    reader.put({bytes.data(), size_t(n)});
  }
  return kinds;
}

TEST(Rendezvous, MoreThanAreListenedToAtATimeMeet) {
  constexpr int kWorld = 300;
  tcp::Socket listener = tcp::listen_at(0);
  const int port = tcp::port_of(listener);
  auto [mine, hubs] = tcp::socket_pair();
  tcp::Hub hub(std::move(listener), std::move(hubs), {.world = kWorld, .timeout_s = 60, .linger_s = 0.1});
  std::vector<tcp::Socket> ranks;
  for (int r = 1; r < kWorld; r++) ranks.push_back(tcp::connect_to("127.0.0.1", port, 10));
  std::this_thread::sleep_for(std::chrono::milliseconds(500));  // all wait, none has said who it is
  greet(mine, 0, kWorld);
  for (int r = 1; r < kWorld; r++) greet(ranks[size_t(r - 1)], r, kWorld);
  int welcome = kinds_from(mine, 1) == std::vector{FrameKind::welcome};
  for (size_t i = 0; i < ranks.size() && welcome == int(i) + 1; i++)
    welcome += kinds_from(ranks[i], 1) == std::vector{FrameKind::welcome};
  EXPECT_EQ(welcome, kWorld);
  mine.close();
}

// Silent connections, more than rank 0's process may open, make room for a rank that comes after them.
TEST(Rendezvous, SilentConnectionsDelayNoRank) {
  tcp::Socket listener = tcp::listen_at(0);
  const int port = tcp::port_of(listener);
  const auto said = run_forked(2, [&](int rank) -> std::string {
    if (rank == 0) {
      const rlimit limit{120, 120};
      if (::setrlimit(RLIMIT_NOFILE, &limit) != 0) return "the limit cannot be set";
      auto world = join_tcp_world({.rank = 0, .size = 2, .secret = "of this test's job", .timeout_s = 60},
                                  std::move(listener));
      return std::to_string(agree_sum(world->factory(nullptr)->control(), 1));
    }
    std::vector<tcp::Socket> all;
    for (int i = 0; i < 400; i++) all.push_back(tcp::connect_to("127.0.0.1", port, 10));
    const auto begin = std::chrono::steady_clock::now();
    auto world =
        join_tcp_world({.port = port, .rank = 1, .size = 2, .secret = "of this test's job", .timeout_s = 60});
    const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    const int64_t met = agree_sum(world->factory(nullptr)->control(), 1);
    return seconds < 2 ? std::to_string(met) : fmt::format("it took {:.1f} s", seconds);
  });
  EXPECT_EQ(said, (std::vector<std::string>{"2", "2"}));
}

// Ranks that know the secret meet. The error of a rank with another secret, or none, names the variable.
TEST(Rendezvous, ARankProvesTheSecret) {
  const std::string secret = "one that is long enough";
  const auto said =
      join_all({{.rank = 0, .size = 2, .secret = secret, .timeout_s = 20},
                {.rank = 1, .size = 2, .secret = "another that is long enough", .timeout_s = 20},
                {.rank = 1, .size = 2, .secret = "", .timeout_s = 20}},
               [&](int port) {
                 std::this_thread::sleep_for(std::chrono::milliseconds(500));
                 auto one = join_tcp_world({.port = port, .rank = 1, .size = 2, .secret = secret});
                 EXPECT_EQ(agree_sum(one->factory(nullptr)->control(), 1), 2);
               });
  EXPECT_EQ(said[0], "");
  for (int r : {1, 2}) EXPECT_EQ(said[size_t(r)], tcp::kOtherSecret) << r;
}

// A program at rank 0's address that does not know the secret gets a greeting, which does not help it.
TEST(Rendezvous, ARankIsMetOnlyByWhoKnowsTheSecret) {
  for (const bool challenges : {false, true}) {
    auto [mine, theirs] = tcp::socket_pair();
    if (challenges)
      tcp::send_all(theirs.fd(),
                    tcp::bytes_of({.kind = FrameKind::challenge}, tcp::body_of(tcp::Challenge{})));
    tcp::send_all(theirs.fd(), tcp::bytes_of({.kind = FrameKind::welcome},
                                             tcp::body_of(tcp::Welcome{.world = 2, .local_ranks = 1})));
    try {
      tcp::Client client(std::move(mine), {.rank = 1, .world = 2}, 5, "a secret that is long enough");
      FAIL();
    } catch (const Error& e) {
      EXPECT_EQ(std::string(e.what()),
                challenges ? std::string(tcp::kOtherSecret)
                           : "rendezvous: rank 0 has not proved that it knows the secret of the job");
    }
    EXPECT_EQ(kinds_from(theirs), std::vector{FrameKind::hello});
  }
}

// A proof is of both sides' random bytes and of the hello: none of another meeting, rank or side is one here.
TEST(Rendezvous, AProofIsOfOneMeeting) {
  tcp::Hello a{.rank = 1, .world = 2}, other_rank = a, other_nonce = a;
  other_rank.rank = 0, other_nonce.nonce[3] = std::byte{1};
  Digest nonce{}, another{};
  another[31] = std::byte{1};
  const Digest proof = tcp::proof_of(tcp::Side::rank, "secret", a, nonce);
  EXPECT_TRUE(same_digest(proof, tcp::proof_of(tcp::Side::rank, "secret", a, nonce)));
  EXPECT_FALSE(same_digest(proof, tcp::proof_of(tcp::Side::hub, "secret", a, nonce)));
  EXPECT_FALSE(same_digest(proof, tcp::proof_of(tcp::Side::rank, "secret", other_rank, nonce)));
  EXPECT_FALSE(same_digest(proof, tcp::proof_of(tcp::Side::rank, "secret", other_nonce, nonce)));
  EXPECT_FALSE(same_digest(proof, tcp::proof_of(tcp::Side::rank, "secret", a, another)));
  EXPECT_FALSE(same_digest(proof, tcp::proof_of(tcp::Side::rank, "Secret", a, nonce)));
}

TEST(Rendezvous, ListensAtOneAddress) {
  const tcp::Socket one = tcp::listen_at("127.0.0.2", 0);
  const int port = tcp::port_of(one);
  EXPECT_TRUE(bool(tcp::connect_to("127.0.0.2", port, 5)));
  EXPECT_THROW((void)tcp::connect_to("127.0.0.3", port, 0), Error);
  const tcp::Socket all = tcp::listen_at("0.0.0.0", 0);
  for (const char* host : {"127.0.0.1", "127.0.0.2"})
    EXPECT_TRUE(bool(tcp::connect_to(host, tcp::port_of(all), 5))) << host;
  try {
    (void)tcp::listen_at("192.0.2.1", 0);  // RFC 5737: for documentation only
    FAIL();
  } catch (const Error& e) {
    EXPECT_EQ(e.fault, Fault::request);
    EXPECT_NE(std::string(e.what()).find("MASTER_ADDR = 192.0.2.1 is not an address of this machine"),
              std::string::npos)
        << e.what();
  }
  try {
    (void)tcp::listen_at("127.0.0.2", port);
    FAIL();
  } catch (const Error& e) {
    EXPECT_EQ(e.fault, Fault::environment) << e.what();
  }
}

// It greets, says what it may not yet, and is gone before it hears that: it counts as gone once.
TEST(Rendezvous, WhoIsRefusedAndLostMayComeAgain) {
  tcp::Socket listener = tcp::listen_at(0);
  const int port = tcp::port_of(listener);
  tcp::Socket bad = tcp::connect_to("127.0.0.1", port, 5);
  greet(bad, 1, 3, tcp::bytes_of({.kind = FrameKind::mail}, {}));
  reset(bad);
  std::vector<std::string> said(3);
  std::vector<std::thread> threads;
  for (int r = 0; r < 3; r++)
    threads.emplace_back([&, r] {
      try {
        if (r > 0) std::this_thread::sleep_for(std::chrono::milliseconds(300));
        auto world = join_tcp_world({.port = port, .rank = r, .size = 3, .timeout_s = 5},
                                    r == 0 ? std::move(listener) : tcp::Socket());
        EXPECT_EQ(agree_sum(world->factory(nullptr)->control(), 1), 3);
      } catch (const Error& e) {
        said[size_t(r)] = e.what();
      }
    });
  for (auto& t : threads) t.join();
  for (const std::string& s : said) EXPECT_EQ(s, "");
}

TEST(Rendezvous, ARankLostAtTheWelcomeIsToldToTheOthers) {
  tcp::Socket listener = tcp::listen_at(0);
  const int port = tcp::port_of(listener);
  // All of it lies there before the hub begins: it hears of rank 1 last, which is gone by then.
  tcp::Socket ranks[3];
  for (int r : {0, 2, 1}) greet(ranks[r] = tcp::connect_to("127.0.0.1", port, 5), r, 3);
  reset(ranks[1]);
  auto [mine, hubs] = tcp::socket_pair();
  {
    tcp::Hub hub(std::move(listener), std::move(hubs), {.world = 3, .timeout_s = 10, .linger_s = 0.1});
    EXPECT_EQ(kinds_from(ranks[0], 2), (std::vector{FrameKind::welcome, FrameKind::news}));
    EXPECT_EQ(kinds_from(ranks[2], 1), (std::vector{FrameKind::news}));
    mine.close(), ranks[0].close();
  }
}

TEST(Rendezvous, NewsInThePlaceOfAWelcomeIsSaid) {
  auto [mine, hubs] = tcp::socket_pair();
  tcp::send_all(hubs.fd(), tcp::bytes_of({.kind = FrameKind::news, .from = 1},
                                         tcp::body_of(tcp::News{.rank = 1, .dead = true, .why = "gone"})));
  try {
    tcp::Client client(std::move(mine), {.rank = 2, .world = 3}, 5);
    FAIL();
  } catch (const Error& e) {
    EXPECT_STREQ(e.what(), "rank 1 failed: gone");
  }
}

TEST(Rendezvous, ALostMachineIsNoticedWithBytesOnTheirWay) {
  const tcp::Socket listener = tcp::listen_at(0);
  const tcp::Socket s = tcp::connect_to("127.0.0.1", tcp::port_of(listener), 5);
  tcp::tune(s);
  int ms = 0;
  socklen_t n = sizeof ms;
  ASSERT_EQ(::getsockopt(s.fd(), IPPROTO_TCP, TCP_USER_TIMEOUT, &ms, &n), 0);
  EXPECT_EQ(ms, 11'000);
}

// What a client sends within a time never waits longer, and what has left of a frame is finished by the next.
TEST(TcpClient, SendsWithinATimeAndInWholeFrames) {
  auto [mine, hubs] = tcp::socket_pair();
  tcp::send_all(hubs.fd(), tcp::bytes_of({.kind = FrameKind::welcome},
                                         tcp::body_of(tcp::Welcome{.world = 2, .local_ranks = 1})));
  auto client = std::make_unique<tcp::Client>(std::move(mine), tcp::Hello{.rank = 1, .world = 2}, 5);
  const std::vector<std::byte> small(3001, std::byte(7)), large(5'000'000, std::byte(9));
  const FrameHead mail{.kind = FrameKind::mail}, beat{.kind = FrameKind::beat};
  size_t sent = 0;
  auto begin = TestClock::now();
  for (; sent < 100'000 && client->send_within(0, beat, small);) sent++;
  EXPECT_LT(sent, 100'000u);
  for (int i = 0; i < 100; i++) EXPECT_FALSE(client->send_within(0, beat, small));
  EXPECT_FALSE(client->send_within(0.3, beat, small));
  EXPECT_LT(since(begin), 5);
  std::thread blocked([&] { client->send(mail, large); });  // holds the way
  std::this_thread::sleep_for(std::chrono::milliseconds(200));
  begin = TestClock::now();
  EXPECT_FALSE(client->send_within(0, beat, small));
  EXPECT_FALSE(client->send_within(0.2, beat, small));
  EXPECT_LT(since(begin), 3);
  std::vector<FrameKind> kinds;
  std::thread reader([&, end = std::move(hubs)] { kinds = kinds_from(end); });
  blocked.join();
  EXPECT_TRUE(client->send_within(5, beat, small));
  client.reset();
  reader.join();
  // The greeting, the beats that went and the one that was finished, the mail, a beat, the bye.
  ASSERT_GE(kinds.size(), sent + 4);
  ASSERT_LE(kinds.size(), sent + 5);
  EXPECT_EQ(kinds.front(), FrameKind::hello);
  EXPECT_EQ(kinds.back(), FrameKind::bye);
  EXPECT_EQ(std::count(kinds.begin(), kinds.end(), FrameKind::mail), 1);
  EXPECT_EQ(size_t(std::count(kinds.begin(), kinds.end(), FrameKind::beat)), kinds.size() - 3);
}

// The watchdog's thread goes on, beats and condemns, where the hub's process hangs.
TEST(TcpProcesses, AFrozenHubHoldsNobodysWatchdog) {
  const int port = [] { return tcp::port_of(tcp::listen_at(0)); }();
  const auto said = run_forked(2, [&](int r) {
    auto world = join_tcp_world({.port = port, .rank = r, .size = 2, .timeout_s = 60});
    auto board = world->board();
    if (r == 0) {
      world->post(1, 1, std::to_string(::getpid()));
      while (!world->fetch(1, 2)) std::this_thread::sleep_for(std::chrono::milliseconds(1));
      ::raise(SIGSTOP);
    }
    std::optional<std::string> pid;
    while (!(pid = world->fetch(0, 1))) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    world->post(0, 2, "");
    std::this_thread::sleep_for(std::chrono::milliseconds(300));
    const auto begin = TestClock::now();
    Beat b{.number = 1, .rank = 1};
    for (int i = 0; i < 20'000; i++, b.number++) board->exchange({&b, 1});
    const double beats_s = since(begin);
    world->condemn(0, "it hangs");
    const bool soon = beats_s < 10 && since(begin) - beats_s < 3;
    ::kill(std::stoi(*pid), SIGKILL);
    return std::string(soon ? "soon" : "late");
  });
  EXPECT_EQ(said[0], "killed by signal 9");
  EXPECT_EQ(said[1], "soon");
}

// Who was condemned and wakes up leaves the line to who condemned it.
TEST(TcpProcesses, WhoIsCondemnedSaysNothing) {
  const int port = [] { return tcp::port_of(tcp::listen_at(0)); }();
  const auto said = run_forked(3, [&](int r) {
    auto world = join_tcp_world({.port = port, .rank = r, .size = 3, .timeout_s = 60});
    auto factory = world->factory(nullptr);
    factory->control().barrier({});
    if (r == 0) {
      world->condemn(2, "it is late");
      std::this_thread::sleep_for(std::chrono::seconds(1));
      ::_exit(1);
    }
    if (r == 2) std::this_thread::sleep_for(std::chrono::milliseconds(500));
    try {
      factory->control().barrier({});
    } catch (const Error& e) {
      const Error last = world->end_failed(e);
      return fmt::format("{} / {} {}", e.what(), int(last.fault), last.what());
    }
    return std::string("no error");
  });
  EXPECT_EQ(said[1], "rank 2 failed: it is late / 1 ");
  EXPECT_EQ(said[2], "rank 2 failed: it is late / 1 ");
}

TEST(TcpCalls, TooLargeForAFrameAreRefusedWhereTheyAreMade) {
  const auto errors = run_ranks({2}, [](Rank& me) {
    std::byte none{};
    auto refused = [&](const std::function<void()>& call) {
      try {
        call();
      } catch (const Error& e) {
        return std::string(e.what());
      }
      return std::string();
    };
    const int64_t half = int64_t(1) << 30;  // of nothing: it is refused before it is looked at
    EXPECT_EQ(refused([&] {
                me.factory.control().all_gather(
                    {.shard = Tensor(&none, {half}, DType::u8), .full = Tensor(&none, {2 * half}, DType::u8)},
                    {});
              }),
              "all_gather of group control: 2147483728 bytes in one call; over TCP at most 2147483648 go");
    P2p ops[] = {{Tensor(&none, {2 * half + 1}, DType::u8), 1 - me.rank, true}};
    EXPECT_EQ(refused([&] { me.factory.control().p2p({.ops = ops}, {}); }),
              "p2p of group control: 2147483649 bytes in one call; over TCP at most 2147483648 go");
    me.factory.control().barrier({});
  });
  for (const std::string& e : errors) EXPECT_EQ(e, "");
}

// ---- frames ----

std::vector<std::byte> some_frames(uint64_t seed) {
  std::vector<std::byte> all;
  auto add = [&](FrameHead h, const std::vector<std::byte>& body) {
    const auto bytes = tcp::bytes_of(h, body);
    all.insert(all.end(), bytes.begin(), bytes.end());
  };
  add({.kind = FrameKind::hello}, tcp::body_of(tcp::Hello{.rank = 1, .world = 3}));
  const int64_t rows[] = {1, 0, 2};
  const std::vector<std::byte> data(3 * 2 * 4, std::byte(seed));
  add({.kind = FrameKind::call, .key = seed}, tcp::body_of(tcp::CallHead{.numel = 6,
                                                                         .cols = 2,
                                                                         .recv_cols = 2,
                                                                         .size = 3,
                                                                         .kind = Collective::all_to_all,
                                                                         .dtype = DType::f32},
                                                           rows, rows, data));
  add({.kind = FrameKind::call, .key = seed},
      tcp::body_of(tcp::CallHead{.numel = 6, .size = 3, .kind = Collective::all_reduce, .dtype = DType::f32},
                   {}, {}, data));
  add({.kind = FrameKind::news}, tcp::body_of(tcp::News{.rank = 2, .fault = 1, .why = "no space\nleft"}));
  return all;
}

// All frames of the bytes, given in pieces; how many calls were understood.
int read_all(const std::vector<std::byte>& bytes, uint64_t cuts) {
  tcp::FrameReader reader(1 << 20);
  int calls = 0;
  for (size_t at = 0; at < bytes.size();) {
    const size_t n = std::min(bytes.size() - at, size_t(1 + below(cuts, at, 50)));
    reader.put({bytes.data() + at, n});
    at += n;
    while (auto f = reader.next()) {
      if (f->head.kind == FrameKind::hello) (void)tcp::parse_hello(*f);
      if (f->head.kind == FrameKind::news) {
        EXPECT_EQ(tcp::parse_news(*f, 3).why.find('\n'), std::string::npos);
      }
      if (f->head.kind == FrameKind::call) (void)tcp::parse_call(*f, 3), calls++;
    }
  }
  return calls;
}

TEST(Frames, InPiecesOfAnySize) {
  for (uint64_t cuts = 0; cuts < 50; cuts++) EXPECT_EQ(read_all(some_frames(cuts), cuts), 2);
}

TEST(Frames, DamagedOnesAreRefusedOrStillTrue) {
  int refused = 0;
  for (uint64_t trial = 0; trial < 3000; trial++) {
    std::vector<std::byte> bytes = some_frames(trial);
    for (uint64_t k = 0; k < 1 + trial % 3; k++)
      bytes[size_t(below(trial, k, bytes.size()))] = std::byte(below(trial + 9, k, 256));
    try {
      read_all(bytes, trial);
    } catch (const Error& e) {
      EXPECT_EQ(e.fault, Fault::request) << e.what();
      EXPECT_EQ(std::string(e.what()).find("rendezvous: "), 0u);
      refused++;
    }
  }
  EXPECT_GT(refused, 500);
}

TEST(Frames, WhatIsWrongIsSaid) {
  auto said = [](FrameHead h, int64_t most) {
    tcp::FrameReader r(most);
    r.put({reinterpret_cast<const std::byte*>(&h), sizeof h});
    try {
      r.next();
    } catch (const Error& e) {
      return std::string(e.what());
    }
    return std::string();
  };
  EXPECT_EQ(said({.magic = 1}, 100), "rendezvous: bytes that are none of trireme's");
  EXPECT_EQ(said({.version = 9}, 100),
            "rendezvous: a message of version 9, and this trireme speaks version 2");
  EXPECT_EQ(said({.bytes = 101}, 100), "rendezvous: a message of 101 bytes, and at most 100 are taken");
  EXPECT_EQ(said({.bytes = -1}, 100), "rendezvous: a message of -1 bytes, and at most 100 are taken");
  EXPECT_EQ(said({.kind = FrameKind(77)}, 100), "rendezvous: a message of unknown kind 77");
}

}  // namespace
}  // namespace trireme
