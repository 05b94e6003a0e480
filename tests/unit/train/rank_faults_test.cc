// Training on several ranks: what is refused, who is named, copies that differ.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <limits>

#include "base/error.h"
#include "checkpoint/store.h"
#include "comm/wrap/wrapped.h"
#include "device/device.h"
#include "far_device.h"
#include "ranks_run.h"
#include "runtime/booking.h"
#include "runtime/rank_threads.h"
#include "spec/run_schedule.h"
#include "train/replicas.h"

namespace trireme::test {
namespace {

std::string error_of(int ranks, const RankBody& body, Fault fault = Fault::run, bool far = false) {
  const DeviceOptions alone{.threads = 1};
  try {
    run_rank_threads(
        ranks, [&] { return far ? make_far_device(alone) : make_device("cpu", alone); }, body);
  } catch (const Error& e) {
    EXPECT_EQ(e.fault, fault);
    return e.what();
  }
  return "no error";
}

// Whoever fails first is named, whether the others wait for it in a collective or on a stream, and its fault
// stays.
TEST(Ranks, TheFirstErrorIsTheOneThatIsTold) {
  for (int guilty : {0, 2}) {
    const std::string told = error_of(
        3,
        [&](Device&, CommFactory& f) {
          if (f.rank() == guilty) bad_request("the moon is full");
          agree_max(f.control(), 1);
          ADD_FAILURE() << "an agreement without everybody";
        },
        Fault::request);
    EXPECT_EQ(told, fmt::format("rank {}: the moon is full", guilty));
  }
  EXPECT_EQ(error_of(1, [](Device&, CommFactory&) { run_failed("alone"); }), "alone");
  EXPECT_EQ(error_of(4, [](Device&, CommFactory& f) { agree_max(f.control(), f.rank()); }), "no error");
}

// What is wrong with the request is rank 0's to say, once.
TEST(Ranks, AMissingShardIsToldOnce) {
  TempFolder tmp;
  RunSpec run = ranks_run(tmp.path(), {.dp = 3});
  run.data.train = (tmp / "nothing").string();
  try {
    train_here(run);
    ADD_FAILURE();
  } catch (const Error& e) {
    EXPECT_EQ(e.fault, Fault::request);
    EXPECT_NE(std::string(e.what()).find("nothing"), std::string::npos) << e.what();
    EXPECT_EQ(std::string(e.what()).find('\n'), std::string::npos) << e.what();
  }
}

// A value that is not finite: found by running the step again, on one rank at least, and told once.
TEST(Ranks, ANonfiniteValueIsNamed) {
  for (int64_t zero : {0, 3}) {
    TempFolder tmp;
    RunSpec run = ranks_run(tmp.path(), {.dp = 3, .zero = zero});
    const Schedule schedule = schedule_of(run);
    const int64_t arena = book_training(run, schedule, 1).arena_bytes;
    const std::string told = error_of(3, [&](Device& device, CommFactory& factory) {
      CommSet comms(factory, mesh_of(run.layout));
      StageRunner r(run, RunMode::train, device, arena, &comms);
      r.init_weights();
      const Param& p = *r.params().find("blocks.1.mlp.down.weight");
      Tensor t = r.memory().state_tensor(p, "");
      if (t.numel() > 0) t.as<float>()[0] = std::numeric_limits<float>::infinity();
      r.weights_from_master();
      try {
        r.step(schedule.ranks[0], 2, run.tokens_per_step(), [](int64_t, int64_t, const HostBatch& b) {
          std::fill(b.tokens.begin(), b.tokens.end(), 1), std::fill(b.targets.begin(), b.targets.end(), 2);
          std::fill(b.positions.begin(), b.positions.end(), 0);
        });
        ADD_FAILURE() << "an infinite weight went unseen";
      } catch (const std::exception& e) {
        factory.fail(e.what());
        throw;
      }
    });
    EXPECT_NE(told.find("step 2: "), std::string::npos) << told;
    EXPECT_NE(told.find("matmul in layer blocks.1.mlp"), std::string::npos) << told;
    EXPECT_EQ(told.find("rank "), 0u) << told;
  }
}

class SentToAll : public CommObserver {
 public:
  void issued(const CommCall& c) override { payloads.push_back(c.payload); }
  std::vector<int64_t> payloads;
};

struct Spoilt {
  RanksLayout layout;
  int rank;
  const char *parameter, *what, *named;
  int64_t kv_heads = 1, sets = 1;  // of ranks that hold the same, at most of one rank
  bool far = false;                // of devices with memory of their own
  const char* moments = "f32";
};

// Compares, flips one bit of one rank, and compares again.
std::string spoil(const Spoilt& s) {
  TempFolder tmp;
  RunSpec run = ranks_run(tmp.path(), s.layout);
  run.model.kv_heads = s.kv_heads;
  run.precision.moments = s.moments;
  const int64_t arena = book_training(run, schedule_of(run), 1).arena_bytes;
  const RankBody body = [&](Device& device, CommFactory& factory) {
    CommSet comms(factory, mesh_of(run.layout));
    StageRunner r(run, RunMode::train, device, arena, &comms);
    r.init_weights();
    const Replicas replicas(r);
    SentToAll sent;
    CommObserver* before = factory.control().observe(&sent);
    replicas.compare(7);
    factory.control().observe(before);
    EXPECT_EQ(sent.payloads, std::vector<int64_t>{8 * s.sets * run.world()});
    const Param& p = *r.params().find(s.parameter);
    if (factory.rank() == s.rank) {
      Tensor t = s.what[0] || s.layout.zero == 0 ? r.memory().state_tensor(p, s.what) : p.weight;
      if (t.numel() == 0) run_failed("rank {} has nothing of {}", s.rank, s.parameter);
      const Tensor first = t.view({t.numel()}).narrow(0, 0, 1);
      std::array<std::byte, 4> bytes{};
      device.download(bytes.data(), first);
      bytes[0] ^= std::byte(1);
      device.upload(first, bytes.data());
    }
    replicas.compare(9);
  };
  return error_of(int(run.world()), body, Fault::run, s.far);
}

// One bit of what several ranks hold: found, and named with rank, tensor and step.
TEST(Replicas, ADifferenceIsNamed) {
  for (const Spoilt& s :
       {Spoilt{{.dp = 3, .zero = 0}, 1, "blocks.1.mlp.up.weight", "exp_avg", "/exp_avg"},
        Spoilt{{.dp = 3, .zero = 0}, 1, "head.weight", "exp_avg_sq", "/exp_avg_sq", 1, 1, false, "bf16"},
        Spoilt{{.dp = 3, .zero = 0}, 0, "norm.weight", "", "weight"},
        Spoilt{{.dp = 3, .zero = 2}, 2, "embed.tokens.weight", "", "weight"},
        Spoilt{{.dp = 6, .zero = 3, .group = 2, .micro = 1}, 4, "head.weight", "exp_avg_sq", "/exp_avg_sq"},
        // All six hold the weights, three the same part of the state.
        Spoilt{{.dp = 6, .zero = 1, .group = 2, .micro = 1}, 3, "blocks.0.attn.o.weight", "", "weight", 1, 2},
        // Copies of stages: all of them, or what ZeRO leaves each of two.
        Spoilt{{.pp = 2, .schedule = "dualpipe"}, 1, "blocks.0.mlp.up.weight", "exp_avg", "/exp_avg"},
        Spoilt{{.dp = 3, .zero = 3, .micro = 1, .pp = 2, .schedule = "dualpipe"},
               3,
               "head.weight",
               "exp_avg",
               "/exp_avg differs from the copy of rank 0"},
        // Along tp: norms, and keys and values of heads that several ranks hold.
        Spoilt{{.tp = 3}, 0, "norm.weight", "", "weight"},
        Spoilt{{.tp = 4}, 2, "blocks.1.attn.k.weight", "exp_avg", "/exp_avg differs from the copy of rank 0"},
        Spoilt{{.tp = 4}, 3, "blocks.1.attn.v.weight", "", "differs from the copy of rank 0", 2},
        Spoilt{{.dp = 3, .zero = 0, .tp = 2}, 3, "blocks.0.norm1.weight", "", "weight", 2, 2},
        Spoilt{{.dp = 3, .zero = 0, .tp = 2}, 4, "blocks.0.attn.q.weight", "", "rank 0", 2, 2},
        Spoilt{{.dp = 3, .zero = 1}, 1, "blocks.1.mlp.up.weight", "", "weight", 1, 1, true},
        Spoilt{{.dp = 3, .zero = 0}, 2, "norm.weight", "exp_avg", "/exp_avg", 1, 1, true}}) {
    SCOPED_TRACE(
        fmt::format("rank {} of dp={} tp={}{}", s.rank, s.layout.dp, s.layout.tp, s.far ? " far" : ""));
    const std::string told = spoil(s);
    EXPECT_EQ(told.find(fmt::format("rank {}: step 9: its {}", s.rank, s.parameter)), 0u) << told;
    EXPECT_NE(told.find(s.named), std::string::npos) << told;
  }
}

// What one rank alone holds is compared with nothing.
TEST(Replicas, ADividedTensorHasNoCopy) {
  EXPECT_EQ(spoil({{.tp = 2}, 1, "blocks.0.attn.q.weight", "", "", 2, 1}), "no error");
}

// Sums over ranks; once `now` is true, the spoilt rank gets one bit wrong.
class SpoiltSums final : public WrappedFactory {
 public:
  // gathers: the parts of other ranks that it gathers, instead of sums.
  SpoiltSums(CommFactory& inner, Device& device, bool spoilt, const std::atomic<bool>& now, bool gathers)
      : WrappedFactory(inner), device_(device), spoilt_(spoilt), gathers_(gathers), now_(now) {}

