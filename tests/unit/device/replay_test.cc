// Launches that are kept leave what launches one by one leave, whatever an action does from step to step.
#include "device/replay.h"

#include <gtest/gtest.h>

#include <cstring>
#include <random>
#include <vector>

#include "base/error.h"
#include "far_device.h"

namespace trireme::test {
namespace {

constexpr int64_t kSize = 24;
constexpr int kVectors = 6;

// Six vectors on a far device, and what actions are made of.
struct Bench {
  explicit Bench(bool graphs) : device(make_far_device({.threads = 1, .graphs = graphs})) {
    memory = device->reserve(kBytes);
    for (int i = 0; i < kVectors; i++) {
      std::vector<float> values(kSize);
      for (int64_t k = 0; k < kSize; k++) values[size_t(k)] = float(i * 100 + k);
      device->upload(at(i), values.data());
    }
  }
  ~Bench() {
    device->forget_actions(this);
    device->release(memory, kBytes);
  }
  Tensor at(int i) const { return {memory + i * kSize * int64_t(sizeof(float)), {kSize}, DType::f32}; }
  void add(int a, int b, int y) { device->kernels().run(AddArgs{.a = at(a), .b = at(b), .y = at(y)}); }
  void scale(int a, float by, int y) {
    device->kernels().run(ScaledSumArgs{.a = at(a), .b = {}, .y = at(y), .alpha = by, .beta = 0});
  }
  void zero(int y) { device->kernels().run(ZeroArgs{.y = at(y)}); }
  std::vector<float> read(int i) {
    std::vector<float> v(kSize);
    device->download(v.data(), at(i));
    return v;
  }
  std::vector<float> all() {
    std::vector<float> v;
    for (int i = 0; i < kVectors; i++)
      for (float x : read(i)) v.push_back(x);
    return v;
  }
  ReplayCounts counts() const { return device->replayed().value(); }
  template <class F>
  void action(int64_t number, const F& f) {
    device->begin_action(this, number);
    f();
    device->end_action();
  }

