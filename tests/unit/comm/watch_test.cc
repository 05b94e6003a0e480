// What ranks say of themselves, the decorator that says it, and the thread that watches.
#include "comm/watch/watchdog.h"

#include <condition_variable>
#include <deque>
#include <mutex>

#include "comm/wrap/watched.h"
#include "ranks.h"

namespace trireme {
namespace {
using namespace testing;

TEST(Pulse, TellsWhatTheRankDoes) {
  Pulse p(3);
  Beat b = p.beat(1);
  EXPECT_EQ(b.action.get(), "start");
  EXPECT_TRUE(b.quiet);
  EXPECT_EQ(b.step, 0);
  p.step(12), p.action("B", 2), p.layer("blocks.1.and.a.name.that.is.longer.than.there.is.room.for.it");
  b = p.beat(2);
  EXPECT_EQ(b.number, 2);
  EXPECT_EQ(b.rank, 3);
  EXPECT_FALSE(b.quiet);
  EXPECT_FALSE(b.left);
  EXPECT_EQ(place_of(b),
            "in B of microbatch 2, layer blocks.1.and.a.name.that.is.longer.than.there.is, of step 12");
  p.action("save", -1, true), p.leave();
  b = p.beat(3);
  EXPECT_EQ(place_of(b), "in save of step 12");
  EXPECT_TRUE(b.quiet);
  EXPECT_TRUE(b.left);
}

TEST(Pulse, CountsTheCallsOfEachGroup) {
  Pulse p(1), q(0);
  const int all[] = {0, 1, 2}, two[] = {0, 1};
  const size_t dp = p.join("dp", all), tp = p.join("tp", two), again = p.join("dp", all);
  q.join("tp", two), q.join("dp", all), q.join("dp", two);
  p.issued(dp, Collective::all_reduce), p.issued(dp, Collective::barrier), p.issued(tp, Collective::p2p);
  p.done(dp, Collective::all_reduce);
  const Beat b = p.beat(1), c = q.beat(1);
  EXPECT_EQ(b.groups[dp].name.get(), "dp");
  EXPECT_EQ(b.groups[dp].size, 3);
  EXPECT_EQ(b.groups[dp].issued, 2);
  EXPECT_EQ(b.groups[dp].done, 1);
  EXPECT_EQ(b.groups[dp].open, Collective::barrier);
  EXPECT_EQ(b.groups[dp].last, Collective::barrier);
  EXPECT_EQ(b.groups[tp].issued, 0);
  EXPECT_EQ(b.groups[tp].messages_open, 1);
  EXPECT_EQ(b.groups[tp].key, c.groups[0].key) << "whatever the order, a group has one key";
  EXPECT_EQ(b.groups[dp].key, c.groups[1].key);
  std::vector<uint64_t> keys = {b.groups[dp].key, b.groups[tp].key, b.groups[again].key, c.groups[2].key};
  std::sort(keys.begin(), keys.end());
  EXPECT_EQ(std::unique(keys.begin(), keys.end()), keys.end()) << "no other has it";
  for (size_t i = 3; i < kMostWatchedGroups; i++) EXPECT_EQ(p.join("more", two), i);
  const size_t none = p.join("one too many", two);
  p.issued(none, Collective::barrier), p.done(none, Collective::barrier);
}

// Words that are written are never read as whole, and words that were written between two of the reader's
// looks are read again: at every place where a writer may be.
TEST(VersionedWords, AreReadWholeOrNotAtAll) {
  constexpr size_t n = 5;
  using Shown = VersionedWords<n>;
  auto write = [](Shown& s, uint64_t value, size_t words) {
    s.begin();
    for (size_t i = 0; i < words; i++) s.put(i, value);
  };
  Shown::Words seen{};
  for (size_t words = 0; words <= n; words++) {
    Shown s;
    write(s, 7, n), s.end();
    write(s, 8, words);
    EXPECT_FALSE(s.read(seen, 100)) << "in the middle of writing, " << words << " words are new";
    for (size_t i = words; i < n; i++) s.put(i, 8);
    s.end();
    EXPECT_TRUE(s.read(seen, 1));
    EXPECT_EQ(seen, (Shown::Words{8, 8, 8, 8, 8}));
  }
  for (size_t at = 0; at < n; at++)              // the writer begins before the reader's word `at`
    for (size_t last = at; last <= n; last++) {  // and ends before its word `last`, or after all
      Shown s;
      write(s, 7, n), s.end();
      int looks = 0;
      const bool whole = s.read(seen, 3, [&](size_t i) {
        looks += i == 0;
        if (looks > 1) return;
        if (i == at) write(s, 8, n);
        if (i == last) s.end();
      });
      if (last == n) {
        EXPECT_FALSE(whole) << at;
        continue;
      }
      EXPECT_TRUE(whole) << at << " " << last;
      EXPECT_EQ(looks, 2) << at << " " << last;
      EXPECT_EQ(seen, (Shown::Words{8, 8, 8, 8, 8})) << at << " " << last;
    }
}

// A beat made while the rank goes on is of one moment, or says that it is not.
TEST(Pulse, IsReadWhileItIsWritten) {
  Pulse p(0);
  std::atomic<bool> over = false;
  std::thread writer([&] {
    for (int64_t i = 0; !over; i++) {
      const std::string name(size_t(1 + i % 15), char('a' + i % 26));
      p.action(name, i % 26);
      if (i % 3 == 0) p.layer(name);
    }
  });
  int64_t whole = 0;
  std::string mixed;
  for (int64_t n = 1; whole < 100000 && mixed.empty(); n++) {
    const Beat b = p.beat(n);
    if (b.torn || b.action.get() == "start") continue;
    whole++;
    for (char c : b.action.get())
      if (c != char('a' + b.microbatch)) mixed = place_of(b);
    if (!b.layer.get().empty() && b.layer.get() != b.action.get()) mixed = place_of(b);
  }
  over = true;
  writer.join();
  EXPECT_EQ(mixed, "");
}

struct Heard {
  std::mutex mutex;
  std::vector<Verdict> warned, ended;
  std::condition_variable changed;

