// What is NCCL's own: the library that is opened, how groups are made, what goes beside it, and how it fails.
#include <dlfcn.h>
#include <signal.h>

#include <chrono>
#include <thread>

#include "comm/nccl/api.h"
#include "comm/nccl/nccl_world.h"
#include "comm/tcp/tcp_world.h"
#include "device/device_memory.h"
#include "fake_nccl.h"
#include "processes.h"
#include "queue_device.h"
#include "ranks.h"

namespace trireme {
namespace {
using namespace testing;

// The fake one's functions beyond NCCL's.
template <class F>
F* of_fake(const char* name) {
  static void* library = ::dlopen(FAKE_NCCL, RTLD_NOW);
  return reinterpret_cast<F*>(::dlsym(library, name));
}
#define OF_FAKE(name) of_fake<decltype(name)>(#name)

// Over all tests of this program: no call on a communicator in progress, none on one that is gone.
class NoMisuse final : public ::testing::Environment {
  void TearDown() override {
    EXPECT_EQ(OF_FAKE(fakeNcclMisused)(), 0);
    EXPECT_EQ(OF_FAKE(fakeNcclRegistered)(), 0);
  }
};
const auto* no_misuse = ::testing::AddGlobalTestEnvironment(new NoMisuse);

std::string refusal(const std::string& library) {
  try {
    nccl::open_library(library);
  } catch (const Error& e) {
    EXPECT_EQ(e.fault, Fault::request);
    return e.what();
  }
  return "";
}

TEST(NcclLibrary, IsNamedWhereItIsNotThatOne) {
  EXPECT_NE(refusal("/nowhere/libnccl.so.2")
                .find("train.comm = \"nccl\": /nowhere/libnccl.so.2 cannot be opened: "),
            std::string::npos);
  EXPECT_EQ(refusal(FAKE_NCCL_OLD), std::string("train.comm = \"nccl\": ") + FAKE_NCCL_OLD +
                                        " is version 2.17.3, and 2.18.0 to 2.x are used");
  EXPECT_EQ(refusal(FAKE_NCCL_WITHOUT_SPLIT),
            std::string("train.comm = \"nccl\": ") + FAKE_NCCL_WITHOUT_SPLIT +
                " says it is version 2.28.9 and has no function ncclCommSplit");
  EXPECT_NE(refusal("libm.so.6").find("does not say which version it is: it is not NCCL"), std::string::npos);
  EXPECT_EQ(refusal(FAKE_NCCL), "");
  EXPECT_EQ(nccl::open_library(FAKE_NCCL).version, 22809);
  EXPECT_EQ(nccl::open_library(FAKE_NCCL).path, FAKE_NCCL);
  EXPECT_EQ(nccl::version_text(2708), "2.7.8");
}

// It can be opened without a GPU, has the functions that there must be and may be, and its own words.
TEST(NcclLibrary, NvidiasOwnHasAllThatIsUsed) {
  void* there = nullptr;
  std::string name;
  for (const char* n :
       {"libnccl.so.2", "/usr/local/cuda/lib/libnccl.so.2", "/usr/local/cuda/lib64/libnccl.so.2"})
    if (!there && (there = ::dlopen(n, RTLD_LAZY))) name = n;
  if (!there) GTEST_SKIP() << "no libnccl.so.2 on this machine";
  const nccl::Api& api = nccl::open_library(name);
  EXPECT_GE(api.version, nccl::kOldest);
  EXPECT_NE(api.CommRegister, nullptr);
  EXPECT_STREQ(api.GetErrorString(nccl::kInvalidUsage),
               "invalid usage (run with NCCL_DEBUG=WARN for details)");
  ::testing::Test::RecordProperty("nccl", nccl::version_text(api.version));
}

TEST(NcclGroups, OfEverybodyAreSplitOthersMade) {
  int init[2], split[2];
  OF_FAKE(fakeNcclMade)(&init[0], &split[0]);
  with_ranks(4, [](Rank& me) {  // Rank::all is the first
    const std::vector<int> half = me.rank < 2 ? std::vector{0, 1} : std::vector{2, 3};
    auto again = me.factory.split(ranks_upto(4), "all again"), part = me.factory.split(half, "half");
    const std::vector<int> alone_with_it{me.rank};
    auto alone = me.factory.split(alone_with_it, "alone");
    int64_t x = me.rank + 1, y = x, z = x;
    again->all_reduce({.buf = Tensor(&x, {1}, DType::i64)}, {});
    part->all_reduce({.buf = Tensor(&y, {1}, DType::i64)}, {});
    alone->all_reduce({.buf = Tensor(&z, {1}, DType::i64)}, {});
    EXPECT_EQ(x, 10);
    EXPECT_EQ(y, me.rank < 2 ? 3 : 7);
    EXPECT_EQ(z, me.rank + 1);
    EXPECT_EQ(part->algorithm(Collective::all_reduce, 8), "nccl");
    EXPECT_EQ(part->algorithm(Collective::all_gather, 8), "direct");
  });
  OF_FAKE(fakeNcclMade)(&init[1], &split[1]);
  EXPECT_EQ(init[1] - init[0], 4 + 4);  // of the world and of the halves, a rank each
  EXPECT_EQ(split[1] - split[0], 2 * 4);
}

// What two ranks send each other at the same time, on two streams: larger than anything that is kept on the
// way.
TEST(NcclMessages, CrossOnTwoStreams) {
  with_ranks(2, [](Rank& me) {
    constexpr int64_t kN = 300'001;
    Values out(DType::f32, kN), in(DType::f32, kN), sum(DType::f32, kN);
    out.fill(uint64_t(me.rank)), sum.fill(3);
    const Stream s[2] = {me.device.stream("out"), me.device.stream("in")};
    P2p send[] = {{out.tensor(), 1 - me.rank, true}}, take[] = {{in.tensor(), 1 - me.rank, false}};
    for (int i = 0; i < 3; i++) {
      me.all->p2p({.ops = send}, s[0]);
      me.all->all_reduce({.buf = sum.tensor()}, {});  // passes them
      me.all->p2p({.ops = take}, s[1]);
    }
    me.device.sync(s[0]), me.device.sync(s[1]);
    Values want(DType::f32, kN);
    want.fill(uint64_t(1 - me.rank));
    EXPECT_EQ(in.bytes(), want.bytes());
    expect_moved(*me.all);
  });
}

// A ring in which every rank sends and takes in one batch, whatever comes first there: at the first of it
// NCCL waits for the peers of all, who are at theirs. Where ranks wait for each other they are let go.
TEST(NcclMessages, ARingInOneBatchBeginsTogether) {
  std::atomic<bool> over = false;
  std::thread release([&] {
    for (int i = 0; i < 200 && !over; i++) std::this_thread::sleep_for(std::chrono::milliseconds(100));
    if (!over) OF_FAKE(fakeNcclBreak)(-1, nccl::kInternalError);
  });
  const auto errors = run_ranks({3}, [](Rank& me) {
    constexpr int64_t kN = 70'001;
    const int next = (me.rank + 1) % 3, last = (me.rank + 2) % 3;
    Values out(DType::f32, kN), in(DType::f32, kN), far(DType::f32, kN);
    out.fill(uint64_t(me.rank));
    const Stream streams[2] = {me.device.stream("a"), me.device.stream("b")};
    for (int i = 0; i < 6; i++) {  // steps overlap, on two streams; messages of a pair are several
      const P2p send{out.tensor(), next, true}, take{in.tensor(), last, false};
      const P2p more{out.part(0, 11), next, true}, less{far.part(0, 11), last, false};
      P2p ops[] = {i % 2 ? send : take, more, i % 2 ? take : send, less};
      if (i % 2 == 0) std::swap(ops[1], ops[2]);
      me.all->p2p({.ops = ops}, streams[i % 2]);
    }
    me.device.sync(streams[0]), me.device.sync(streams[1]);
    Values want(DType::f32, kN);
    want.fill(uint64_t(last));
    EXPECT_EQ(in.bytes(), want.bytes());
    for (int64_t i = 0; i < 11; i++) EXPECT_EQ(far.get(i), want.get(i));
    expect_moved(*me.all);
  });
  over = true;
  release.join();
  for (const std::string& e : errors) EXPECT_EQ(e, "");
}

// A world of threads over TCP and the fake NCCL, each rank with a device that the case makes.
std::vector<std::string> run_worlds(int n, double meet_s,
                                    const std::function<std::unique_ptr<Device>(int)>& device_of,
                                    const std::function<void(int, Device&, CommFactory&)>& body) {
  std::vector<std::string> errors(static_cast<size_t>(n));
  tcp::Socket listener = tcp::listen_at(0);
  const int port = tcp::port_of(listener);
  std::vector<std::thread> threads;
  for (int r = 0; r < n; r++)
    threads.emplace_back([&, r] {
      auto device = device_of(r);
      auto world = make_nccl_world(join_tcp_world({.port = port, .rank = r, .size = n, .timeout_s = 60},
                                                  r == 0 ? std::move(listener) : tcp::Socket()),
                                   {.library = FAKE_NCCL, .meet_s = meet_s});
      std::unique_ptr<CommFactory> factory;
      try {
        factory = world->factory(device.get());
        body(r, *device, *factory);
      } catch (const Error& e) {
        errors[size_t(r)] = e.what();
        if (factory) factory->fail(e.what());
      }
    });
  for (auto& t : threads) t.join();
  return errors;
}

TEST(NcclHost, MemoryOfTheHostGoesBesideIt) {
  static std::array<std::array<int64_t, 8>, 3> host;
  OF_FAKE(fakeNcclForbid)(host.data(), sizeof host);
  auto device_of = [](int r) {
    return make_queue_device(reinterpret_cast<const std::byte*>(host[size_t(r)].data()), 64);
  };
  const auto errors = run_worlds(3, 60, device_of, [&](int r, Device& device, CommFactory& factory) {
    auto c = factory.split(ranks_upto(3), "all");
    auto& mine = host[size_t(r)];
    int64_t on_device = r;
    for (int i = 0; i < 20; i++) {  // in step with those that go by NCCL
      mine = {r, r * 10, 0, 0, 0, 0, 0, 0};
      c->all_reduce({.buf = Tensor(mine.data(), {2}, DType::i64)}, device.stream("dp"));
      c->all_reduce({.buf = Tensor(&on_device, {1}, DType::i64), .op = Reduce::max}, device.stream("tp"));
      device.sync(device.stream("dp")), device.sync(device.stream("tp"));
      EXPECT_EQ(mine[0], 3);
      EXPECT_EQ(mine[1], 30);
      EXPECT_EQ(on_device, 2);
    }
    mine[0] = r, mine[4] = -1;
    P2p ops[] = {{Tensor(&mine[0], {1}, DType::i64), (r + 1) % 3, true},
                 {Tensor(&mine[4], {1}, DType::i64), (r + 2) % 3, false}};
    c->p2p({.ops = ops}, {});
    EXPECT_EQ(mine[4], (r + 2) % 3);
  });
  OF_FAKE(fakeNcclForbid)(nullptr, 0);
  EXPECT_EQ(OF_FAKE(fakeNcclMisused)(), 0);
  for (const std::string& e : errors) EXPECT_EQ(e, "");
}

// A message of which one end lies in the host's memory and the other on the device goes two ways that do not
// meet: it is said, and nobody waits for ever.
TEST(NcclHost, AMessageOfEitherMemoryIsSaid) {
  static std::array<std::array<int64_t, 2>, 2> host;
  for (const bool sender_has_host : {true, false}) {
    auto device_of = [&](int r) {
      const bool of_host = (r == 0) == sender_has_host;
      return of_host ? make_queue_device(reinterpret_cast<const std::byte*>(host[size_t(r)].data()), 16)
                     : make_queue_device();
    };
    const auto errors = run_worlds(2, 1, device_of, [&](int r, Device&, CommFactory& factory) {
      auto c = factory.split(ranks_upto(2), "pp");
      const P2p op[] = {{Tensor(&host[size_t(r)][0], {1}, DType::i64), 1 - r, r == 0}};
      c->p2p({.ops = op}, {});
      if (sender_has_host && r == 0) std::this_thread::sleep_for(std::chrono::milliseconds(1500));
    });
    const std::string late =
        "messages of group pp from rank 0 to rank 1: a call has not begun for 1 s: another rank has not made "
        "it, or has it of memory of the host";
    const std::string missed = "a message of group pp: rank 0 has not come to it for 1 s";
    if (sender_has_host) {
      EXPECT_NE(errors[1].find(late), std::string::npos) << errors[1];
    } else {  // both wait for the other, as long: the first to end says it to both
      for (const std::string& e : errors)
        EXPECT_TRUE(e.find(late) != e.npos || e.find(missed) != e.npos) << e;
    }
  }
}

// Rank 1 has no rows: it cannot know that the others' are the host's, and they would wait for it there.
TEST(NcclHost, RowsOfItAreRefused) {
  static std::array<std::array<int64_t, 2>, 3> host;
  auto device_of = [](int r) {
    return make_queue_device(reinterpret_cast<const std::byte*>(host[size_t(r)].data()), 16);
  };
  const auto errors = run_worlds(3, 60, device_of, [&](int r, Device&, CommFactory& factory) {
    auto c = factory.split(ranks_upto(3), "ep");
    const int64_t peer = 2 - r, mine = r == 1 ? 0 : 1;
    const int64_t rows[] = {peer == 0 && mine, 0, peer == 2 && mine};
    c->all_to_all({.send = Tensor(&host[size_t(r)][0], {mine, 1}, DType::i64),
                   .recv = Tensor(&host[size_t(r)][1], {mine, 1}, DType::i64),
                   .send_rows = rows,
                   .recv_rows = rows},
                  {});
  });
  for (const std::string& e : {errors[0], errors[2]})
    EXPECT_NE(
        e.find("all_to_all of group ep: rows in the host's memory; with train.comm = \"nccl\" they must "
               "be on the device"),
        std::string::npos)
        << e;
}

// Each rank says what it found; one library of another version is one too many.
TEST(NcclLibrary, IsOfOneVersionOnAllRanks) {
  for (int odd : {-1, 2}) {
    const auto errors = run_ranks({3}, [&](Rank& me) {
      check_same_nccl(me.factory.control(), me.rank == odd ? 22304 : 22809);
      me.all->barrier({});
    });
    for (const std::string& e : errors)
      EXPECT_EQ(e, odd < 0
                       ? ""
                       : "train.comm = \"nccl\": libnccl.so.2 is version 2.23.4 on some ranks and 2.28.9 on "
                         "others; give all ranks the same");
  }
}

TEST(NcclMemory, OfArenasIsRegisteredOnceAndGivenBack) {
  static std::array<std::array<float, 100>, 2> arena;
  for (auto& a : arena)
    add_device_memory(reinterpret_cast<std::byte*>(a.data()), sizeof a,
                      [](void* to, const void* from, int64_t n) { std::memmove(to, from, size_t(n)); });
  const int before = OF_FAKE(fakeNcclRegistered)();
  std::atomic<int> most = 0;
  const auto errors = run_worlds(
      2, 60, [](int) { return make_queue_device(); },
      [&](int r, Device&, CommFactory& factory) {
        auto c = factory.split(ranks_upto(2), "all");
        auto& mine = arena[size_t(r)];
        for (int i = 0; i < 5; i++) {
          mine.fill(float(r + 1));
          c->all_reduce({.buf = Tensor(&mine[10 * i], {7}, DType::f32)}, {});
          EXPECT_EQ(mine[size_t(10 * i)], 3);
        }
        agree_max(factory.control(), 0);
        most = OF_FAKE(fakeNcclRegistered)();
        agree_max(factory.control(), 0);
      });
  for (const std::string& e : errors) EXPECT_EQ(e, "");
  EXPECT_EQ(most - before, 2);
  EXPECT_EQ(OF_FAKE(fakeNcclRegistered)(), before);
  for (auto& a : arena) remove_device_memory(reinterpret_cast<std::byte*>(a.data()));
}

TEST(NcclFailure, ADeviceWithoutQueuesIsRefused) {
  const auto errors = run_worlds(
      1, 60, [](int) { return make_device("cpu", {.threads = 1}); },
      [&](int, Device&, CommFactory&) { FAIL(); });
  EXPECT_EQ(
      errors[0],
      "train.comm = \"nccl\": it moves memory of GPUs, and the device is cpu; give train.device = \"cuda\"");
}

TEST(NcclFailure, WhatItSaysOfItselfIsSaid) {
  const int aborted = OF_FAKE(fakeNcclAborted)();
  const auto errors = run_ranks({2}, [](Rank& me) {
    me.all->barrier({});
    if (me.rank == 1) {  // it does not come, and says nothing: its communicator does
      std::this_thread::sleep_for(std::chrono::milliseconds(300));
      OF_FAKE(fakeNcclBreak)(0, nccl::kInternalError);
      std::this_thread::sleep_for(std::chrono::seconds(5));
      return;
    }
    int64_t x = 1;
    me.all->all_reduce({.buf = Tensor(&x, {1}, DType::i64)}, {});
  });
  EXPECT_EQ(errors[0], "group all: NCCL says: internal error (3)");
  EXPECT_GT(OF_FAKE(fakeNcclAborted)(), aborted);
}

// NCCL notices first that a peer is gone; the reason, and whose, comes by the host.
TEST(NcclFailure, APeersEndIsNamedByTheHost) {
  const auto errors = run_ranks({3}, [](Rank& me) {
    me.all->barrier({});
    if (me.rank == 2) {
      OF_FAKE(fakeNcclBreak)(0, nccl::kRemoteError), OF_FAKE(fakeNcclBreak)(1, nccl::kRemoteError);
      std::this_thread::sleep_for(std::chrono::milliseconds(500));
      run_failed("no space left");
    }
    std::vector<float> x(100'000);
    const Stream s = me.device.stream("dp");
    me.all->all_reduce({.buf = Tensor(x.data(), {int64_t(x.size())}, DType::f32)}, me.rank ? s : Stream());
    me.device.sync(s);
  });
  EXPECT_EQ(errors[0], "rank 2 failed: no space left");
  EXPECT_EQ(errors[1], "rank 2 failed: no space left");
}

// Rank 0 fails on the result of a collective that rank 1 still waits to come out of: rank 1 gets the result.
TEST(NcclFailure, ACallThatAllHaveMadeEnds) {
  OF_FAKE(fakeNcclLooks)(260);
  const auto errors = run_ranks({.ranks = 2, .grace_s = 30}, [](Rank& me) {
    int64_t x = me.rank + 1;
    me.all->all_reduce({.buf = Tensor(&x, {1}, DType::i64)}, {});
    if (me.rank == 0) run_failed("the sum is {}", x);
    EXPECT_EQ(x, 3);
  });
  OF_FAKE(fakeNcclLooks)(30);
  EXPECT_EQ(errors[0], "the sum is 3");
  EXPECT_EQ(errors[1], "");
}

TEST(NcclFailure, WhoDoesNotComeToAGroupIsNamed) {
  const auto errors = run_worlds(
      3, 1, [](int) { return make_queue_device(); },
      [&](int r, Device&, CommFactory& factory) {
        if (r != 1) factory.split(ranks_upto(3), "dp");
        if (r == 1) std::this_thread::sleep_for(std::chrono::milliseconds(2500));
      });
  EXPECT_EQ(errors[0], "the world: rank 1 has not come to it for 1 s");
  EXPECT_NE(errors[2].find("rank 0"), std::string::npos) << errors[2];
}

// Ranks as processes; one is killed while the others wait for it.
TEST(NcclProcesses, OneThatIsKilledIsNamedByAll) {
  const int port = [] { return tcp::port_of(tcp::listen_at(0)); }();
  const auto said = run_forked(3, [&](int r) {
    auto device = make_queue_device();
    auto world = make_nccl_world(join_tcp_world({.port = port, .rank = r, .size = 3, .timeout_s = 60}),
                                 {.library = FAKE_NCCL});
    auto factory = world->factory(device.get());
    auto all = factory->split(ranks_upto(3), "all");
    std::vector<float> x(50'000, float(r + 1));
    const Tensor t(x.data(), {int64_t(x.size())}, DType::f32);
    all->all_reduce({.buf = t}, {});
    if (x.back() != 6) return std::string("a wrong sum");
    if (r == 1) ::kill(::getpid(), SIGKILL);
    try {
      all->all_reduce({.buf = t}, {});
    } catch (const Error& e) {
      return std::string(e.what()) + " / " + world->end_failed(e).what();
    }
    return std::string("no error");
  });
  ASSERT_EQ(said.size(), 3u);
  const std::string why = "rank 1 failed: its process is gone: its connection ended without a word";
  EXPECT_EQ(said[0], why + " / " + why);
  EXPECT_EQ(said[1], "killed by signal 9");
  EXPECT_EQ(said[2], why + " / ");  // one of them says it
}

// The watchdog of rank 0 says who is late; the others' communicators are aborted and they hear it.
TEST(NcclProcesses, OneThatIsCondemnedIsNamedByAll) {
  const int port = [] { return tcp::port_of(tcp::listen_at(0)); }();
  const auto said = run_forked(3, [&](int r) {
    auto device = make_queue_device();
    auto world = make_nccl_world(join_tcp_world({.port = port, .rank = r, .size = 3, .timeout_s = 60}),
                                 {.library = FAKE_NCCL});
    auto factory = world->factory(device.get());
    auto all = factory->split(ranks_upto(3), "all");
    if (r == 2) {  // hangs
      std::this_thread::sleep_for(std::chrono::seconds(4));
      return std::string("late");
    }
    if (r == 0) {
      std::this_thread::sleep_for(std::chrono::milliseconds(500));
      world->condemn(2, "it is late");
      ::_exit(1);
    }
    int64_t x = 1;
    try {
      all->all_reduce({.buf = Tensor(&x, {1}, DType::i64)}, {});
    } catch (const Error& e) {
      return std::string(e.what());
    }
    return std::string("no error");
  });
  EXPECT_EQ(said[1], "rank 2 failed: it is late");
}

}  // namespace
}  // namespace trireme
