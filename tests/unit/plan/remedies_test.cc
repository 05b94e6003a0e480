// What makes a run fit that does not: each remedy, put into the run as its user would, does what it says.
#include "forecast/remedies.h"

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <algorithm>
#include <sstream>

#include "base/progress.h"
#include "forecast/recompute.h"
#include "spec/run_schedule.h"

namespace trireme {
namespace {

RunSpec large_run() {
  RunSpec run;
  run.model = ModelSpec::of("llama");
  run.model.layers = 4, run.model.hidden = 48, run.model.heads = 6, run.model.kv_heads = 2,
  run.model.ffn = 96;
  run.model.vocab = 211;
  run.data.seq_len = 24, run.batch.global = 12, run.batch.micro = 3;
  run.precision.compute = "f32";
  run.model.finish(run.data.seq_len);
  return run;
}

ClusterSpec machine_of(int64_t memory) {
  ClusterSpec c;
  c.name = "test", c.peak.f32 = 5e10, c.peak.bf16 = 1e11, c.memory_bandwidth = 1e10, c.memory_bytes = memory;
  c.disk_bandwidth = 1e9, c.intra_node = {.latency = 2e-6, .bandwidth = 4e9};
  return c;
}

Forecast forecast_on(const RunSpec& asked, const ClusterSpec& c) {
  const RunSpec run = resolve(asked, {});
  return forecast(run, schedule_of(run), c, 1);
}
Forecast with_remedies(const RunSpec& asked, const ClusterSpec& c) {
  const RunSpec run = resolve(asked, {});
  Forecast f = forecast_on(asked, c);
  find_remedies(f, run, asked.precision, c, 1);
  return f;
}

// "layout.tp = 2 with layout.dp = 1", as `--set` once or twice.
RunSpec changed(const RunSpec& asked, std::string change) {
  std::vector<std::string> sets;
  for (size_t at; (at = change.find(" with ")) != std::string::npos; change = change.substr(at + 6))
    sets.push_back(change.substr(0, at));
  sets.push_back(change);
  return parse_run(save_run(asked), "test", sets);
}

void expect_true(const RunSpec& asked, const ClusterSpec& c, const Forecast& f) {
  ASSERT_TRUE(f.remedies);
  const std::vector<Remedy>& found = f.remedies->found;
  for (size_t i = 0; i < found.size(); i++) {
    SCOPED_TRACE(found[i].change);
    const Forecast after = forecast_on(changed(asked, found[i].change), c);
    EXPECT_TRUE(after.fits);
    EXPECT_EQ(found[i].saves, f.device_bytes() - after.device_bytes());
    EXPECT_DOUBLE_EQ(found[i].step_s, after.step_s);
    EXPECT_DOUBLE_EQ(found[i].costs, after.step_s / f.step_s - 1);
    EXPECT_TRUE(found[i].priced);
    if (i > 0) {
      EXPECT_GE(found[i].step_s, found[i - 1].step_s);
    }
  }
}

bool offers(const Forecast& f, const std::string& change) {
  return std::any_of(f.remedies->found.begin(), f.remedies->found.end(),
                     [&](const Remedy& r) { return r.change == change; });
}

struct Layout {
  const char* name;
  std::vector<std::string> sets;
  std::vector<std::string> other;  // what could help, of each kind the first
};
class RemediesOf : public testing::TestWithParam<Layout> {};
INSTANTIATE_TEST_SUITE_P(
    Layouts, RemediesOf,
    testing::Values(
        Layout{
            "one", {}, {"layout.recompute = \"selective\"", "batch.micro = 1", "layout.offload = \"state\""}},
        Layout{"replicas",
               {"layout.dp=2"},
               {"layout.recompute = \"selective\"", "layout.zero = 1", "batch.micro = 1",
                "layout.offload = \"state\"", "layout.tp = 2 with layout.dp = 1",
                "layout.pp = 2 with layout.dp = 1"}},
        Layout{"sharded",
               {"layout.dp=2", "layout.zero=2", "layout.recompute=full"},
               {"layout.zero = 3", "batch.micro = 1", "layout.offload = \"inputs\""}},
        Layout{"stages",
               {"layout.pp=3", "layout.recompute=selective"},
               {"layout.recompute = \"full\"", "batch.micro = 1"}}),
    [](const auto& info) { return std::string(info.param.name); });

// One byte less than it needs: each kind of change that helps at all is offered, and is what it says.
TEST_P(RemediesOf, AreWhatTheChangeDoes) {
  const RunSpec asked = parse_run(save_run(large_run()), "test", GetParam().sets);
  const Forecast roomy = with_remedies(asked, machine_of(int64_t(1) << 40));
  EXPECT_TRUE(roomy.fits);
  EXPECT_FALSE(roomy.remedies);
  EXPECT_EQ(why_not(asked, roomy), "");
  const ClusterSpec small = machine_of(roomy.device_bytes() * asked.world() - 1);
  const Forecast f = with_remedies(asked, small);
  ASSERT_FALSE(f.fits);
  expect_true(asked, small, f);
  for (const std::string& change : GetParam().other)
    EXPECT_EQ(offers(f, change), forecast_on(changed(asked, change), small).fits) << change;
  EXPECT_GE(f.remedies->found.size(), 2u);
}

// Less and less memory: what is offered first does not help any more, then another stage of its kind does,
// and at the end nothing, which is said with the one that saves most.
TEST(Remedies, GoOnAsFarAsIsNeeded) {
  RunSpec asked = large_run();
  asked.layout.dp = 2;
  const int64_t need = forecast_on(asked, machine_of(int64_t(1) << 40)).device_bytes();
  std::vector<std::string> seen;
  int64_t before = need;
  for (int i = 0; i <= 16; i++) {
    const ClusterSpec c = machine_of(2 * (need - std::max<int64_t>(1, need * i / 17)));
    const Forecast f = with_remedies(asked, c);
    expect_true(asked, c, f);
    const std::string line = why_not(resolve(asked, {}), f);
    EXPECT_EQ(line.find('\n'), std::string::npos);
    for (const Remedy& r : f.remedies->found) seen.push_back(r.change);
    if (!f.remedies->found.empty()) {
      EXPECT_FALSE(f.remedies->leanest);  // which is named where nothing is found
      continue;
    }
    ASSERT_TRUE(f.remedies->leanest);
    const Forecast leanest = forecast_on(changed(asked, f.remedies->leanest->change), c);
    EXPECT_FALSE(leanest.fits);
    EXPECT_EQ(f.remedies->leanest->saves, f.device_bytes() - leanest.device_bytes());
    for (const char* change : {"layout.zero=3", "layout.recompute=full", "batch.micro=1"})
      EXPECT_GE(forecast_on(changed(asked, change), c).device_bytes(), leanest.device_bytes()) << change;
    EXPECT_NE(line.find("none of"), std::string::npos) << line;
    EXPECT_NE(line.find(f.remedies->leanest->change), std::string::npos) << line;
    before = std::min(before, f.allowed_bytes());
  }
  EXPECT_LT(before, need);
  for (const char* change : {"layout.zero = 1", "layout.zero = 3"})
    EXPECT_NE(std::find(seen.begin(), seen.end(), change), seen.end()) << change;
}

// The line: bytes, the rank of the fullest stage, its buckets, and two remedies, the cheapest.
TEST(Remedies, TheLineNamesTheWorstRankAndTheTwoCheapest) {
  RunSpec asked = large_run();
  asked.layout.dp = 2, asked.layout.pp = 2;
  asked.model.vocab = 9001;
  const RunSpec run = resolve(asked, {});
  int64_t most = 0;
  int fullest = 0;
  for (int k = 0; k < 2; k++)
    if (const Booking b = book_stage(run, schedule_of(run), 1, {}, k); b.peak_total > most)
      most = b.peak_total, fullest = b.tape.rank;
  ASSERT_EQ(fullest, 2);  // the last stage has the logits
  const int64_t need = forecast_on(asked, machine_of(int64_t(1) << 40)).device_bytes();
  const ClusterSpec c = machine_of(4 * need - 1);
  const Forecast f = with_remedies(asked, c);
  const std::string line = why_not(run, f);
  for (const std::string& part :
       {fmt::format("this run needs {} on rank 2", exact_bytes(need)),
        fmt::format("{} for each", exact_bytes(need - 1)), std::string(": weights "),
        std::string("optimizer "), std::string("activations ")})
    EXPECT_NE(line.find(part), std::string::npos) << part << "\n" << line;
  ASSERT_GE(f.remedies->found.size(), 3u);
  for (size_t i = 0; i < f.remedies->found.size(); i++)
    EXPECT_EQ(line.find(to_text(f.remedies->found[i])) != std::string::npos, i < 2) << i << "\n" << line;
}

// A plan computes nothing: it holds no number for each block of a model that is too large for any host.
TEST(Forecast, OfTrillionsOfParametersTakesLittleMemory) {
  RunSpec run = large_run();
  run.model.layers = 64, run.model.hidden = 49152, run.model.ffn = 196608;
  run.model.heads = run.model.kv_heads = 384, run.model.head_dim = 128;
  const auto peak_kib = [] {
    rusage used{};
    getrusage(RUSAGE_SELF, &used);
    return used.ru_maxrss;
  };
  const auto before = peak_kib();
  const Forecast f = forecast_on(run, machine_of(int64_t(1) << 30));
  EXPECT_GT(f.booking.parameters, int64_t(1e12));
  EXPECT_LT(peak_kib() - before, 1 << 20) << "KiB";  // a GiB
}

// Gradients that are "auto" follow the microbatches: a smaller microbatch is booked with f32 sums.
TEST(Remedies, BookWhatTheFileWouldBe) {
  RunSpec asked = large_run();
  asked.precision.compute = "bf16", asked.batch.global = asked.batch.micro = 6;
  ASSERT_EQ(resolve(asked, {}).precision.grads, "bf16");
  const int64_t need = forecast_on(asked, machine_of(int64_t(1) << 40)).device_bytes();
  const ClusterSpec c = machine_of(need - 1);
  const Forecast f = with_remedies(asked, c);
  expect_true(asked, c, f);
  EXPECT_EQ(resolve(changed(asked, "batch.micro=3"), {}).precision.grads, "f32");
  EXPECT_EQ(offers(f, "batch.micro = 3"), forecast_on(changed(asked, "batch.micro=3"), c).fits);
  RunSpec fixed = asked;
  fixed.precision.grads = "bf16";
  const Forecast g = with_remedies(fixed, c);
  expect_true(fixed, c, g);
  EXPECT_TRUE(offers(g, "batch.micro = 3"));
}

// Time that nobody knows is not called none.
TEST(Remedies, SayWhatIsNotPriced) {
  RunSpec asked = large_run();
  asked.layout.dp = 2;
  const int64_t need = forecast_on(asked, machine_of(int64_t(1) << 40)).device_bytes();
  ClusterSpec c = machine_of(2 * need - 1);
  c.disk_bandwidth = 0;
  const Forecast f = with_remedies(asked, c);
  ASSERT_TRUE(offers(f, "layout.offload = \"state\""));
  EXPECT_EQ(f.remedies->found.back().change, "layout.offload = \"state\"");
  EXPECT_FALSE(f.remedies->found.back().priced);
  EXPECT_NE(to_text(f.remedies->found.back()).find("time that is not known"), std::string::npos);
  c.peak = {}, c.memory_bandwidth = 0;
  const Forecast untimed = with_remedies(asked, c);
  ASSERT_FALSE(untimed.remedies->found.empty());
  const std::vector<Remedy>& found = untimed.remedies->found;
  for (const Remedy& r : found)
    EXPECT_NE(to_text(r).find("in a time that is not known"), std::string::npos) << to_text(r);
  // By what they save, then.
  EXPECT_TRUE(std::is_sorted(found.begin(), found.end(),
                             [](const Remedy& a, const Remedy& b) { return a.saves > b.saves; }));
  EXPECT_GT(found.front().saves, found.back().saves);
  ClusterSpec mute = machine_of(2 * need - 1);
  mute.intra_node = {};
  asked.train.sum_order = "ordered";
  const Forecast unheard = with_remedies(asked, mute);
  ASSERT_FALSE(unheard.remedies->found.empty());
  for (const Remedy& r : unheard.remedies->found) EXPECT_FALSE(r.priced) << r.change;
  const Remedy slight{.change = "x", .saves = 1, .step_s = 1, .costs = 6e-4};
  EXPECT_NE(to_text(slight).find("costs 0.1 %"), std::string::npos) << to_text(slight);
}

// Six of twelve is half of them, and half of six is three: four is no step between. Context ranks are
// replicas too. Behind state that waits outside comes all of it, nothing else.
TEST(Remedies, TryTheNextOfAKind) {
  RunSpec asked = large_run();
  asked.batch.micro = 12;
  const auto bytes = [&](const char* set) {
    return forecast_on(changed(asked, set), machine_of(int64_t(1) << 40)).device_bytes();
  };
  ASSERT_LT(bytes("batch.micro=4"), bytes("batch.micro=6"));
  const Forecast f = with_remedies(asked, machine_of(bytes("batch.micro=4")));
  EXPECT_TRUE(offers(f, "batch.micro = 3"));
  EXPECT_FALSE(offers(f, "batch.micro = 4"));

  RunSpec context = changed(large_run(), "layout.cp=2");
  const int64_t need = forecast_on(context, machine_of(int64_t(1) << 40)).device_bytes();
  EXPECT_TRUE(offers(with_remedies(context, machine_of(2 * need - 1)), "layout.zero = 1"));

  const RunSpec outside =
      changed(large_run(), "layout.offload=state with layout.recompute=full with batch.micro=1");
  const int64_t left = forecast_on(outside, machine_of(int64_t(1) << 40)).device_bytes();
  const Forecast g = with_remedies(outside, machine_of(left - 1));
  EXPECT_EQ(g.remedies->tried, 1);
  ASSERT_TRUE(g.remedies->leanest);
  EXPECT_EQ(g.remedies->leanest->change, "layout.offload = \"all\"");
}

// Of runs of many actions the ranks that stand for all are booked, nothing is replayed: the same verdicts and
// the same bytes, and times that are near.
class QuickRemedies : public testing::TestWithParam<std::vector<std::string>> {};
INSTANTIATE_TEST_SUITE_P(
    Layouts, QuickRemedies,
    testing::Values(std::vector<std::string>{"layout.pp=4", "layout.dp=2", "batch.micro=2",
                                             "batch.global=48"},
                    std::vector<std::string>{"layout.pp=2", "layout.dp=2", "layout.schedule=interleaved",
                                             "layout.chunks=2"},
                    std::vector<std::string>{"layout.tp=2", "layout.dp=2", "layout.zero=1"}));

TEST_P(QuickRemedies, AreThoseOfTheReplay) {
  const RunSpec asked = parse_run(save_run(large_run()), "test", GetParam());
  const RunSpec run = resolve(asked, {});
  const int64_t need = forecast_on(asked, machine_of(int64_t(1) << 40)).device_bytes();
  const ClusterSpec c = machine_of(need * run.world() - 1);
  const Forecast slow = with_remedies(asked, c);
  Forecast quick = forecast(run, schedule_of(run), c, 1);
  find_remedies(quick, run, asked.precision, c, 1, 0);
  ASSERT_GE(slow.remedies->found.size(), 2u);
  EXPECT_EQ(slow.remedies->booked, 0);
  EXPECT_EQ(quick.remedies->tried, slow.remedies->tried);
  ASSERT_EQ(quick.remedies->found.size(), slow.remedies->found.size());
  for (const Remedy& q : quick.remedies->found) {
    const auto same = std::find_if(slow.remedies->found.begin(), slow.remedies->found.end(),
                                   [&](const Remedy& r) { return r.change == q.change; });
    ASSERT_NE(same, slow.remedies->found.end()) << q.change;
    EXPECT_EQ(q.saves, same->saves) << q.change;
    EXPECT_TRUE(q.about);
    EXPECT_FALSE(same->about);
    EXPECT_NEAR(q.step_s / same->step_s, 1, 0.2) << q.change;
    if (std::abs(q.costs) > 1e-3) {
      EXPECT_NE(to_text(q).find("about"), std::string::npos) << to_text(q);
    }
  }
  // The run's own ranks and each change's: three at the most (the first, one between, the last), of a chunk
  // each.
  EXPECT_LE(quick.remedies->booked, (1 + quick.remedies->tried) * std::min<int64_t>(run.layout.pp * 2, 3));
}

// By its own length and the change's: what has twice the microbatches is estimated where the others are
// replayed.
TEST(Remedies, OfALongerChangeAreEstimated) {
  const RunSpec asked =
      parse_run(save_run(large_run()), "test",
                std::vector<std::string>{"layout.dp=2", "batch.micro=4", "batch.global=24"});
  const RunSpec run = resolve(asked, {});
  const int64_t need = forecast_on(asked, machine_of(int64_t(1) << 40)).device_bytes();
  const ClusterSpec c = machine_of(need * run.world() - 1);
  Forecast f = forecast(run, schedule_of(run), c, 1);
  find_remedies(f, run, asked.precision, c, 1, int64_t(f.booking.tape.pieces.size()) * 3 / 2);
  int about = 0, replayed = 0;
  for (const Remedy& r : f.remedies->found) {
    const bool longer =
        r.change.starts_with("batch.micro") || r.change.find("layout.dp") != std::string::npos;
    EXPECT_EQ(r.about, longer) << r.change;
    (r.about ? about : replayed)++;
  }
  EXPECT_GT(about, 0);
  EXPECT_GT(replayed, 0);
}

// recompute = "auto" that is not enough is a run that does not fit, with its remedies; devices of machines
// that have several are not shared.
TEST(Remedies, BehindAChosenRecompute) {
  RunSpec asked = large_run();
  asked.layout.dp = 2;
  const auto bytes = [&](const char* set) {
    return forecast_on(changed(asked, set), machine_of(int64_t(1) << 40)).device_bytes();
  };
  const int64_t full = bytes("layout.recompute=full");
  asked.layout.recompute = "auto";
  const ClusterSpec c = machine_of(2 * full - 1);
  const RunSpec run = choose_recompute(resolve(asked, {}), c, 1);
  EXPECT_EQ(run.layout.recompute, "full");
  Forecast f = forecast(run, schedule_of(run), c, 1);
  ASSERT_FALSE(f.fits);
  find_remedies(f, run, asked.precision, c, 1);
  EXPECT_TRUE(offers(f, "layout.zero = 1"));
  ClusterSpec own = machine_of(full);
  own.devices_per_node = 2;
  EXPECT_EQ(ranks_on_device(run, own), 1);
  const RunSpec there = choose_recompute(resolve(asked, {}), own, 1);
  EXPECT_TRUE(forecast(there, schedule_of(there), own, 1).fits);
}

// A run on the CPU that fits has two alternatives, the faster first. Each forecast is that of the changed
// run.
TEST(Alternatives, OfARunOnTheCpu) {
  RunSpec asked = large_run();
  asked.layout.dp = 2;
  asked.layout.recompute = "full";
  const ClusterSpec c = machine_of(1 << 30);
  const RunSpec run = resolve(asked, {});
  Forecast f = forecast_on(asked, c);
  ASSERT_TRUE(f.fits && !f.closed_form && f.alternatives.empty());
  find_replayed_alternatives(f, run, asked.precision, c, 1);
  ASSERT_EQ(f.alternatives.size(), 2u);
  EXPECT_LE(f.alternatives[0].step_s, f.alternatives[1].step_s);
  for (const Alternative& a : f.alternatives) {
    SCOPED_TRACE(a.change);
    const Forecast after = forecast_on(changed(asked, a.change), c);
    EXPECT_DOUBLE_EQ(a.step_s, after.step_s);
    EXPECT_DOUBLE_EQ(a.bytes, double(after.device_bytes()));
  }
  EXPECT_LT(f.alternatives[0].step_s, f.step_s);  // recompute costs a forward pass
}

}  // namespace
}  // namespace trireme