  WatchHooks hooks() {
    return {.warn = [this](const Verdict& v) { take(warned, v); },
            .end = [this](const Verdict& v) { take(ended, v); }};
  }
  void take(std::vector<Verdict>& to, const Verdict& v) {
    std::lock_guard lock(mutex);
    to.push_back(v);
    changed.notify_all();
  }
  // Has somebody been told that the run ends? A watchdog that says nothing must not hang its test.
  bool wait_for_end() {
    std::unique_lock lock(mutex);
    return changed.wait_for(lock, std::chrono::seconds(30), [&] { return !ended.empty(); });
  }
};

struct Watched {
  explicit Watched(int n) {
    for (int r = 0; r < n; r++) all.push_back(&pulses.emplace_back(r));
  }
  std::deque<Pulse> pulses;
  std::vector<const Pulse*> all;
};

// Rank 1 of three stands still: it is named as slow, then as late; that lets it go on, and the run is as
// it would have been.
TEST(Watchdog, NamesTheRankThatHoldsUpTheOthers) {
  for (bool control : {false, true}) {
    Watched w(3);
    Heard heard;
    {
      Watchdog dog(w.all, make_thread_board(3),
                   {.beat_s = 0.01, .dead_s = 100, .slow_s = 0.2, .again_s = 1e9, .timeout_s = 1},
                   heard.hooks());
      auto errors = run_ranks({3}, [&](Rank& plain) {
        Pulse& pulse = w.pulses[size_t(plain.rank)];
        auto factory = make_watched(plain.factory, &plain.device, pulse);
        auto dp = factory->split(ranks_upto(3), "dp");
        Stream s = plain.device.stream("dp");
        Values v(DType::f32, 7);
        for (int i = 0; i < 100; i++) dp->all_reduce({.buf = v.tensor()}, s);
        plain.device.sync(s);
        pulse.step(4), pulse.action("B", 1), pulse.layer("blocks.1");
        if (plain.rank == 1) {
          EXPECT_TRUE(heard.wait_for_end());
        }
        if (control)
          agree_max(factory->control(), 1);
        else
          dp->all_reduce({.buf = v.tensor()}, s);
        plain.device.sync(s);
        dp.reset();
        pulse.leave();
      });
      for (const std::string& e : errors) EXPECT_EQ(e, "");
    }
    std::erase_if(heard.warned, [](const Verdict& v) { return v.rank != 1; });  // a busy machine's
    ASSERT_EQ(heard.warned.size(), 1u);
    ASSERT_EQ(heard.ended.size(), 1u);
    EXPECT_EQ(heard.ended[0].fate, Fate::late);
    for (const Verdict& v : {heard.warned[0], heard.ended[0]}) {
      EXPECT_EQ(v.rank, 1);
      EXPECT_NE(v.text.find("ranks 0, 2 have waited "), std::string::npos) << v.text;
      EXPECT_NE(v.text.find(control ? " in all_reduce 0 of group control for it, and it is in B of "
                                      "microbatch 1, layer blocks.1, of step 4"
                                    : " in all_reduce 100 of group dp for it, and it is in B of microbatch "
                                      "1, layer blocks.1, of step 4"),
                std::string::npos)
          << v.text;
    }
  }
}

// Two ranks wait inside a collective, on the rank's thread and on a stream's: each of them says so, again and
// again.
TEST(Watched, AWaitForPeersIsReported) {
  Watched w(3);
  auto errors = run_ranks({3}, [&](Rank& plain) {
    Pulse& pulse = w.pulses[size_t(plain.rank)];
    auto factory = make_watched(plain.factory, &plain.device, pulse);
    auto dp = factory->split(ranks_upto(3), "dp");
    for (Stream s : {Stream{}, plain.device.stream("dp")}) {
      const int64_t before = pulse.beat(1).waits;
      Values v(DType::f32, 7);
      if (plain.rank == 1) {
        for (int other : {0, 2}) {  // they wait until they have said it three times
          const Pulse& p = w.pulses[size_t(other)];
          for (const int64_t at = p.beat(1).waits; p.beat(1).waits < at + 3;) std::this_thread::yield();
        }
        EXPECT_EQ(pulse.beat(1).waits, before) << "it does not wait";
      }
      dp->all_reduce({.buf = v.tensor()}, s);
      plain.device.sync(s);
    }
    dp.reset();
    pulse.leave();
  });
  for (const std::string& e : errors) EXPECT_EQ(e, "");
}

// Nothing to say of ranks that do their work; what they compute, count and move is as without a watchdog.
TEST(Watchdog, SaysNothingOfAHealthyRun) {
  for (int n : {2, 3, 4}) {
    Watched w(n);
    Heard heard;
    {
      Watchdog dog(w.all, make_thread_board(n), {.beat_s = 0.001, .dead_s = 30, .slow_s = 30}, heard.hooks());
      auto errors = run_ranks({n}, [&](Rank& plain) {
        auto factory = make_watched(plain.factory, &plain.device, w.pulses[size_t(plain.rank)]);
        auto dp = factory->split(ranks_upto(n), "dp");
        Stream s[] = {{}, plain.device.stream("dp")};
        for (int i = 0; i < 500; i++) {
          int64_t x = plain.rank + i;
          dp->all_reduce({.buf = Tensor(&x, {1}, DType::i64)}, s[i % 2]);
          plain.device.sync(s[1]);
          ASSERT_EQ(x, n * (n - 1) / 2 + n * i);
          if (i % 100 == 0) {
            ASSERT_EQ(agree_max(factory->control(), plain.rank), n - 1);
          }
        }
        expect_moved(*dp);
        dp.reset();
        const Beat b = w.pulses[size_t(plain.rank)].beat(1);
        EXPECT_EQ(b.groups[0].name.get(), "control");
        EXPECT_EQ(b.groups[0].issued, 5);
        EXPECT_EQ(b.groups[0].done, 5);
        EXPECT_EQ(b.groups[1].issued, 500);
        EXPECT_EQ(b.groups[1].done, 500);
        w.pulses[size_t(plain.rank)].leave();
      });
      for (const std::string& e : errors) EXPECT_EQ(e, "");
    }
    EXPECT_TRUE(heard.warned.empty());
    EXPECT_TRUE(heard.ended.empty());
  }
}

}  // namespace
}  // namespace trireme
