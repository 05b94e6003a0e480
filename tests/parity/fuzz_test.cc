// Random layouts against one rank. PARITY_CASES of them (12), from PARITY_SEED on (1), in turn of few axes
// and of many at once; PARITY_CASE="dp=3 zero=2 ..." runs one. A case that fails is printed as the command
// that runs it alone.
#include <fmt/format.h>

#include <cmath>
#include <cstdlib>
#include <map>

#include "base/rng.h"
#include "compare.h"
#include "folder.h"
#include "forecast/forecast.h"
#include "layout_case.h"
#include "sanitized.h"
#include "spec/known_routing.h"
#include "spec/nearest.h"
#include "spec/run_schedule.h"
#include "spec/supported.h"

namespace trireme::parity {
namespace {

std::string from_environment(const char* name, const char* otherwise) {
  const char* text = std::getenv(name);
  return text && *text ? text : otherwise;
}

// ep divides dp * cp * tp and the experts, tp the sequences whose rows its ranks route.
template <class OneOf>
void draw_experts(Case& c, const OneOf& one_of) {
  const int64_t ranks = c.dp * c.cp * c.tp, first = one_of(2, 3, 4);
  c.ep = ranks % first == 0 ? first : one_of(int64_t(1), ranks);
  c.experts = c.ep * one_of(1, 2, 3);
  if (c.experts < 2) c.experts = 5;
  if (c.arch == "deepseek_v3" && c.ep % 3 == 0) c.ep = 1;  // its eight experts are in four groups
  if (c.tp > 1) c.seq = c.tp * one_of(3, 5);
  if (c.tp > 1 || c.ep > 1) c.group = 0;
  c.buffer = one_of(1.5, 0.4), c.aux = one_of(0.0, 0.3);
  c.unit = one_of("sequence", "microbatch", "global"), c.capacity = one_of(0.0, 0.0, 0.9);
}

Case draw(uint64_t seed) {
  const uint64_t key = rng_key(seed, 0, "parity case");
  uint64_t n = 0;
  auto one_of = [&](auto... values) {
    const std::array all{values...};
    return all[size_t(below(key, n++, all.size()))];
  };
  Case c;
  c.arch = one_of("llama", "gpt2", "qwen2", "qwen3", "mixtral", "deepseek_v3");
  c.compute = one_of("f32", "f32", "bf16", "f16");
  const bool moe = c.arch == "mixtral" || c.arch == "deepseek_v3";
  if (moe) c.compute = "f32";  // a rounding that flips a choice is another model
  c.tied = one_of(false, true);
  c.dp = one_of(1, 2, 3, 4);
  c.zero = one_of(0, 1, 2, 3);
  c.group = c.dp == 4 ? one_of(0, 2, 4, 1) : 0;
  c.micro = one_of(1, 2), c.microbatches = one_of(1, 2, 3);
  c.layers = one_of(1, 2, 3), c.hidden = one_of(30, 36, 66);
  c.vocab = one_of(61, 127, 509), c.seq = one_of(5, 17, 23);
  c.schedule = one_of("1f1b", "gpipe");
  c.reshard = one_of(true, false), c.last = one_of(true, false), c.prefetch = one_of(0, 1, 2);
  c.bucket_mb = one_of(0.0, 0.02, 25.0);
  c.dropout = one_of(0.0, 0.0, 0.1);
  if (c.compute == "bf16") {
    c.grads = one_of("f32", "bf16");
    c.reduce = one_of("auto", "f32", "bf16");
  }
  c.optimizer = one_of("adamw", "adamw", "muon");
  c.tp = c.dp <= 2 ? one_of(1, 2, 3, 4) : 1;
  if (c.tp == 1 && c.dp <= 2) c.cp = one_of(1, 2, 3, 4);
  if (c.arch == "llama") c.latent = one_of(0, 1, 2);
  if (moe) draw_experts(c, one_of);
  if (c.tp > 1) {
    c.heads = c.tp * one_of(1, 2), c.hidden = c.heads * one_of(4, 10);
    const int64_t fewer = c.tp % 2 == 0 ? c.tp / 2 : 1;
    c.sequence = one_of(false, true), c.chunks = one_of(1, 1, 2, 5);
    if (c.sequence) c.seq = c.tp * one_of(3, 5);
    c.kv_heads = c.arch == "gpt2" ? c.heads : one_of(int64_t(1), fewer, c.tp, c.heads);
  }
  c.separate = one_of(false, true);
  if (c.cp > 1) {
    c.method = one_of("ring", "ring", "ulysses");
    c.placement = one_of("zigzag", "contiguous", "striped");
    c.seq = c.cp * (c.method == "ring" && c.placement == "zigzag" ? one_of(4, 6) : one_of(5, 7));
    c.heads = c.method == "ulysses" ? c.cp : 3, c.hidden = c.heads * one_of(4, 12);
    c.kv_heads = c.arch == "gpt2" || c.method == "ulysses" ? c.heads : one_of(int64_t(1), c.heads);
    if (c.group > c.dp) c.group = 0;
  }
  if (c.dp * c.tp * c.cp <= 4) c.pp = one_of(1, 2, 3);
  if (c.pp > 1) {
    c.schedule = one_of("1f1b", "gpipe", "auto", "zb-h1", "zb-h2", "interleaved", "zb-v", "v-half", "v-min",
                        "dualpipe-v", "dualpipe");
    const bool v = c.schedule[0] == 'v' || c.schedule.ends_with("-v");
    if (v || c.schedule == "interleaved") c.stages = 2;
    if (v) c.tied = false;  // both ends on one rank add their summands in another order
    // Each of a stage's copies knows the choices of its own microbatches alone.
    if (c.schedule == "dualpipe" && c.unit == "global") c.unit = "microbatch";
    if (c.schedule == "dualpipe") c.pp = 2, c.microbatches = std::max<int64_t>(c.microbatches, 2);
    c.layers = std::max(c.layers, c.pp * c.stages);
  }
  c.recompute = one_of("none", "selective", "full");
  c.again = c.arch == "deepseek_v3" ? one_of("n1+n2+a", "n1+u")
                                    : one_of("n1+n2+a", "o", "qkv+n2", "mid+a", "n1+qkv+o+mid+n2+u+a");
  if (c.recompute != "none") c.blocks = one_of(0, 0, 1);
  if (c.recompute == "full" && c.tp > 1 && !c.sequence && c.micro * c.seq % c.tp == 0)
    c.shard = one_of(false, true);
  if (c.recompute == "full") c.offload = one_of(false, false, true);
  c.axes = one_of("", "", "tp+cp+dp+pp", "dp+pp+tp+cp");
  if (c.compute == "f32")
    c.order = one_of("ordered", "ordered", "ordered", "ring", "halving", "hierarchical");
  if (c.optimizer == "adamw") c.state = one_of(false, false, true);
  if (c.pp > 1 && !c.state) c.post = one_of("off", "calm", "always");
  if (c.optimizer == "muon") c.post = "off";
  if (c.pp > 1) c.cut = one_of("cost", "even");
  if (c.cut == "even" && c.layers > 2) c.layers -= one_of(0, 1, 2);  // ends without a block
  // Follows the seed without a draw, so that the other values of a seed do not change.
  if (c.pp > 1 && c.cut == "cost" && seed % 3 == 0) c.cut = "stated";
  if (c.optimizer == "adamw" && !c.state && seed % 2 == 0) c.moments = "bf16";
  return c;
}

constexpr int64_t kMostRanks = 16;

// Also into the file NAME of the folder that PARITY_REFUSED names, which `make test` prints: ctest shows
// nothing of tests that pass.
void say(const char* name, const std::string& text) {
  fmt::print("{}\n", text);
  const std::string folder = from_environment("PARITY_REFUSED", "");
  if (folder.empty()) return;
  fs::create_directories(folder);
  write_text_atomic(fs::path(folder) / name, text + "\n");
}

// What is wrong with it, by key.
std::vector<Problem> problems(const Case& c) {
  const RunSpec run = unchecked_run_of(c);
  std::vector<Problem> wrong = problems_of(run);
  for (Problem& p : unsupported_of(run)) wrong.push_back(std::move(p));
  if (wrong.empty() && c.schedule != "auto") try {
      schedule_of(run);
    } catch (const Error& e) {
      wrong.push_back({{"layout.schedule"}, e.what()});
    }
  return wrong;
}

// Axes of two to four ranks, two to all four of them at once, up to 16 ranks, with sizes that they divide;
// what does not go together is drawn again.
Case draw_together(uint64_t seed, int* refused = nullptr) {
  const uint64_t key = rng_key(seed, 0, "parity case, together");
  uint64_t n = 0;
  auto one_of = [&](auto... values) {
    const std::array all{values...};
    return all[size_t(below(key, n++, all.size()))];
  };
  for (int attempt = 0; attempt < 1000; attempt++) {
    Case c;
    c.arch =
        one_of("llama", "gpt2", "qwen3", "mixtral", "qwen2_moe", "qwen3_moe", "deepseek_v2", "deepseek_v3");
    const bool deepseek = c.arch.starts_with("deepseek"),
               moe = deepseek || c.arch.ends_with("moe") || c.arch == "mixtral";
    c.dp = one_of(1, 2, 2, 3, 4), c.tp = one_of(1, 2, 2, 3, 4), c.cp = one_of(1, 2, 2, 3, 4),
    c.pp = one_of(1, 2, 2, 3, 4);
    const int axes = (c.dp > 1) + (c.tp > 1) + (c.cp > 1) + (c.pp > 1);
    if (axes < 2 || c.dp * c.tp * c.cp * c.pp > kMostRanks) continue;
    c.compute = one_of("f32", "f32", "bf16", "f16");
    c.zero = one_of(0, 1, 2, 3), c.group = one_of(0, 0, 2);
    c.tied = one_of(false, true), c.sequence = c.tp > 1 && one_of(false, true);
    c.chunks = c.tp > 1 ? one_of(1, 1, 2) : 1;
    c.method = one_of("ring", "ring", "ulysses"), c.placement = one_of("zigzag", "contiguous", "striped");
    c.heads = c.tp * (c.method == "ulysses" ? c.cp : 1) * one_of(1, 2), c.hidden = c.heads * one_of(4, 6);
    c.kv_heads = c.arch == "gpt2" || deepseek || c.method == "ulysses" ? c.heads : one_of(c.tp, c.heads);
    c.seq = 2 * c.cp * c.tp * one_of(2, 3), c.vocab = one_of(61, 127);
    c.micro = one_of(1, 2), c.microbatches = c.pp == 1 ? one_of(1, 2) : c.pp * one_of(1, 2);
    c.separate = one_of(false, true), c.dropout = one_of(0.0, 0.0, 0.1);
    if (c.pp > 1) {
      c.schedule = one_of("1f1b", "gpipe", "auto", "zb-h1", "zb-h2", "interleaved", "zb-v", "v-half", "v-min",
                          "dualpipe-v", "dualpipe");
      const bool v = c.schedule[0] == 'v' || c.schedule.ends_with("-v");
      if (v || c.schedule == "interleaved") c.stages = 2;
      if (v) c.tied = false;  // both ends on one rank add their summands in another order
    }
    c.layers = c.pp * c.stages * one_of(1, 1, 2);
    if (moe) {
      c.ep = one_of(1, 2, 2, 3, 4), c.experts = c.ep * one_of(2, 3);
      c.buffer = one_of(1.5, 0.4), c.aux = one_of(0.0, 0.3);
      c.unit = one_of("sequence", "microbatch"), c.capacity = one_of(0.0, 0.0, 0.9);
    }
    c.recompute = one_of("none", "selective", "full");
    c.again = deepseek ? one_of("n1+n2+a", "n1+u") : one_of("n1+n2+a", "qkv+n2", "n1+qkv+o+mid+n2+u+a");
    c.reshard = one_of(true, false), c.prefetch = one_of(0, 1, 2), c.bucket_mb = one_of(0.02, 25.0);
    if (c.compute == "bf16") c.grads = one_of("f32", "bf16"), c.reduce = one_of("auto", "bf16");
    c.axes = one_of("", "tp+cp+dp+pp", "dp+pp+tp+cp");
    c.optimizer = one_of("adamw", "adamw", "muon");
    if (c.optimizer == "adamw") c.state = one_of(false, false, true);
    if (c.pp > 1 && !c.state && c.optimizer == "adamw") c.post = one_of("off", "calm", "always");
    if (c.optimizer == "adamw" && !c.state && seed % 2 == 0) c.moments = "bf16";
    if (problems(c).empty()) return c;
    if (refused) ++*refused;
  }
  bad_request("seed {}: nothing works together", seed);
}
// Cases in turn of few axes and of many.
Case case_of(uint64_t seed) {
  return seed % 2 == 0 ? draw(seed) : draw_together(seed);
}

// Another layout of the same class: equal to the bit. Shard groups round sums twice, ZeRO 0 has none of them.
Case twin_of(Case c) {
  const bool hybrid = c.group > 1 && c.group < c.dp * c.cp;
  if (hybrid && c.zero == 0)
    c.group = 0;
  else if (hybrid && c.zero == 1)
    c.zero = c.microbatches == 1 ? 2 : 1;
  else
    c.zero = c.zero % 2 == 0 ? c.zero + 1 : c.zero - 1;
  if (!hybrid && c.microbatches == 1) c.zero = 3 - c.zero;
  c.prefetch = 1, c.bucket_mb = 25, c.reshard = c.last = true;
  c.recompute = c.recompute == "none" ? "full" : "none", c.shard = c.offload = c.state = false, c.blocks = 0;
  if (c.pp > 1 && c.schedule != "dualpipe")  // whose copies halve the sum over microbatches
    c.schedule = c.schedule == "gpipe" ? "1f1b" : "gpipe", c.stages = 1;
  if (c.pp > 1 && c.optimizer != "muon") c.post = c.post == "off" ? "always" : "off";
  return c;
}

// What drawn layouts have shown, for whoever runs many.
struct Shown {
  int layouts = 0, experts = 0, divided = 0, recorded = 0;  // recorded: booked with their routers' choices
  int unbalanced = 0;  // ranks whose bytes of all_to_all are not a balanced router's
  int rounds = 0;      // ranks whose FLOPs are not
};

void expect_counted(const RankFacts& facts, const Booking& booked) {
  EXPECT_EQ(facts.peaks, booked.peak);
  EXPECT_EQ(counts_of(booked.tape), booked.comm);
  if (facts.again) return;  // post-validation did part of the step twice
  for (size_t k = 0; k < kCollectives; k++)
    EXPECT_EQ(facts.comm[k], booked.comm[k]) << name_of(Collective(k));
  EXPECT_EQ(facts.cost.flops, booked.total.flops);
  EXPECT_EQ(facts.launches, booked.launches);
}

// Beside the routers' choices: of a rank whose experts others have too, what is counted lies in the interval
// that holds whatever they choose, and what they do not decide is as booked.
void expect_within(const RunSpec& run, const Schedule& schedule, const RankFacts& facts,
                   const Booking& booked, Shown& shown) {
  EXPECT_EQ(facts.peaks, booked.peak);
  if (facts.again) return;
  const std::optional<RoutedFlops> flops = routed_flops(run, schedule, booked);
  ASSERT_TRUE(flops && booked.wire.rows.size() == 1);
  const RoutedBytes bytes = routed_bytes(run, schedule, booked.wire.rows[0]);
  const int64_t rows = facts.comm[size_t(Collective::all_to_all)].wire;
  EXPECT_LE(bytes.least, rows);
  EXPECT_LE(rows, bytes.most);
  EXPECT_LE(flops->least, facts.cost.flops);
  EXPECT_LE(facts.cost.flops, flops->most);
  for (size_t k = 0; k < kCollectives; k++)
    if (Collective(k) != Collective::all_to_all) {
      EXPECT_EQ(facts.comm[k], booked.comm[k]) << name_of(Collective(k));
    }
  shown.unbalanced += rows != booked.comm[size_t(Collective::all_to_all)].wire;
  shown.rounds += facts.cost.flops != booked.total.flops;
}

// Rank by rank what meta booked of a step is what the last one counted: bytes of each bucket and on the wire,
// FLOPs and launches. Of experts that ranks divide, where `recorded` says what their routers chose.
void expect_as_booked(const RunSpec& run, const Ran& ran, const fs::path& recorded, Shown& shown) {
  const Schedule schedule = schedule_of(run);
  const bool chosen = run.model.moe() && run.layout.ep > 1;
  RunSpec known = run;
  if (chosen) set_known_routing(known, read_recorded_rows(recorded), 0, recorded.string());
  CommCounts most{};
  bool again = false;
  for (size_t r = 0; r < ran.ranks.size(); r++) {
    SCOPED_TRACE(fmt::format("rank {}", r));
    const RankFacts& facts = ran.ranks[r];
    expect_counted(facts, book_rank(known, schedule, 1, {}, int(r)));
    if (chosen) expect_within(run, schedule, facts, book_rank(run, schedule, 1, {}, int(r)), shown);
    for (size_t k = 0; k < kCollectives; k++) most[k].wire = std::max(most[k].wire, facts.comm[k].wire);
    again |= facts.again;
  }
  shown.layouts++, shown.experts += run.model.moe(), shown.divided += chosen;
  if (again) return;
  shown.recorded += chosen;
  const Forecast f = forecast(known, schedule, {}, 1);
  EXPECT_FALSE(f.routed || f.routed_flops);  // nothing is left open
  for (size_t k = 0; k < kCollectives; k++)
    EXPECT_EQ(most[k].wire, f.wire.of[k].wire) << name_of(Collective(k));
  if (!chosen) return;
  const Forecast open = forecast(run, schedule, {}, 1);
  ASSERT_TRUE(open.routed && open.routed_flops);
  EXPECT_LE(open.routed->least, most[size_t(Collective::all_to_all)].wire);
  EXPECT_LE(most[size_t(Collective::all_to_all)].wire, open.routed->most);
  const double flops = ran.ranks[size_t(open.booking.tape.rank)].cost.flops;
  EXPECT_LE(open.routed_flops->least, flops);
  EXPECT_LE(flops, open.routed_flops->most);
}

void check(const Case& c, Shown& shown) {
  const std::string command =
      fmt::format("PARITY_CASE=\"{}\" ctest -R 'parity_fuzz$' --output-on-failure", to_text(c));
  SCOPED_TRACE(command);
  try {
    const RunSpec run = run_of(c);
    const test::TempFolder folder;
    const Ran ran = train_layout(run, {.steps = 8, .routing = folder.path()});
    // The fast orders' roundings follow the cut of buffers into blocks.
    if (c.order == "ordered") expect_identical(ran, train_layout(run_of(twin_of(c)), {.steps = 8}));
    expect_as_booked(run, ran, folder / "routing.jsonl", shown);
    for (const RankFacts& r : ran.ranks) EXPECT_EQ(r.moved, r.counted);
    const Plan equal{.steps = 2, .gradients = true};
    const Ran one = train_layout(one_rank_of(c), equal);
    Plan same = equal;  // choices of experts: one made otherwise by a rounding is another model
    if (run_of(c).model.moe()) same.replay = &one.routing;
    const Ran layout = train_layout(run_of(c), same);
    if (c.compute != "f32" &&
        (c.tp > 1 || c.cp > 1)) {  // summands are rounded: gradients that are only noise are other noise
      Case exact = c;
      exact.compute = exact.grads = "f32", exact.reduce = "auto";
      expect_as_exact(layout, one, train_layout(one_rank_of(exact), equal));
    } else {
      // f16 and bf16: roundings of the wire and of the accumulators, of gradients that are equal otherwise.
      EXPECT_LE(gradient_difference(layout, one), c.compute == "f32" ? 1e-4 : 6e-2);
    }
    EXPECT_LE(loss_difference(layout, one), c.compute == "f32" ? 1e-5 : 1e-2);
  } catch (const Error& e) {
    ADD_FAILURE() << e.what();
  }
}

TEST(Fuzz, RandomLayoutsTrainTheSameModel) {
  Shown shown;
  if (std::string one = from_environment("PARITY_CASE", ""); !one.empty())
    return check(from_text(one), shown);
  const uint64_t seed = std::stoull(from_environment("PARITY_SEED", "1"));
  const uint64_t cases = std::stoull(from_environment("PARITY_CASES", "12"));
  for (uint64_t i = 0; i < cases && !HasFailure(); i++) check(case_of(seed + i), shown);
  fmt::print(
      "seeds {} to {}: {} layouts, {} with experts, {} of these divided over ranks, {} of these booked with "
      "the "
      "recorded routing; on {} ranks bytes were not a balanced router's, on {} FLOPs\n",
      seed, seed + cases - 1, shown.layouts, shown.experts, shown.divided, shown.recorded, shown.unbalanced,
      shown.rounds);
}

// Without a run: of many more layouts the forecast's bytes are the most that any rank books. Rows of divided
// experts are the routers' choice.
TEST(Fuzz, ForecastsSayTheMostThatAnyRankSends) {
  int alike = 0, uneven = 0, stages = 0, owners = 0;
  for (uint64_t seed = 1; seed <= 200; seed++) {
    if (seed % uint64_t(test::one_of(1, 5)) != 0) continue;
    const Case c = case_of(seed);
    SCOPED_TRACE(to_text(c));
    const RunSpec run = run_of(c);
    const Schedule schedule = schedule_of(run);
    MostWire all;
    for (int r = 0; r < int(run.world()); r++) all.take(record_training(run, schedule, 1, r));
    const MostWire wire = forecast(run, schedule, {}, 1).wire;
    for (size_t k = 0; k < kCollectives; k++) {
      EXPECT_EQ(wire.algorithms[k], all.algorithms[k]) << name_of(Collective(k));
      if (c.ep == 1 || Collective(k) != Collective::all_to_all) {
        EXPECT_EQ(wire.of[k].wire, all.of[k].wire) << name_of(Collective(k));
      }
    }
    uneven += wire.uneven, stages += c.pp > 2;
    if (c.ep > 1) continue;
    EXPECT_EQ(wire.busiest, all.busiest);
    EXPECT_EQ(wire.alike, all.alike);
    alike += all.alike, owners += c.optimizer == "muon" && c.pp == 1 && !all.alike;
  }
  if (test::one_of(1, 5) > 1) return;  // the few may have none
  EXPECT_GT(alike, 5);
  EXPECT_GT(uneven, 5);
  EXPECT_GT(stages, 5);
  EXPECT_GT(owners, 2);
}

enum class Rows : uint8_t { even, one_owner, home };

// Rows of a step, alike in all blocks and microbatches: dealt out to owners in turn (none, where a capacity
// may drop all), or as many as tokens can choose of its experts to the first owner or to the rank that has
// them.
RunSpec with_rows(RunSpec run, Rows how) {
  const RoutingShape s = routing_shape_of(run);
  const int64_t own = s.experts / s.ep, to_one = s.rows() / s.choices * std::min(s.choices, own);
  const Mesh mesh = mesh_of(run.layout);
  auto step = std::make_shared<StepRows>();
  for (int rank = 0; rank < int(s.world()); rank++) {
    std::vector<int32_t> rows(static_cast<size_t>(s.experts));
    const int64_t place = mesh.coord(rank, Axis::ep), first = how == Rows::home ? place : 0;
    for (int64_t i = 0; i < s.rows(); i++) {
      const int64_t owner = how == Rows::even ? place * s.rows() + i : first + (i >= to_one);
      if (how != Rows::even || run.moe.capacity == 0) rows[size_t(owner % s.ep * own)]++;
    }
    for (int64_t block = 0; block < s.layers; block++)
      for (int64_t mb = 0; mb < s.microbatches(); mb++) step->add(rank, block, mb, rows);
  }
  set_known_routing(run, {.shape = s, .steps = {{1, step}}}, 1, "rows");
  return run;
}

// Without a run: the interval of FLOPs is no wider than what is booked of the fewest and of the most rounds,
// and what these move is in the interval of bytes.
TEST(Fuzz, FlopsReachTheEndsOfTheirInterval) {
  int divided = 0, wide = 0, many = 0;
  for (uint64_t seed = 1; seed <= 200; seed++) {
    const Case c = case_of(seed);
    if (c.ep == 1) continue;
    SCOPED_TRACE(to_text(c));
    const RunSpec run = run_of(c);
    const Schedule schedule = schedule_of(run);
    const auto booked = [&](const RunSpec& of) {
      return book_rank(of, schedule, 1, {}, int(run.world()) - 1);
    };
    const Booking balanced = booked(run), fewest = booked(with_rows(run, Rows::even)),
                  most = booked(with_rows(run, Rows::one_owner)), home = booked(with_rows(run, Rows::home));
    const auto flops = routed_flops(run, schedule, balanced);
    ASSERT_TRUE(flops && balanced.wire.rows.size() == 1);
    EXPECT_EQ(flops->least, fewest.total.flops);
    EXPECT_EQ(flops->most, most.total.flops);
    const RoutedBytes bytes = routed_bytes(run, schedule, balanced.wire.rows[0]);
    for (const Booking* b : {&fewest, &most, &home}) {
      const int64_t rows = b->comm[size_t(Collective::all_to_all)].wire;
      EXPECT_LE(bytes.least, rows);
      EXPECT_LE(rows, bytes.most);
    }
    divided++, wide += flops->least < flops->most, many += c.buffer < 1;
  }
  EXPECT_GT(divided, 50);
  EXPECT_GT(wide, 40);
  EXPECT_GT(many, 20);
}

// Over the seeds that the long run takes every two axes meet, every three but for those that 16 ranks forbid,
// and all four; every family of experts over ranks, every schedule beside every axis.
TEST(Fuzz, AllAxesMeet) {
  std::map<std::string, int> met;
  int refused = 0;
  int64_t most = 0;
  for (uint64_t seed = 1001; seed <= 1199; seed += 2) {
    const Case c = draw_together(seed, &refused);
    std::vector<std::string> axes;
    for (auto [name, degree] :
         {std::pair{"dp", c.dp}, {"tp", c.tp}, {"cp", c.cp}, {"pp", c.pp}, {"ep", c.ep}})
      if (degree > 1) axes.push_back(name);
    for (size_t i = 0; i < axes.size(); i++) {
      if (c.pp > 1) met[c.schedule + "+" + axes[i]]++;
      for (size_t j = i + 1; j < axes.size(); j++) {
        met[axes[i] + "+" + axes[j]]++;
        for (size_t k = j + 1; k < axes.size(); k++) met[axes[i] + "+" + axes[j] + "+" + axes[k]]++;
      }
    }
    if (c.dp > 1 && c.tp > 1 && c.cp > 1 && c.pp > 1) met["all four"]++;
    if (c.ep > 1) {
      met[c.arch]++, met["experts in " + c.compute]++;
      if (c.arch != "mixtral" && c.arch != "qwen3_moe") met["a shared expert in " + c.compute]++;
    }
    most = std::max(most, c.dp * c.tp * c.cp * c.pp);
  }
  say("together", fmt::format("{} drawn layouts were refused on the way to 100 that work", refused));
  EXPECT_EQ(most, kMostRanks);
  std::vector<std::string> wanted = {"all four",  "mixtral",     "qwen2_moe",
                                     "qwen3_moe", "deepseek_v2", "deepseek_v3"};
  for (const char* compute : {"f32", "bf16", "f16"})
    for (const char* what : {"experts in ", "a shared expert in "})
      wanted.push_back(std::string(what) + compute);
  const std::vector<std::string> axes = {"dp", "tp", "cp", "pp", "ep"};
  for (size_t i = 0; i < axes.size(); i++) {
    for (const char* schedule : {"1f1b", "gpipe", "auto", "zb-h1", "zb-h2", "interleaved", "zb-v", "v-half",
                                 "v-min", "dualpipe-v", "dualpipe"})
      if (axes[i] == "pp") wanted.push_back(std::string(schedule) + "+pp");
    for (size_t j = i + 1; j < axes.size(); j++) {
      wanted.push_back(axes[i] + "+" + axes[j]);
      for (size_t k = j + 1; k < axes.size(); k++) wanted.push_back(axes[i] + "+" + axes[j] + "+" + axes[k]);
    }
  }
  for (const std::string& name : wanted) EXPECT_GT(met[name], 0) << name;
}

// Layouts drawn with no regard for what goes together: what is refused, before anything starts, says why in
// good form and names a layout that works; what is taken trains. Prints the share and the reasons.
Case draw_freely(uint64_t seed) {
  const uint64_t key = rng_key(seed, 0, "parity case, free");
  uint64_t n = 0;
  auto one_of = [&](auto... values) {
    const std::array all{values...};
    return all[size_t(below(key, n++, all.size()))];
  };
  Case c = draw(seed);
  c.arch = one_of("llama", "gpt2", "qwen2", "qwen3", "mixtral", "deepseek_v3"), c.latent = 0;
  const bool moe = c.arch == "mixtral" || c.arch == "deepseek_v3";
  if (moe) c.compute = c.grads = "f32";
  c.dp = one_of(1, 2, 4), c.tp = one_of(1, 2, 3), c.cp = one_of(1, 1, 2), c.pp = one_of(1, 1, 2, 4);
  c.ep = one_of(1, 1, 2, 3), c.zero = one_of(0, 1, 2, 3), c.group = one_of(0, 0, 2, 3);
  c.stages = one_of(1, 1, 2), c.sequence = c.tp > 1 && one_of(false, true), c.layers = one_of(2, 4, 8);
  c.schedule = one_of("1f1b", "gpipe", "interleaved", "zb-h1", "zb-v", "dualpipe", "dualpipe-v");
  c.heads = one_of(2, 3, 6), c.hidden = c.heads * 12,
  c.kv_heads = c.arch == "gpt2" ? c.heads : one_of(int64_t(1), c.heads);
  c.seq = one_of(12, 24, 24), c.optimizer = one_of("adamw", "adamw", "muon");
  if (c.optimizer == "muon") {  // no layout helps
    c.state = false;
    c.post = "off";
    c.moments = "f32";
  }
  c.shard = one_of(false, false, true), c.blocks = one_of(0, 0, 1), c.offload = one_of(false, false, true);
  if (!moe) c.aux = 0, c.capacity = 0, c.ep = 1;
  if (c.pp == 1) c.stages = 1, c.schedule = one_of("1f1b", "gpipe", "zb-h1");
  return c;
}

TEST(Fuzz, WhatIsRefusedSaysWhy) {
  const int drawn = 300;
  int refused = 0, asked = 0, helped = 0, trained = 0;
  std::map<std::string, int> reasons, stuck;
  for (uint64_t seed = 1; seed <= drawn; seed++) {
    const Case c = draw_freely(seed);
    const RunSpec run = unchecked_run_of(c);
    const std::vector<Problem> wrong = problems(c);
    if (!wrong.empty()) {
      refused++;
      for (const Problem& p : wrong) {
        ASSERT_FALSE(p.keys.empty() || p.text.empty()) << to_text(c);
        EXPECT_EQ(p.text.find('\n'), std::string::npos) << p.text;
      }
      reasons[fmt::format("{}", fmt::join(wrong.front().keys, ", "))]++;
      if (refused % 5 > 0) continue;  // each takes milliseconds
      asked++;
      if (const auto near = nearest_layout(run)) {
        helped++;
        EXPECT_TRUE(problems_of(*near).empty() && unsupported_of(*near).empty()) << to_text(c);
        EXPECT_NO_THROW(validate(schedule_of(*near))) << to_text(c);
      } else {
        stuck[wrong.front().text]++;
      }
      continue;
    }
    if (c.dp * c.tp * c.cp * c.pp > kMostRanks || trained == 6) continue;
    trained++;
    SCOPED_TRACE(to_text(c));
    for (double loss : train_layout(run_of(c), {.steps = 1}).losses) EXPECT_TRUE(std::isfinite(loss));
  }
  std::string list;
  for (const auto& [keys, count] : reasons) list += fmt::format("\n  {:4} {}", count, keys);
  for (const auto& [text, count] : stuck) fmt::print("no layout helps: {} {}\n", count, text);
  say("drawn", fmt::format("{} of {} layouts drawn freely were refused; of {} of these {} have a nearest one "
                           "that works; refused for:{}",
                           refused, drawn, asked, helped, list));
  EXPECT_EQ(trained, 6);
  EXPECT_GE(helped * 10, asked * 8);
}

TEST(Fuzz, CasesComeBackFromTheirText) {
  for (uint64_t i = 1; i <= 50; i++) {
    const Case c = case_of(i);
    EXPECT_TRUE(from_text(to_text(c)) == c) << to_text(c);
  }
  EXPECT_THROW(from_text("dp=2 zebra=1"), Error);
}

}  // namespace
}  // namespace trireme::parity