 private:
  class Comm final : public WrappedCommunicator {
   public:
    Comm(std::unique_ptr<Communicator> c, SpoiltSums& all)
        : WrappedCommunicator(std::move(c), &all.device_), all_(all) {}
    ~Comm() override { finish(); }

   private:
    void do_all_reduce(const AllReduceArgs& a, Stream s, const CommCall&) override {
      quietly([&](Communicator& inner) { inner.all_reduce(a, s); });
      if (!all_.gathers_) spoil(a.buf.data, s);
    }
    void do_all_gather(const AllGatherArgs& a, Stream s, const CommCall&) override {
      quietly([&](Communicator& inner) { inner.all_gather(a, s); });
      if (all_.gathers_) spoil(a.full.data, s);
    }
    void spoil(std::byte* data, Stream s) {
      if (!all_.spoilt_ || !all_.now_) return;
      then(
          s, [](void*, int64_t at) { reinterpret_cast<uint8_t*>(at)[2] ^= 1; },
          reinterpret_cast<int64_t>(data));
    }
    SpoiltSums& all_;
  };
  std::unique_ptr<Communicator> wrap(std::unique_ptr<Communicator> c, std::span<const int>) override {
    return std::make_unique<Comm>(std::move(c), *this);
  }
  Device& device_;
  bool spoilt_, gathers_;
  const std::atomic<bool>& now_;
};

struct Ended {
  std::string error;
  std::vector<std::string> checkpoints;
};

// Three ranks, seven steps; rank 1's sums are wrong after step `wrong_after`. gathers: its gathered weights
// are, in the step after it alone.
Ended run_with_wrong_sums(RunSpec run, int64_t wrong_after, bool gathers = false) {
  run = resolve(run, {.native_bf16 = make_device("cpu")->native(DType::bf16)});
  const Schedule schedule = schedule_of(run);
  const TrainOptions options{.arena_bytes = book_training(run, schedule, 1).arena_bytes};
  std::atomic<bool> wrong{wrong_after == 0};
  TrainHooks hooks;
  hooks.step = [&](const StepMetrics& m) {
    wrong = gathers ? m.step == wrong_after : wrong || m.step == wrong_after;
  };
  Ended ended;
  ended.error = error_of(3, [&](Device& device, CommFactory& ranks) {
    SpoiltSums spoilt(ranks, device, ranks.rank() == 1, wrong, gathers);
    train(run, schedule, device, spoilt, options, ranks.rank() == 1 ? hooks : TrainHooks());
  });
  for (const std::string& name : names_in(fs::path(run.train.dir) / "checkpoints"))
    if (step_of_folder_name(name)) ended.checkpoints.push_back(name);
  return ended;
}

// A run compares its copies every check_every steps by itself, and ends at the first that differ.
TEST(Replicas, ARunComparesThemEveryCheckEverySteps) {
  for (int64_t every : {3, 4, 0}) {
    TempFolder tmp;
    RunSpec run = ranks_run(tmp.path(), {.dp = 3}, 7);
    run.train.check_every = every;
    run.train.checkpoint_every.count = 0;
    const int64_t found = every == 0 ? 7 : every;  // the last save compares in any case
    const Ended ended = run_with_wrong_sums(run, 0);
    EXPECT_NE(ended.error.find(fmt::format("rank 1: step {}: its ", found)), std::string::npos)
        << ended.error;
    EXPECT_TRUE(ended.checkpoints.empty());
  }
}

// Whatever check_every says: no checkpoint has state whose copies differed, written during training or not.
TEST(Replicas, EverySaveComparesThemFirst) {
  for (bool async : {false, true})
    for (int64_t wrong_after : {1, 3, 4, 6}) {
      TempFolder tmp;
      RunSpec run = ranks_run(tmp.path(), {.dp = 3}, 7);
      run.train.check_every = 0;
      run.train.checkpoint_every.count = 3;
      run.train.keep = 9;
      run.train.async_save = async;
      const Ended ended = run_with_wrong_sums(run, wrong_after);
      const int64_t found = wrong_after < 3 ? 3 : wrong_after < 6 ? 6 : 7;
      EXPECT_NE(ended.error.find(fmt::format("rank 1: step {}: its ", found)), std::string::npos)
          << ended.error;
      std::vector<std::string> good;
      for (int64_t step = 3; step < found; step += 3) good.push_back(step_folder_name(step));
      EXPECT_EQ(ended.checkpoints, good) << "async " << async << ", wrong after " << wrong_after;
      for (const std::string& name : good) {
        const Checkpoint c = Checkpoint::open(fs::path(run.train.dir) / "checkpoints" / name);
        EXPECT_EQ(c.manifest().state.at("replicas_agreed"), c.manifest().step);
      }
    }
}

// A copy of the weights that is wrong during one step, and right again after its update: gradients have seen
// it.
TEST(Replicas, WeightsThatAnUpdateOverwritesAreComparedBeforeIt) {
  for (int64_t zero : {1, 2}) {
    TempFolder tmp;
    RunSpec run = ranks_run(tmp.path(), {.dp = 3, .zero = zero}, 7);
    run.train.check_every = 0;
    run.train.checkpoint_every.count = 3;
    const Ended ended = run_with_wrong_sums(run, 3, true);
    EXPECT_NE(ended.error.find("rank 1: step 5: its "), std::string::npos) << ended.error;
    EXPECT_EQ(ended.checkpoints, std::vector<std::string>{"step-00000003"});
  }
}

// Adds to a value as soon as its rank has sent its hashes.
class Spoiler final : public CommObserver {
 public:
  explicit Spoiler(float* value) : value_(value) {}
  void issued(const CommCall&) override { *value_ += 0x1p-10f; }

 private:
  float* value_;
};

// The owner's part is correct when it is compared, and wrong when the update reads it.
TEST(Replicas, WeightsThatChangeWhileARankWaitsAreFound) {
  TempFolder tmp;
  const RunSpec run = ranks_run(tmp.path(), {.dp = 3, .zero = 1});
  const int64_t arena = book_training(run, schedule_of(run), 1).arena_bytes;
  const RankBody body = [&](Device& device, CommFactory& factory) {
    CommSet comms(factory, mesh_of(run.layout));
    StageRunner r(run, RunMode::train, device, arena, &comms);
    r.init_weights();
    const Replicas replicas(r);
    replicas.compare_weights(7);
    Spoiler spoiler(reinterpret_cast<float*>(r.params().find("blocks.1.mlp.up.weight")->weight.data));
    CommObserver* before = factory.rank() == 1 ? factory.control().observe(&spoiler) : nullptr;
    try {
      replicas.compare_weights(9);
    } catch (const Error&) {
      factory.control().observe(before);
      throw;
    }
    if (factory.rank() == 1) factory.control().observe(before);
  };
  EXPECT_EQ(error_of(3, body).find("rank 1: step 9: its weights changed in memory"), 0u);
}

}  // namespace
}  // namespace trireme::test
