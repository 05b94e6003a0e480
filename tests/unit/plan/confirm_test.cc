// The best of a search, confirmed: what is printed is what meta books and the simulator replays, what does
// not fit as booked is dropped, and the others are ranked by their simulated step.
#include "search/confirm.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "base/json.h"
#include "base/rng.h"
#include "catalog/catalog.h"
#include "forecast/scaled_run.h"
#include "runtime/composed_booking.h"
#include "sanitized.h"
#include "search/requirement.h"
#include "spec/run_schedule.h"
#include "spec/supported.h"

namespace trireme {
namespace {

RunSpec staged(const char* arch) {
  RunSpec run;
  run.model = ModelSpec::of(arch);
  run.model.layers = 8, run.model.hidden = 24, run.model.heads = 4, run.model.kv_heads = 2,
  run.model.ffn = 72;
  run.model.vocab = 307;
  if (run.model.moe())
    run.model.experts = 4, run.model.experts_per_token = 2, run.model.moe_ffn = 40,
    run.model.dense_layers = 2;
  run.data.seq_len = 13, run.batch.global = 8, run.batch.micro = 1;
  run.precision.compute = "f32";
  run.model.finish(run.data.seq_len);
  return run;
}

// The rank with the largest arena stands for all ranks with equal stages, in every schedule.
TEST(Confirm, TheFullestRankIsAmongThoseThatAreBooked) {
  struct Choice {
    const char* schedule;
    int64_t chunks;
  };
  int64_t spared = 0, drawn = 0;
  for (const char* arch : {"llama", "mixtral"})
    for (const Choice& c : {Choice{"1f1b", 1},
                            {"gpipe", 1},
                            {"interleaved", 2},
                            {"zb-h1", 1},
                            {"zb-h2", 1},
                            {"zb-v", 2},
                            {"v-half", 2},
                            {"v-min", 2},
                            {"dualpipe-v", 2}})
      for (const auto& [pp, layers, global] : {std::tuple<int, int, int>{2, 8, 8},
                                               {4, 8, 8},
                                               {4, 11, 8},
                                               {6, 23, 30},
                                               {8, 15, 31},
                                               {8, 15, 24},
                                               {8, 19, 24},
                                               {8, 32, 24}})
        for (const char* again : {"none", "selective", "full"}) {
          if (pp == 8 && again == std::string("selective")) continue;  // enough of them
          if (drawn++ % test::one_of(5, 5) != 0) continue;
          RunSpec run = staged(arch);
          run.model.layers = layers, run.batch.global = global;
          run.layout.pp = pp, run.layout.schedule = c.schedule, run.layout.chunks = c.chunks;
          run.layout.recompute = again;
          if (pp == 8 && run.model.moe() && layers > 15) continue;
          if (!problems_of(run).empty()) continue;
          SCOPED_TRACE(fmt::format("{} {} pp {} of {} layers, {} microbatches, {}", arch, c.schedule, pp,
                                   layers, global, again));
          run = resolve(run, {});
          const Schedule schedule = schedule_of(run);
          const std::vector<StageArena> few = largest_arenas(run, schedule, 1, {});
          int64_t most = 0, seen = 0;
          for (int r = 0; r < int(pp); r++)
            most = std::max(most, book_stage(run, schedule, 1, {}, r).arena_bytes);
          for (const StageArena& a : few) seen = std::max(seen, a.bytes);
          EXPECT_EQ(seen, most);
          if (spared % 4 == 0) {  // the first rank with more says enough
            const std::vector<StageArena> over = largest_arenas(run, schedule, 1, {}, most - 1);
            ASSERT_EQ(over.size(), 1u);
            EXPECT_EQ(over[0].bytes, most);
          }
          spared += pp - int64_t(few.size());
        }
  EXPECT_GT(spared, 8);
}

TEST(Confirm, StagesOfOtherBlocksStandForThemselves) {
  RunSpec half = staged("mixtral");  // a stage between of dense blocks, and one of experts
  half.model.dense_layers = 4, half.layout.pp = 4;
  half = resolve(half, {});
  std::vector<int> ranks;
  for (const StageArena& a : largest_arenas(half, schedule_of(half), 1, {})) ranks.push_back(a.pp_rank);
  EXPECT_EQ(ranks, (std::vector<int>{0, 1, 2, 3}));
}

// Delayed updates and noise scales keep blocks that programs do not show: their ranks are booked.
TEST(Confirm, WhatDoesNotComposeIsBooked) {
  RunSpec run = staged("llama");
  run.layout.pp = 4;
  run.optimizer.post_validation = "always";
  run = resolve(run, {});
  const Schedule schedule = schedule_of(run);
  for (const StageArena& a : largest_arenas(run, schedule, 1, {}))
    EXPECT_EQ(a.bytes, arena_of_stage(run, schedule, 1, {}, a.pp_rank)) << a.pp_rank;
}

SearchRequest tiny_request() {
  SearchRequest q;
  q.model = ModelSpec::of("llama");
  q.model.layers = 6, q.model.hidden = 96, q.model.heads = 6, q.model.kv_heads = 2, q.model.ffn = 192;
  q.model.vocab = 1009;
  q.seq = 96, q.name = "tiny", q.device = "test";
  q.model.finish(q.seq);
  q.figures = {
      .bf16 = 1e12, .memory = 1e9, .bandwidth = 1e11, .bus = 2e10, .near = 3, .nic = 2e9, .attention = 5e11};
  q.fits = constants_of({});
  q.fits[size_t(Fit::base)] = 1e5;
  q.gpus = {6}, q.globals = {12}, q.best = kMostConfirmed;
  // With ZeRO 3 many layouts tie: compute hides their gathers. All of them would be looked at.
  q.require = {parse_requirement("zero<=2")};
  return q;
}

// What plan and simulate say of the layout, each by itself.
void expect_as_run(const SearchRequest& q, const Confirmed& c) {
  SCOPED_TRACE(text_of(c.priced.layout));
  ASSERT_EQ(c.refused, "");
  RunSpec run;
  run.model = q.model, run.data.seq_len = q.seq, run.precision.compute = "bf16";
  run = resolve(with_layout(run, c.priced.layout), {.native_bf16 = true});
  EXPECT_EQ(c.arena, book_training(run, schedule_of(run), 1).arena_bytes);
  EXPECT_DOUBLE_EQ(c.bytes, double(c.arena) + 1e5);
  EXPECT_EQ(c.fits, c.bytes <= q.figures.memory * q.memory_share);
  if (!c.fits) return;
  if (c.priced.layout.shards > 0 || c.priced.layout.offload) {
    EXPECT_NE(c.unsimulated, "");
    EXPECT_EQ(c.step_s, 0);
    return;
  }
  const WorldReplay all = replay_world(world_of({.run = run, .figures = q.figures}));
  EXPECT_DOUBLE_EQ(c.step_s, double(all.replay.makespan) * 1e-9);
  EXPECT_GT(c.step_s / c.priced.time.total, 0.5);
  EXPECT_LT(c.step_s / c.priced.time.total, 2.5);
}

TEST(Confirm, SaysWhatPlanAndSimulateSay) {
  const SearchRequest q = tiny_request();
  SearchResult r = search(q);
  const SearchResult before = r;
  const Confirmation all = confirm(q, r, {.most = 5});
  ASSERT_EQ(all.looked_at.size(), 5u);
  EXPECT_EQ(all.dropped, 0);
  for (size_t i = 0; i < 5; i++) {
    EXPECT_EQ(all.looked_at[i].priced.layout, before.best[i].layout);
    expect_as_run(q, all.looked_at[i]);
  }
  // By the simulated step; behind them the others as they were.
  ASSERT_EQ(r.best.size(), before.best.size());
  const auto score = [&](const Priced& p) {
    for (const Confirmed& c : all.looked_at)
      if (c.priced.layout == p.layout) return c.score();
    return 0.0;
  };
  for (size_t i = 0; i + 1 < 5; i++) EXPECT_LE(score(r.best[i]), score(r.best[i + 1])) << i;
  for (size_t i = 5; i < r.best.size(); i++) EXPECT_EQ(r.best[i].layout, before.best[i].layout);
  EXPECT_EQ(all.reordered, !(r.best[0].layout == before.best[0].layout));
  const std::string text = search_text(q, r, nullptr, &all);
  for (const Confirmed& c : all.looked_at)
    EXPECT_NE(
        text.find(fmt::format("{:.3f} s {:+6.1f} %", c.step_s, 100 * (c.step_s / c.priced.time.total - 1))),
        std::string::npos)
        << text;
  const auto j = nlohmann::json::parse(search_json(q, r, nullptr, &all));
  ASSERT_EQ(j["confirmed"]["layouts"].size(), 5u);
  EXPECT_EQ(j["confirmed"]["layouts"][0]["booked_bytes"], all.looked_at[0].arena);
}

// Of the front what is listed is confirmed, or dropped.
TEST(Confirm, TheListedFrontIsConfirmed) {
  SearchRequest q = tiny_request();
  SearchResult open = search(q);
  std::vector<double> held;
  for (const Priced& p : open.front) held.push_back(p.memory.total);
  std::sort(held.begin(), held.end());
  q.figures.memory =
      0.98 * held[held.size() / 2];  // some of what just fits in closed form does not as booked
  SearchResult r = search(q);
  const ConfirmRequest how{.most = 1};
  Confirmation all = confirm(q, r, how);
  const int64_t dropped = all.dropped;
  confirm_front(q, r, how, all);
  EXPECT_GT(all.front.size(), 0u);
  EXPECT_GE(all.dropped, dropped);
  const std::string text = search_text(q, r, nullptr, &all);
  const auto j = nlohmann::json::parse(search_json(q, r, nullptr, &all));
  ASSERT_FALSE(r.front.empty());
  const std::vector<size_t> listed = listed_of(r, &all);
  EXPECT_EQ(listed.size(), std::min<size_t>(12, r.front.size()));
  for (const size_t i : listed) {
    const Confirmed* c = all.of(r.front[i].layout);
    ASSERT_NE(c, nullptr) << i;
    EXPECT_TRUE(c->fits);
    expect_as_run(q, *c);
    EXPECT_EQ(j["front"][i]["confirmed"], true);
    EXPECT_EQ(j["front"][i]["booked_bytes"], c->arena);
    if (c->step_s > 0) {
      EXPECT_NE(text.find(fmt::format("{:8.3f} s {:>10} ", r.front[i].time.total,
                                      fmt::format("{:.3f} s", c->step_s))),
                std::string::npos);
    }
  }
  int64_t unfit = 0;
  for (const Confirmed& c : all.front) {
    unfit += !c.fits;
    for (const Priced& p : r.front) EXPECT_FALSE(!c.fits && p.layout == c.priced.layout);
  }
  EXPECT_EQ(all.dropped, dropped + unfit);
}

// Where steps are found longer than their closed forms the search goes on until no closed form that is left
// is below the best that was found; the front stands in the order that was found.
TEST(Confirm, GoesOnUntilNoneThatIsLeftCouldBeBetter) {
  SearchRequest q = tiny_request();
  q.fits[size_t(Fit::host)] *= 0.98;  // the simulator's constants are a little slower
  SearchResult r = search(q);
  const SearchResult before = r;
  const Confirmation all = confirm(q, r, {.most = 1});
  ASSERT_GT(all.looked_at.size(), 1u);
  double least = INFINITY;
  for (size_t i = 0; i < all.looked_at.size(); i++) {
    if (i > 0) {
      EXPECT_GT(least, before.best[i].score) << i;
    }
    least = std::min(least, all.looked_at[i].score());
  }
  if (int64_t(all.looked_at.size()) < kMostConfirmed) {
    EXPECT_LE(least, before.best[all.looked_at.size()].score);
  }
  const auto found = [&](const Priced& p) {
    for (const Confirmed& c : all.looked_at)
      if (c.priced.layout == p.layout) return c.score();
    return p.score;
  };
  for (size_t i = 0; i + 1 < r.front.size(); i++) EXPECT_LE(found(r.front[i]), found(r.front[i + 1])) << i;
}

// Closed forms that see a part of the activations: what they let through is dropped where the booked bytes
// are more than there are, until as many fit as were asked for.
TEST(Confirm, DropsWhatDoesNotFitAsBooked) {
  SearchRequest q = tiny_request();
  q.seq = 960;  // activations, not the scratch of products, which is another on other processors
  q.model.finish(q.seq);
  q.fits[size_t(Fit::kept)] = 0.01;
  SearchResult roomy = search(q);
  const Confirmation known = confirm(q, roomy, {.most = kMostConfirmed});
  std::vector<double> bytes;
  for (const Confirmed& c : known.looked_at) bytes.push_back(c.bytes);
  ASSERT_EQ(bytes.size(), size_t(kMostConfirmed));
  std::sort(bytes.begin(), bytes.end());
  ASSERT_LT(bytes[2], bytes.back());
  q.figures.memory = bytes[2];  // of these at least three fit, and not all
  SearchResult r = search(q);
  const SearchResult before = r;
  const Confirmation all = confirm(q, r, {.most = 3});
  int64_t fit = 0;
  std::vector<SearchLayout> gone;
  for (const Confirmed& c : all.looked_at) {
    expect_as_run(q, c);
    fit += c.fits;
    if (!c.fits) gone.push_back(c.priced.layout);
  }
  EXPECT_EQ(fit, 3);
  EXPECT_TRUE(all.looked_at.back().fits);  // and no further was looked at
  ASSERT_FALSE(gone.empty());
  EXPECT_EQ(all.dropped, int64_t(gone.size()));
  const auto is_gone = [&](const Priced& p) {  // in any order of the axes
    return std::any_of(gone.begin(), gone.end(), [&](SearchLayout l) {
      l.nearest = p.layout.nearest;
      return l == p.layout;
    });
  };
  for (const std::vector<Priced>* list : {&r.best, &r.front, &r.divisions})
    for (const Priced& p : *list) EXPECT_FALSE(is_gone(p)) << text_of(p.layout);
  EXPECT_EQ(int64_t(r.best.size()),
            int64_t(before.best.size()) - std::count_if(before.best.begin(), before.best.end(), is_gone));
  for (const Priced& p : r.best)
    EXPECT_TRUE(std::any_of(r.divisions.begin(), r.divisions.end(), [&](const Priced& d) {
      return d.layout.same_division(p.layout);
    })) << text_of(p.layout);
  EXPECT_TRUE(std::is_sorted(r.divisions.begin(), r.divisions.end(),
                             [](const Priced& a, const Priced& b) { return a.score < b.score; }));
  const std::string text = search_text(q, r, nullptr, &all);
  EXPECT_NE(text.find("DOES NOT FIT, dropped"), std::string::npos) << text;
  // Nothing is enough: said, and nothing stays of what was looked at.
  q.figures.memory = 1e5;
  SearchResult none = before;
  const Confirmation no = confirm(q, none, {.most = 3});
  EXPECT_EQ(no.dropped, int64_t(no.looked_at.size()));
  EXPECT_NE(search_text(q, none, nullptr, &no).find("dropped: too large as booked, or"), std::string::npos);
}

// What was booked and is too large says so of all that hold as it does: no list has one of them left that is
// too large with as many bytes more, in whatever order of the axes, unless it was booked itself.
TEST(Confirm, WhatIsTooLargeSpeaksForItsKind) {
  SearchRequest q = tiny_request();
  q.seq = 960;
  q.model.finish(q.seq);
  q.fits[size_t(Fit::kept)] = 0.01;
  SearchResult roomy = search(q);
  std::vector<double> bytes;
  for (const Confirmed& c : confirm(q, roomy, {.most = kMostConfirmed}).looked_at) bytes.push_back(c.bytes);
  std::sort(bytes.begin(), bytes.end());
  q.figures.memory = bytes[2];
  const SearchRequest plain = q;
  const SearchResult before = search(q);
  SearchResult r;
  const Confirmation all = search_and_confirm(q, r, {.most = 3});
  ASSERT_GT(all.dropped, 0);
  EXPECT_EQ(all.dropped, std::count_if(all.looked_at.begin(), all.looked_at.end(),
                                       [](const Confirmed& c) { return !c.fits; }));
  const auto bytes_by = [&](const Confirmed& c, const SearchLayout& l) {
    return price_layout(plain, l).memory.total + c.bytes - price_layout(plain, c.priced.layout).memory.total;
  };
  const auto too_large = [&](const Priced& p) {
    if (const Confirmed* own = all.of(p.layout)) return !own->fits;
    for (const Confirmed& c : all.looked_at) {
      if (c.fits || !c.priced.layout.holds_as(p.layout) || bytes_by(c, p.layout) <= q.figures.memory)
        continue;
      const bool denied = std::any_of(all.looked_at.begin(), all.looked_at.end(), [&](const Confirmed& o) {
        return o.fits && o.priced.layout.holds_as(p.layout) &&
               bytes_by(c, o.priced.layout) > q.figures.memory;
      });
      if (!denied) return true;
    }
    return false;
  };
  EXPECT_GT(std::count_if(before.best.begin(), before.best.end(), too_large), 0);
  for (const std::vector<Priced>* list : {&r.best, &r.front, &r.divisions})
    for (const Priced& p : *list) EXPECT_FALSE(too_large(p)) << text_of(p.layout);
  ASSERT_FALSE(r.best.empty());
  for (const Priced& p : r.best) EXPECT_EQ(p.memory.total, price_layout(q, p.layout).memory.total);
  // The searches of --why and --flip take what is known with them.
  ASSERT_FALSE(q.booked_more.empty());
  for (const Priced& p : search(q).divisions) {
    const Confirmed* own = all.of(p.layout);
    EXPECT_TRUE((own && !own->fits) || !too_large(p)) << text_of(p.layout);
  }
}

// Of closed forms that see a hundredth of the activations none of the first fits: what was booked is learned
// by kind, and the search goes on until something fits as booked.
TEST(Confirm, SearchesAgainWhereNothingFits) {
  SearchRequest q = tiny_request();
  q.seq = 960;  // activations, not the scratch of products, which is another on other processors
  q.model.finish(q.seq);
  q.fits[size_t(Fit::kept)] = 0.01;
  SearchResult roomy = search(q);
  double least = 1e300;
  for (const Confirmed& c : confirm(q, roomy, {.most = kMostConfirmed}).looked_at)
    least = std::min(least, c.bytes);
  q.figures.memory = 0.999 * least;
  SearchResult r = search(q);
  EXPECT_EQ(confirm(q, r, {}).dropped, kMostConfirmed);
  SearchRequest learned = q;
  const Confirmation all = search_and_confirm(learned, r, {.most = 1});
  ASSERT_FALSE(learned.held_more.empty());
  ASSERT_TRUE(std::any_of(all.looked_at.begin(), all.looked_at.end(), [](auto& c) { return c.fits; }));
  ASSERT_FALSE(r.best.empty());
  EXPECT_NE(confirmed_text(learned, all).find("searched again"), std::string::npos);
  // What was learned of a kind is at least what a layout of it holds, by hand.
  const SearchLayout& l = r.best[0].layout;
  const StepMemory plain = price_layout(q, l).memory, now = price_layout(learned, l).memory;
  double times = 1, bytes = 0;
  for (const HeldMore& h : learned.held_more)
    if (h.schedule == l.schedule && h.zero == l.zero && h.again == l.again) times = h.times, bytes = h.bytes;
  EXPECT_NEAR(now.activations, times * plain.activations + bytes, 1e-9 * now.activations);
  EXPECT_NEAR(now.total, plain.total + (times - 1) * plain.activations + bytes, 1e-6 * now.total);
  EXPECT_EQ(r.best[0].memory.total, now.total);
}

// Llama 3 405B on 128 H100s: what comes first has units so large that their holes do not fit, and says
// nothing of its kind, of which others fit.
TEST(Confirm, OwnKindsAreNotToldByTheirWorst) {
  SearchRequest q;
  q.model = shipped_catalog().shape_named("llama3-405B")->model;
  q.seq = 8192, q.model.finish(q.seq), q.model.max_positions = 0;
  q.gpus = {128}, q.globals = {2048};
  q.figures = shipped_catalog().device_named("H100")->figures, q.device = "H100";
  q.fits = ordered_constants(constants_of({.device = "H100", .software = "", .site = ""}));
  q.software = kTrireme;
  SearchResult r = search(q);
  const Confirmation first = confirm(q, r, {.most = 1});
  EXPECT_FALSE(first.some_hold());
  const Confirmation all = search_and_confirm(q, r, {.most = 1});
  EXPECT_TRUE(q.held_more.empty());
  ASSERT_FALSE(r.best.empty());
  const Confirmed* best = all.of(r.best[0].layout);
  ASSERT_TRUE(best && best->fits);
  EXPECT_EQ(r.best[0].layout.zero, 3);
  for (const Confirmed& c : first.looked_at)
    EXPECT_FALSE(c.priced.layout.same_division(r.best[0].layout)) << text_of(c.priced.layout);
}

// What ZeRO 3 holds beside the closed form, weights gathered whole, other degrees do not.
TEST(Confirm, AKindIsOfADegreeOfSharding) {
  SearchRequest q = tiny_request();
  const SearchResult r = search(q);
  ASSERT_FALSE(r.best.empty());
  const SearchLayout& l = r.best[0].layout;
  const double plain = price_layout(q, l).memory.total;
  q.held_more = {{.schedule = l.schedule, .zero = l.zero, .again = l.again, .bytes = 1e6}};
  EXPECT_NEAR(price_layout(q, l).memory.total, plain + 1e6, 1e-6 * plain);
  q.held_more[0].zero = (l.zero + 1) % 4;
  EXPECT_EQ(price_layout(q, l).memory.total, plain);
}

// What small layouts hold beside the closed form large ones hold too, and no more for being large: with a
// factor three gigabytes for one would be thirty for ten.
TEST(Confirm, LearnsAFixedPartAndAFactor) {
  HeldMore h;
  EXPECT_TRUE(learn_held(h, {.closed = 1e9, .booked = 3e9}));
  EXPECT_EQ(h.times, 1);
  EXPECT_EQ(h.bytes, 2e9);
  EXPECT_FALSE(learn_held(h, {.closed = 10e9, .booked = 12e9}));
  EXPECT_TRUE(learn_held(h, {.closed = 10e9, .booked = 16e9}));
  EXPECT_NEAR(h.times, 11.0 / 9, 1e-12);
  EXPECT_NEAR(h.bytes, 34e9 / 9, 1);
  HeldMore twice;  // all of it in proportion
  learn_held(twice, {.closed = 1e9, .booked = 2e9}), learn_held(twice, {.closed = 3e9, .booked = 6e9});
  EXPECT_NEAR(twice.times, 2, 1e-12);
  EXPECT_NEAR(twice.bytes, 0, 1);
  for (uint64_t i = 0; i < 200; i++) {
    HeldMore any;
    std::vector<HeldMore::Seen> points;
    for (uint64_t k = 0; k < 1 + i % 7; k++) {
      const double closed = 1e6 + 5e9 * uniform(31, i * 32 + k);
      points.push_back({closed, closed * (0.5 + 3 * uniform(32, i * 32 + k))});
      const bool above = any.times * closed + any.bytes < points.back().booked;
      EXPECT_EQ(learn_held(any, points.back()), above);
    }
    EXPECT_GE(any.times, 1);
    for (const HeldMore::Seen& p : points)
      EXPECT_GE(any.times * p.closed + any.bytes, p.booked * (1 - 1e-12));
  }
}

// Where nothing fits after all, what was looked at says why.
TEST(Confirm, SaysWhatDidNotFitAtLast) {
  SearchRequest q = tiny_request();
  q.fits[size_t(Fit::kept)] = 0.01;
  SearchRequest every = q;
  every.best = 1'000'000;
  SearchResult r = search(every);
  ASSERT_FALSE(r.best.empty());
  for (const Priced& p : r.best) q.figures.memory = std::min(q.figures.memory, 1.001 * p.memory.total);
  const Confirmation all = search_and_confirm(q, r, {.most = 1});
  EXPECT_TRUE(r.best.empty());
  ASSERT_FALSE(all.looked_at.empty());
  for (const Confirmed& c : all.looked_at) EXPECT_FALSE(c.fits && c.refused.empty());
  EXPECT_NE(confirmed_text(q, all).find("DOES NOT FIT"), std::string::npos);
}

// Gradients as the request has them are booked and simulated so; what may be planned with is a share; another
// order of the axes is the same to meta.
TEST(Confirm, IsOfTheRequest) {
  SearchRequest q = tiny_request();
  q.figures.near = 2;
  SearchLayout l{.gpus = 6, .global = 12, .tp = 2, .dp = 3, .micro = 1, .zero = 1};
  const auto look = [&](std::initializer_list<Nearest> orders) {
    SearchResult r;
    for (const Nearest n : orders) l.nearest = n, r.best.push_back(price_layout(q, l));
    return confirm(q, r, {}).looked_at;
  };
  const auto as_run = [&](const char* reduce, const char* grads) {
    RunSpec run;
    run.model = q.model, run.data.seq_len = q.seq, run.precision.compute = "bf16";
    run.precision.reduce = reduce, run.precision.grads = grads;
    return resolve(with_layout(run, l), {.native_bf16 = true});
  };
  for (const auto& [wire, stored] : {std::pair{2.0, 2.0}, {4.0, 4.0}}) {
    q.grad_bytes = wire, q.grad_stored = stored;
    const Confirmed c = look({Nearest::tensor})[0];
    const RunSpec run = as_run(wire == 2 ? "bf16" : "f32", stored == 2 ? "bf16" : "f32");
    EXPECT_EQ(c.arena, book_training(run, schedule_of(run), 1).arena_bytes) << wire;
    const WorldReplay all = replay_world(world_of({.run = run, .figures = q.figures}));
    EXPECT_DOUBLE_EQ(c.step_s, double(all.replay.makespan) * 1e-9) << wire;
  }
  const std::vector<Confirmed> two = look({Nearest::tensor, Nearest::replicas});
  ASSERT_EQ(two.size(), 2u);
  EXPECT_EQ(two[0].booked_ranks, 1);
  EXPECT_EQ(two[1].booked_ranks, 0);
  EXPECT_EQ(two[0].arena, two[1].arena);
  EXPECT_TRUE(two[0].fits);
  SearchLayout last{.gpus = 6, .global = 12, .pp = 3, .dp = 2, .micro = 6};
  last.schedule = "gpipe";
  q.model.vocab = 8009, q.figures.memory = 1e10;
  SearchResult r;
  for (const Nearest n : {Nearest::tensor, Nearest::stages})
    last.nearest = n, r.best.push_back(price_layout(q, last));
  for (const Confirmed& c : confirm(q, r, {}).looked_at) EXPECT_EQ(c.pp, 2);  // logits are there
  q.model.vocab = 1009, q.figures.memory = 1.25 * two[0].bytes;
  EXPECT_TRUE(look({Nearest::tensor})[0].fits);
  q.memory_share = 0.7;
  EXPECT_FALSE(look({Nearest::tensor})[0].fits);
}

// What this version does not run is dropped where it runs another, and not taken for one that fits.
TEST(Confirm, DropsWhatThisVersionDoesNotRun) {
  SearchRequest q = tiny_request();
  q.disk = 1e12;
  const RunSpec run = [&] {
    RunSpec r;
    r.model = q.model, r.data.seq_len = q.seq, r.optimizer.name = "muon";
    return r;
  }();
  SearchLayout l{.gpus = 6, .global = 12, .dp = 6, .micro = 2};
  const Priced runs = price_layout(q, l);
  l.offload = true;
  Priced refused = price_layout(q, l);  // Muon's momentum waits nowhere
  refused.score = runs.score / 2;
  SearchResult r;
  r.best = r.front = {refused, runs}, r.divisions = {refused};
  const Confirmation all = confirm(q, r, {.most = 1, .run = run});
  ASSERT_EQ(all.looked_at.size(), 2u);
  EXPECT_NE(all.looked_at[0].refused.find("layout.offload"), std::string::npos) << all.looked_at[0].refused;
  EXPECT_TRUE(all.drops(all.looked_at[0]));
  EXPECT_EQ(all.dropped, 1);
  for (const std::vector<Priced>* list : {&r.best, &r.front, &r.divisions}) {
    ASSERT_EQ(list->size(), 1u);
    EXPECT_TRUE((*list)[0].layout == runs.layout);
  }
  EXPECT_NE(confirmed_text(q, all).find("not confirmed, dropped, this version"), std::string::npos);
  // Where it runs none, they stay: nothing is known against them.
  SearchResult none;
  none.best = none.divisions = {refused};
  const Confirmation no = confirm(q, none, {.most = 1, .run = run});
  EXPECT_FALSE(no.drops(no.looked_at[0]));
  EXPECT_EQ(none.best.size(), 1u);
}

// A layout whose step no simulator replays, and one that this version cannot run, are said to be so.
TEST(Confirm, SaysWhatItCannotConfirm) {
  SearchRequest q = tiny_request();
  SearchResult r;
  SearchLayout l{.gpus = 6, .global = 12, .dp = 6, .micro = 2, .zero = 3, .shards = 2};
  r.best = {price_layout(q, l)};
  Confirmation all = confirm(q, r, {});
  ASSERT_EQ(all.looked_at.size(), 1u);
  EXPECT_NE(all.looked_at[0].unsimulated.find("layout.shard_group"), std::string::npos);
  EXPECT_GT(all.looked_at[0].arena, 0);
  EXPECT_NE(confirmed_text(q, all).find("not simulated: layout.shard_group"), std::string::npos);
  RunSpec run;
  run.model = q.model, run.data.seq_len = q.seq, run.train.comm = "nccl";
  if (!unsupported_of(run).empty()) {
    all = confirm(q, r, {.run = run});
    EXPECT_NE(all.looked_at[0].refused.find("train.comm"), std::string::npos);
    EXPECT_NE(confirmed_text(q, all).find("this version cannot run it"), std::string::npos);
    EXPECT_EQ(r.best.size(), 1u);
  }
}

}  // namespace
}  // namespace trireme