  static constexpr int64_t kBytes = kVectors * kSize * int64_t(sizeof(float));
  std::unique_ptr<Device> device;
  std::byte* memory = nullptr;
};

TEST(Replay, KeepsWhatComesAgain) {
  Bench kept(true), plain(false);
  EXPECT_FALSE(plain.device->replayed());
  for (int step = 0; step < 5; step++) {
    for (Bench* b : {&kept, &plain})
      b->action(1, [&] {
        b->add(0, 1, 2);
        b->add(2, 1, 0);
        b->scale(0, 0.5f, 3);
      });
    EXPECT_EQ(kept.all(), plain.all()) << step;
    EXPECT_EQ(kept.counts().replayed, step < 1 ? 0 : 3);
  }
  EXPECT_EQ(kept.counts().launches, 3);
  EXPECT_EQ(kept.counts().graphs, 1);
  EXPECT_EQ(kept.counts().made, 1);
  EXPECT_EQ(kept.device->kernels().launches(), plain.device->kernels().launches());
  EXPECT_EQ(kept.device->kernels().total(), plain.device->kernels().total());
  EXPECT_EQ(replay_text(kept.counts()), "graphs: 3 of 3 launches of a step's actions in 1 graphs");
}

TEST(Replay, LaunchesAloneWhatChanges) {
  Bench kept(true), plain(false);
  for (int step = 0; step < 6; step++) {
    for (Bench* b : {&kept, &plain})
      b->action(1, [&] {
        b->add(0, 1, 2);
        b->add(2, 3, 4);
        b->scale(4, float(step), 5);
        b->add(5, 2, 3);
        b->scale(3, 0.25f, 1);
      });
    EXPECT_EQ(kept.all(), plain.all()) << step;
  }
  const ReplayCounts c = kept.counts();
  EXPECT_EQ(c.launches, 5);
  EXPECT_EQ(c.replayed, 4);
  EXPECT_EQ(c.graphs, 2);
  EXPECT_EQ(c.left_out, "scaled_sum 1");
}

// One change, such as a place in memory that another use of the arena had taken, is no change from step to
// step.
TEST(Replay, TakesAgainWhatChangedOnce) {
  Bench kept(true), plain(false);
  for (int step = 0; step < 8; step++) {
    for (Bench* b : {&kept, &plain})
      b->action(1, [&] {
        b->add(0, 1, step < 1 ? 5 : 2);
        b->add(1, 3, step == 4 ? 2 : 4);
        b->scale(4, 0.5f, 3);
      });
    EXPECT_EQ(kept.all(), plain.all()) << step;
  }
  EXPECT_EQ(kept.counts().replayed, 3);
  EXPECT_EQ(kept.counts().left_out, "");
}

// A piece ends where the host looks, at the same place or at another one.
TEST(Replay, LaunchesBeforeTheHostLooks) {
  Bench kept(true), plain(false);
  for (int step = 0; step < 8; step++) {
    std::vector<float> seen[2];
    for (Bench* b : {&kept, &plain})
      b->action(1, [&] {
        b->add(0, 1, 2);
        b->add(2, 1, 0);
        if (step != 5) seen[b == &kept] = b->read(0);
        b->add(0, 2, 3);
        if (step == 6) seen[b == &kept] = b->read(3);
        b->add(3, 1, 4);
      });
    EXPECT_EQ(seen[0], seen[1]) << step;
    EXPECT_EQ(kept.all(), plain.all()) << step;
  }
  EXPECT_EQ(kept.counts().replayed, 2);  // those before the change, behind which nothing has come twice
}

TEST(Replay, SharesEqualPieces) {
  Bench kept(true);
  for (int step = 0; step < 3; step++)
    for (int64_t number : {1, 2, 3})
      kept.action(number, [&] {
        kept.add(0, 1, 2);
        kept.add(2, 1, number == 3 ? 4 : 3);
      });
  EXPECT_EQ(kept.counts().replayed, 6);
  EXPECT_EQ(kept.counts().graphs, 2);
  EXPECT_EQ(kept.counts().made, 2);
  kept.device->forget_actions(&kept);
  EXPECT_EQ(kept.counts().graphs, 0);
  EXPECT_EQ(kept.counts().launches, 0);
}

TEST(Replay, GivesUpWhatIsAnotherEachTime) {
  Bench kept(true), plain(false);
  for (int step = 0; step < 40; step++) {
    for (Bench* b : {&kept, &plain})
      b->action(1, [&] {
        for (int i = 0; i <= step % 3; i++) b->add(0, 1, 2);
        step % 2 ? b->zero(3) : b->add(2, 0, 3);
      });
    EXPECT_EQ(kept.all(), plain.all()) << step;
  }
  EXPECT_EQ(kept.counts().given_up, 1);
  EXPECT_EQ(kept.counts().graphs, 0);
  EXPECT_EQ(replay_text(kept.counts()),
            "graphs: 0 of 0 launches of a step's actions in 0 graphs; 1 actions launch others each time");
}

struct Watcher final : OpObserver {
  int seen = 0;
  void after(std::string_view, const Cost&, const Outputs&) override { seen++; }
};

TEST(Replay, KeepsNothingFromAnObserver) {
  Bench kept(true);
  Watcher w;
  auto run = [&] {
    kept.action(1, [&] {
      kept.add(0, 1, 2);
      kept.add(2, 1, 3);
      EXPECT_EQ(kept.read(3)[0], 200);
    });
  };
  kept.device->kernels().observe(&w);
  for (int step = 0; step < 3; step++) run();
  EXPECT_EQ(w.seen, 6);
  EXPECT_EQ(kept.counts().launches, 0);
  kept.device->kernels().observe(nullptr);
  for (int step = 0; step < 3; step++) run();
  EXPECT_EQ(kept.counts().replayed, 2);
}

// An action that an error ended leaves no trace in the next one.
TEST(Replay, GoesOnAfterAnError) {
  Bench kept(true), plain(false);
  for (int step = 0; step < 6; step++) {
    for (Bench* b : {&kept, &plain}) {
      auto work = [&] {
        b->add(0, 1, 2);
        if (step == 3) run_failed("in the midst");
        b->add(2, 1, 3);
        b->add(3, 1, 4);
      };
      try {
        b->action(1, work);
      } catch (const Error&) {
        b->zero(2);  // whether the first had been launched is nobody's to rely on
      }
    }
    EXPECT_EQ(kept.all(), plain.all()) << step;
  }
  EXPECT_EQ(kept.counts().replayed, 3);
}

// A device that cannot after all: launches go one by one, and it is said why.
TEST(Replay, GoesOnWithoutGraphs) {
  Bench plain(false);
  Bench kept(false);
  kept.device->release(kept.memory, Bench::kBytes);
  kept.device = make_far_device({.threads = 1, .graphs = true}, no_room_for_a_graph);
  kept.memory = kept.device->reserve(Bench::kBytes);
  for (int i = 0; i < kVectors; i++) kept.device->upload(kept.at(i), plain.read(i).data());
  for (int step = 0; step < 4; step++) {
    for (Bench* b : {&kept, &plain})
      b->action(1, [&] {
        b->add(0, 1, 2);
        b->add(2, 1, 0);
      });
    EXPECT_EQ(kept.all(), plain.all()) << step;
  }
  EXPECT_EQ(replay_text(kept.counts()), "graphs: none, launches go one by one: no room for a graph");
  EXPECT_EQ(graphs_refused(kept.counts()),
            "train.graphs = \"on\": the device keeps no launches: no room for a graph; give \"off\"");
}

// Memory that ends while launches are kept ends the caller's work, and the stream takes launches again.
TEST(Replay, KeepsNoStreamWhereMemoryEnds) {
  Bench plain(false), kept(false);
  int ended = 0;
  kept.device->release(kept.memory, Bench::kBytes);
  kept.device = make_far_device({.threads = 1, .graphs = true}, [&] {
    if (ended++ == 0) throw std::bad_alloc();
  });
  kept.memory = kept.device->reserve(Bench::kBytes);
  for (int i = 0; i < kVectors; i++) kept.device->upload(kept.at(i), plain.read(i).data());
  int told = 0;
  for (int step = 0; step < 6; step++) {
    for (Bench* b : {&kept, &plain}) {
      const auto work = [&] {
        b->add(0, 1, 2);
        b->add(2, 1, 0);
        if (step > 2) b->add(0, 2, 3), b->add(3, 2, 4);  // what comes to it is kept too
      };
      try {
        b->action(1, work);
      } catch (const std::bad_alloc&) {
        told++;
      }
    }
    EXPECT_EQ(kept.all(), plain.all()) << step;
  }
  EXPECT_EQ(told, 1);
  EXPECT_EQ(kept.counts().replayed, 4);
  EXPECT_EQ(kept.counts().refused, "");
}

TEST(Replay, IsRefusedWhereNoLaunchesAreKept) {
  try {
    make_replay_device(make_device("cpu", {.threads = 1}));
    FAIL() << "a processor's launches cannot be kept";
  } catch (const Error& e) {
    EXPECT_EQ(e.fault, Fault::request);
    EXPECT_STREQ(e.what(), "train.graphs = \"on\": device cpu keeps no launches; give \"off\"");
  }
}

// Programs drawn at random, whose calls change now and then from step to step: launches that are longer than
// a piece, events, copies and tasks of other streams among them.
TEST(Replay, LeavesWhatLaunchesOneByOneLeave) {
  int64_t replayed = 0;
  for (unsigned seed = 0; seed < 60; seed++) {
    std::mt19937 draw(seed);
    struct Call {
      int what, a, b, y;
      float by;
    };
    auto any = [&] {
      return Call{int(draw() % 40), int(draw() % kVectors), int(draw() % kVectors), int(draw() % kVectors),
                  float(draw() % 5) * 0.25f};
    };
    std::vector<std::vector<Call>> actions(1 + draw() % 3);
    for (auto& a : actions)
      for (unsigned n = draw() % 100; n-- > 0;) a.push_back(any());
    const unsigned steady = 1 + draw() % 60;  // one call in so many changes
    Bench kept(true), plain(false);
    for (int step = 0; step < 12; step++) {
      std::vector<float> seen[2];
      for (size_t n = 0; n < actions.size(); n++) {
        auto& calls = actions[n];
        for (size_t i = 0; step > 3 && step < 9 && i < calls.size(); i++) {
          if (draw() % (steady * 20) != 0) continue;
          const unsigned how = draw() % 4;
          if (how < 2)
            calls[i] = any();
          else if (how == 2)
            calls.erase(calls.begin() + std::ptrdiff_t(i));
          else
            calls.insert(calls.begin() + std::ptrdiff_t(i), any());
        }
        for (Bench* b : {&kept, &plain}) {
          const Stream side = b->device->stream("side");
          b->action(int64_t(n), [&] {
            for (const Call& c : calls) {
              if (c.what == 0) {
                seen[b == &kept] = b->read(c.a);
              } else if (c.what == 1) {
                b->device->wait(side, b->device->record({}));
                b->device->copy(b->at(c.y), b->at((c.y + 1) % kVectors), side);
                b->device->wait({}, b->device->record(side));
              } else if (c.what == 2) {
                b->device->copy(b->at(c.y), b->at((c.y + 1) % kVectors), {});
              } else if (c.what < 6) {
                b->zero(c.y);
              } else if (c.what < 20) {
                b->scale(c.a, c.by, c.y);
              } else {
                b->add(c.a, c.b, c.y);
              }
            }
          });
        }
      }
      const auto same = [](const std::vector<float>& a, const std::vector<float>& b) {  // infinities too
        return a.size() == b.size() &&
               (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0);
      };
      EXPECT_TRUE(same(seen[0], seen[1])) << seed << " " << step;
      ASSERT_TRUE(same(kept.all(), plain.all())) << seed << " " << step;
    }
    replayed += kept.counts().replayed;
  }
  EXPECT_GT(replayed, 1000);
}

}  // namespace
}  // namespace trireme::test
