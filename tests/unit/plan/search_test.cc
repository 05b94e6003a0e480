// The search against brute force over what the run file's own checks allow.
#include "search/search.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <set>

#include "base/json.h"
#include "base/rng.h"
#include "search/search_chart.h"
#include "search_requests.h"
#include "spec/supported.h"

namespace trireme {
namespace {

using test::small_experts;
using test::small_request;

RunSpec run_of(const SearchRequest& q) {
  RunSpec run;
  run.model = q.model, run.data.seq_len = q.seq;
  run.precision.compute = "bf16";
  return run;
}

bool is_v(std::string_view name) {
  return name == "zb-v" || name == "v-half" || name == "v-min" || name == "dualpipe-v";
}

// Is the order one that is looked at?
bool orders_differ(const SearchRequest& q, const SearchLayout& l, Nearest n) {
  const bool far = double(l.gpus) > q.figures.near;
  if (n == Nearest::stages) return far && l.pp > 1 && l.dp > 1;
  if (n == Nearest::replicas) return far && l.tp > 1 && l.dp * l.cp > 1;
  return true;
}

// All layouts by loops over every number, kept where the run file's own checks find nothing wrong: the
// search's conventions (sequence parallelism beside tp, whole chunks, Megatron's rule for interleaving,
// orders that differ) are said again here.
template <class F>
void each_layout(const SearchRequest& q, F&& f) {
  constexpr std::string_view kNames[] = {"1f1b", "gpipe",  "interleaved", "zb-h1",     "zb-h2",
                                         "zb-v", "v-half", "v-min",       "dualpipe-v"};
  const int64_t gpus = q.gpus[0], global = q.globals[0];
  RunSpec run = run_of(q);
  for (int64_t tp = 1; tp <= gpus; tp++)
    for (int64_t pp = 1; pp <= gpus; pp++)
      for (int64_t cp = 1; cp <= gpus; cp++)
        for (int64_t dp = 1; dp <= gpus; dp++)
          for (int64_t ep = 1; ep <= (q.model.moe() ? gpus : 1); ep++)
            for (int64_t micro = 1; micro <= global; micro++) {
              if (tp * pp * cp * dp != gpus || global % (dp * micro) != 0) continue;
              SearchLayout l{
                  .gpus = gpus, .global = global, .tp = tp, .pp = pp, .dp = dp, .cp = cp, .ep = ep};
              l.micro = micro;
              if (!problems_of(with_layout(run, l)).empty() || !unsupported_of(with_layout(run, l)).empty())
                continue;
              for (const std::string_view name : kNames)
                for (int64_t chunks = 1; chunks <= q.model.layers; chunks++) {
                  const bool v = is_v(name);
                  const bool whole = q.model.layers % (pp * chunks) == 0;
                  if (pp == 1 && (name != "1f1b" || chunks > 1)) continue;
                  if (name == "interleaved" ? chunks < 2 || !whole || l.microbatches() % pp != 0
                                            : chunks != (v ? 2 : 1) || (v && !whole))
                    continue;
                  l.schedule = name, l.chunks = chunks;
                  for (const Again again : {Again::none, Again::selective, Again::full})
                    for (int zero = 0; zero <= 3; zero++)
                      for (int64_t shards = 0; shards < dp * cp; shards++) {
                        if (zero > 0 && dp * cp == 1) continue;
                        if (shards > 0 && (zero < 3 || shards == 1 || (dp * cp) % shards != 0)) continue;
                        l.again = again, l.zero = zero, l.shards = shards;
                        for (const bool offload : {false, true})
                          for (const Nearest n : {Nearest::tensor, Nearest::stages, Nearest::replicas}) {
                            if (offload && q.disk == 0) continue;
                            if (!orders_differ(q, l, n)) continue;
                            l.offload = offload, l.nearest = n;
                            f(l);
                          }
                      }
                }
            }
}

// Of orders of the axes that take as long, to the bit, the first stands for the others.
std::vector<Priced> first_orders(const std::vector<Priced>& ranked, size_t most) {
  std::vector<Priced> few;
  for (const Priced& p : ranked) {
    const bool known = std::any_of(few.begin(), few.end(), [&](const Priced& o) {
      SearchLayout l = p.layout;
      l.nearest = o.layout.nearest;
      return l == o.layout && o.time.total == p.time.total;
    });
    if (!known) few.push_back(p);
    if (few.size() == most) break;
  }
  return few;
}

void expect_alike(const SearchRequest& q, const Priced& p) {
  const std::vector<Nearest> said = orders_alike(p);
  for (const Nearest n : {Nearest::tensor, Nearest::stages, Nearest::replicas}) {
    SearchLayout l = p.layout;
    l.nearest = n;
    const bool alike =
        n > p.layout.nearest && orders_differ(q, l, n) && price_layout(q, l).time.total == p.time.total;
    EXPECT_EQ(std::count(said.begin(), said.end(), n), alike) << text_of(p);
    EXPECT_EQ(
        text_of(p).find(fmt::format("\"{}\"", order_of(n)), text_of(p.layout).size()) != std::string::npos,
        alike);
  }
}

bool no_worse(const Priced& a, const Priced& b) {
  return a.token_s <= b.token_s && a.cost <= b.cost && a.headroom >= b.headroom;
}

void expect_brute_force(const SearchRequest& q) {
  const SearchResult r = search(q);
  std::vector<Priced> fit;
  int64_t candidates = 0;
  double least_miss = INFINITY;
  std::map<std::string, double> leanest;  // of each division
  const auto name_of_division = [](const SearchLayout& l) {
    return fmt::format("{} {} {} ep {}", l.gpus, l.global, division_text(l), l.ep);
  };
  each_layout(q, [&](const SearchLayout& l) {
    candidates++;
    const Priced p = price_layout(q, l);
    double& least = leanest.try_emplace(name_of_division(l), INFINITY).first->second;
    least = std::min(least, p.memory.total);
    if (p.memory.total <= q.figures.memory)
      fit.push_back(p);
    else
      least_miss = std::min(least_miss, p.memory.total);
  });
  EXPECT_EQ(r.candidates, candidates);
  EXPECT_EQ(r.fits, int64_t(fit.size()));
  const Refused& memory = r.refused[size_t(Refusal::memory)];
  EXPECT_EQ(memory.candidates, candidates - r.fits);
  if (memory.candidates > 0) {
    EXPECT_EQ(memory.bytes, least_miss);
    EXPECT_EQ(price_layout(q, memory.nearest).memory.total, least_miss);
  }
  int64_t too_large = 0, listed = 0;
  for (const auto& [division, least] : leanest) too_large += least > q.figures.memory;
  for (const SearchResult::Rejected& no : r.rejected)
    if (no.why == Refusal::memory) {
      EXPECT_EQ(no.bytes, leanest.at(name_of_division(no.layout)));
      listed++;
    }
  EXPECT_EQ(listed, too_large);
  EXPECT_EQ(memory.divisions, too_large);
  std::stable_sort(fit.begin(), fit.end(),
                   [](const Priced& a, const Priced& b) { return a.score < b.score; });
  const std::vector<Priced> first = first_orders(fit, size_t(q.best));
  ASSERT_EQ(r.best.size(), first.size());
  for (size_t i = 0; i < r.best.size(); i++) {
    EXPECT_EQ(r.best[i].score, first[i].score) << i;
    expect_alike(q, r.best[i]);
    EXPECT_EQ(price_layout(q, r.best[i].layout).score, r.best[i].score) << text_of(r.best[i].layout);
  }
  // The front: nobody on it is beaten, and it beats everybody.
  for (const Priced& p : r.front)
    for (const Priced& o : fit)
      EXPECT_FALSE(no_worse(o, p) && !no_worse(p, o)) << text_of(p.layout) << " by " << text_of(o.layout);
  for (const Priced& o : fit)
    EXPECT_TRUE(std::any_of(r.front.begin(), r.front.end(), [&](const Priced& p) { return no_worse(p, o); }));
}

TEST(Search, IsBruteForce) {
  expect_brute_force(small_request());
}
TEST(Search, IsBruteForceWithExperts) {
  SearchRequest q = small_experts();
  // This version has one shard group beside ep or tp: the search, which is of any machine, has more; leave
  // them.
  const SearchResult r = search(q);
  int64_t refused = 0, all = 0;
  each_layout(q, [&](const SearchLayout& l) {
    all++;
    refused += !unsupported_of(with_layout(run_of(q), l)).empty();
    for (const Problem& p : unsupported_of(with_layout(run_of(q), l)))
      EXPECT_EQ(p.keys.front(), "layout.shard_group") << text_of(l) << ": " << p.text;
  });
  EXPECT_EQ(r.candidates, all);
  EXPECT_GT(refused, 0);
  expect_brute_force(q);
  q.software = kTrireme;  // no layouts of other software
  EXPECT_EQ(search(q).candidates, all - refused);
}
TEST(Search, IsBruteForceWithADiskAndSeveralBatches) {
  SearchRequest q = small_request();
  q.gpus = {4}, q.globals = {12}, q.disk = 1e9, q.figures.memory = 1.2e9, q.figures.near = 2;
  expect_brute_force(q);
}

// Every layout that the search takes is one that a run file may have.
TEST(Search, LayoutsAreRuns) {
  for (const SearchRequest& q : {small_request(), small_experts()}) {
    const SearchResult r = search(q);
    for (const std::vector<Priced>* some : {&r.best, &r.front, &r.divisions})
      for (const Priced& p : *some) {
        const RunSpec run = with_layout(run_of(q), p.layout);
        EXPECT_TRUE(problems_of(run).empty()) << text_of(p.layout) << ": " << problems_of(run)[0].text;
        EXPECT_EQ(run.world(), p.layout.gpus);
        EXPECT_EQ(run.microbatches(), p.layout.microbatches());
      }
  }
}

// Less and less memory, until divisions are too large in whole.
TEST(Search, DivisionsThatAreTooLargeInWholeAreNamed) {
  SearchRequest q = small_request();
  SearchResult r = search(q);
  while (r.refused[size_t(Refusal::memory)].divisions == 0) {
    q.figures.memory *= 0.8;
    r = search(q);
  }
  EXPECT_GT(r.fits, 0);
  expect_brute_force(q);
}

// What is refused as a division is refused by the run's own checks.
TEST(Search, RefusedDivisionsAreRefusedByTheSpec) {
  SearchRequest q = small_request();
  q.gpus = {120}, q.globals = {60}, q.figures.near = 8;
  const SearchResult r = search(q);
  int seen = 0;
  for (size_t i = 0; i < kRefusals; i++) {
    const Refused& no = r.refused[i];
    if (Refusal(i) == Refusal::memory || no.divisions == 0) continue;
    EXPECT_FALSE(problems_of(with_layout(run_of(q), no.nearest)).empty()) << text_of(Refusal(i));
    seen++;
  }
  EXPECT_GE(seen, 4);
  // Each by itself, as many as are counted.
  std::array<int64_t, kRefusals> each{};
  for (const SearchResult::Rejected& no : r.rejected) {
    each[size_t(no.why)]++;
    if (no.why == Refusal::memory) continue;
    EXPECT_EQ(division_refusal(q.model, q.seq, no.layout), no.why) << division_text(no.layout);
  }
  for (size_t i = 0; i < kRefusals; i++) EXPECT_EQ(each[i], r.refused[i].divisions) << text_of(Refusal(i));
}

// Every layout that fits is a row, or named in one.
TEST(Search, OrdersThatTakeAsLongAreOneRow) {
  SearchRequest q = small_request();
  q.figures.memory = 1.2e9, q.best = 1000000;
  const SearchResult r = search(q);
  int64_t named = 0;
  for (const Priced& p : r.best) {
    expect_alike(q, p);
    named += int64_t(orders_alike(p).size());
  }
  EXPECT_GT(named, 0);
  EXPECT_EQ(int64_t(r.best.size()) + named, r.fits);
}

TEST(Search, IsTheSameTwice) {
  const SearchRequest q = small_request();
  const SearchResult a = search(q), b = search(q);
  ASSERT_EQ(a.best.size(), b.best.size());
  for (size_t i = 0; i < a.best.size(); i++) EXPECT_EQ(a.best[i].layout, b.best[i].layout);
  ASSERT_EQ(a.front.size(), b.front.size());
  for (size_t i = 0; i < a.front.size(); i++) EXPECT_EQ(a.front[i].layout, b.front[i].layout);
}

TEST(Search, MoreMemoryNeverHurts) {
  for (uint64_t i = 0; i < 12; i++) {
    SearchRequest q = i % 3 == 0 ? small_experts() : small_request();
    q.figures.memory = 1e9 * (0.3 + 4 * uniform(3, i * 4));
    q.figures.nic = 1e9 * (1 + 40 * uniform(3, i * 4 + 1));
    q.by = i % 2 == 0 ? RankBy::step : RankBy::cost;
    const SearchResult less = search(q);
    q.figures.memory *= 1 + uniform(3, i * 4 + 2);
    const SearchResult more = search(q);
    EXPECT_GE(more.fits, less.fits);
    EXPECT_EQ(more.candidates, less.candidates);
    if (!less.best.empty()) {
      EXPECT_LE(more.best[0].score, less.best[0].score);
    }
  }
}

TEST(Search, FewerDevicesAreCheaper) {
  SearchRequest q = small_request();
  q.gpus = {3, 6, 12}, q.figures.memory = 80e9, q.by = RankBy::cost;
  const SearchResult cheap = search(q);
  q.by = RankBy::step;
  const SearchResult fast = search(q);
  EXPECT_LT(cheap.best[0].layout.gpus, fast.best[0].layout.gpus);
  EXPECT_LT(cheap.best[0].cost, fast.best[0].cost);
  // The front has both ends.
  EXPECT_EQ(fast.front.front().token_s, fast.best[0].token_s);
}

// At a loss the batch is chosen too: with many devices a larger one, never the smallest of all.
TEST(Search, TimeToALossChoosesTheBatch) {
  SearchRequest q = small_request();
  q.figures.memory = 80e9, q.by = RankBy::loss, q.loss = 3.4;
  q.globals = {12, 24, 48, 96, 192, 384};
  const SearchResult r = search(q);
  ASSERT_FALSE(r.best.empty());
  EXPECT_GT(r.best[0].layout.global, 12);
  for (const Priced& p : r.divisions) EXPECT_GE(p.score, r.best[0].score);
}

// A larger batch has faster tokens and needs more of them: the front is of what is ranked.
TEST(Search, TheFrontByLossIsOfTimeToTheLoss) {
  SearchRequest q = small_request();
  q.figures.memory = 80e9, q.by = RankBy::loss, q.loss = 3.4;
  q.globals = {24, 96, 384};
  const SearchResult r = search(q);
  ASSERT_FALSE(r.front.empty());
  EXPECT_EQ(r.front.front().score, r.best[0].score);
  const auto beats = [](const Priced& a, const Priced& b) {
    const double cost = a.cost / a.token_s * a.score, other = b.cost / b.token_s * b.score;
    return a.score <= b.score && cost <= other && a.headroom >= b.headroom &&
           (a.score < b.score || cost < other || a.headroom > b.headroom);
  };
  for (const Priced& p : r.front)
    for (const std::vector<Priced>* some : {&r.best, &r.divisions, &r.front})
      for (const Priced& o : *some)
        EXPECT_FALSE(beats(o, p)) << text_of(p.layout) << " by " << text_of(o.layout);
  EXPECT_NE(front_svg(q, r).find("days to the loss"), std::string::npos);
}

// What a run file says of types is what is priced.
TEST(Search, TypesOfGradientsArePriced) {
  SearchRequest q = small_request();
  const SearchLayout one{.gpus = 12, .global = 24, .dp = 12, .micro = 2},
      two{.gpus = 12, .global = 24, .dp = 12};
  const auto states = [&](const SearchLayout& l) { return price_layout(q, l).memory.states; };
  const double half = states(one), whole = states(two);
  EXPECT_LT(half, whole);
  q.grad_stored = 4;
  EXPECT_EQ(states(one), whole);
  q.grad_stored = 2;
  EXPECT_EQ(states(two), half);
  const double narrow = price_layout(q, two).time.gradients;
  q.grad_bytes = 4;
  EXPECT_GT(price_layout(q, two).time.gradients, narrow);
  q.grad_stored = 4, q.figures.memory = 2e9;
  expect_brute_force(q);
}

TEST(SearchWhy, FlipsAreWhereTheOrderChanges) {
  SearchRequest q = small_request();
  const SearchResult r = search(q);
  const SearchWhy w = why(q, r);
  ASSERT_FALSE(w.flips.empty());
  EXPECT_FALSE(w.binds.empty());
  EXPECT_GE(w.runner_up.score, r.best[0].score);
  const Priced& best = r.divisions.front();
  const std::map<std::string, Fit> fits = {{"exposed share of tp's sums", Fit::tp},
                                           {"exposed share of messages between stages", Fit::pp},
                                           {"exposed share of cp's exchange", Fit::cp},
                                           {"exposed share of experts' exchange", Fit::ep},
                                           {"exposed share of gradients and weights", Fit::dp},
                                           {"start of a collective, a rank", Fit::ring},
                                           {"launches of a layer", Fit::host}};
  for (const Flip& f : w.flips) {
    const auto behind = [&](double factor) {
      SearchRequest other = q;
      if (f.what == "bandwidth between nodes")
        other.figures.nic *= factor;
      else if (f.what == "bandwidth inside a node")
        other.figures.bus *= factor;
      else if (f.what == "peak of products")
        other.figures.bf16 *= factor;
      else if (f.what == "bandwidth of memory")
        other.figures.bandwidth *= factor;
      else if (const auto fit = fits.find(f.what); fit != fits.end())
        other.fits[size_t(fit->second)] *= factor;
      else
        ADD_FAILURE() << f.what;
      return price_layout(other, f.rival.layout).score - price_layout(other, best.layout).score;
    };
    const double beyond = std::pow(f.factor, 1.001), before = std::pow(f.factor, 0.999);
    EXPECT_LE(behind(beyond), 0) << f.what;
    EXPECT_GE(behind(before), 0) << f.what;
  }
  // More memory: the layout that is named is faster, and does not fit today.
  if (w.with_memory.token_s > 0) {
    EXPECT_LT(w.with_memory.score, best.score);
    EXPECT_GT(w.with_memory.memory.total, q.figures.memory);
  }
}

TEST(SearchWhy, TollsAddUp) {
  const SearchResult r = search(small_request());
  double sum = 0;
  for (const auto& [name, seconds] : tolls_of(r.best[0].time)) sum += seconds;
  EXPECT_NEAR(sum / r.best[0].time.total, 1, 1e-9);
}

// Every layout that is listed says what binds it beside products, the best as --why says it.
TEST(SearchPrint, EachLayoutSaysWhatBindsIt) {
  const SearchRequest q = small_request();
  const SearchResult r = search(q);
  const std::string text = search_text(q, r, nullptr);
  ASSERT_GT(r.best.size(), 1u);
  for (const Priced& p : r.best) {
    std::string binds;
    double most = 0;
    for (const auto& [name, seconds] : tolls_of(p.time))
      if (name != "products" && seconds > most) binds = name, most = seconds;
    const std::string row = fmt::format("{} {:.0f} %", binds, 100 * most / p.time.total);
    EXPECT_NE(text.find(fmt::format("{:28} {}\n", row, text_of(p))), std::string::npos) << row << "\n"
                                                                                        << text;
  }
  const SearchWhy w = why(q, r);
  EXPECT_EQ(w.binds, binding_toll(w.best.time).first);
  EXPECT_NE(w.binds, "products");
  // Products need not be the largest.
  EXPECT_EQ(binding_toll({.products = 1, .tp = 3, .total = 4}).first, "tensor parallel sums");
  EXPECT_EQ(binding_toll({.products = 3, .tp = 1, .total = 4}).first, "tensor parallel sums");
}

// Where nothing fits, what was not looked at is said.
TEST(SearchPrint, NothingFitsNamesWhatIsNotSearched) {
  SearchRequest q = small_request();
  q.figures.memory = 1e6;
  for (const bool own : {false, true})
    for (const double disk : {0.0, 10e9}) {
      q.software = own ? kTrireme : kElsewhere;
      q.disk = disk;
      const std::string text = search_text(q, search(q), nullptr);
      EXPECT_NE(text.find("nothing fits\n"), std::string::npos);
      EXPECT_EQ(text.find("were not searched: a cluster file that says host_bandwidth") != std::string::npos,
                own && disk == 0);
    }
}

TEST(SearchPrint, JsonHasBestCandidatesAndReasons) {
  const SearchRequest q = small_request();
  const SearchResult r = search(q);
  const SearchWhy w = why(q, r);
  const nlohmann::json j = nlohmann::json::parse(search_json(q, r, &w));
  EXPECT_EQ(j["best"]["step_s"], r.best[0].time.total);
  EXPECT_TRUE(j["best"]["fits"]);
  EXPECT_GT(j["best"]["mfu"], 0);
  EXPECT_EQ(j["front"].size(), r.front.size());
  bool rejected = false;
  for (const auto& c : j["candidates"]) rejected |= c.contains("why_rejected");
  EXPECT_TRUE(rejected);
  EXPECT_TRUE(j["why"].contains("flips"));
  const std::string text = search_text(q, r, &w);
  for (const char* word :
       {"the best, by step time", "does not fit into memory", "where the best layout's step goes"})
    EXPECT_NE(text.find(word), std::string::npos) << word;
  EXPECT_NE(front_svg(q, r).find("</svg>"), std::string::npos);
}

TEST(SearchChart, HoldsAnyTextAndEmptySeries) {
  const Chart c{.title = "a < b & \"c\"",
                .x = {.title = "x", .logarithmic = true},
                .y = {.title = "y"},
                .series = {{}}};
  const std::string svg = svg_of(c);
  EXPECT_NE(svg.find("a &lt; b &amp; &quot;c&quot;"), std::string::npos);
  EXPECT_EQ(svg.find("nan"), std::string::npos);
  EXPECT_EQ(svg.find("inf"), std::string::npos);
}

// What a run file must say of a layout, and not only what text_of() names.
TEST(Search, ALayoutIsARunFilesKeys) {
  const std::string toml = layout_toml({.gpus = 8,
                                        .global = 32,
                                        .tp = 2,
                                        .pp = 4,
                                        .micro = 2,
                                        .chunks = 2,
                                        .schedule = "zb-v",
                                        .again = Again::full});
  for (const char* line : {"[batch]\nglobal = 32\nmicro = 2\n\n[layout]\ntp = 2\npp = 4\ndp = 1\n",
                           "sequence = true\n", "schedule = \"zb-v\"\nchunks = 2\nrecompute = \"full\"\n"})
    EXPECT_NE(toml.find(line), std::string::npos) << toml;
  const SearchLayout waits{.gpus = 1, .global = 2, .micro = 1, .offload = true};
  for (const bool to_host : {false, true}) {
    const std::string text = layout_toml(waits, to_host);
    EXPECT_NE(text.find("offload = \"state\"\n"), std::string::npos) << text;
    RunSpec run = parse_run(text + "[train]\ndevice = \"cuda\"\n", "run.toml");
    EXPECT_EQ(run.layout.offload_to, to_host ? "host" : "file") << text;
    run.layout.offload_dir = "there";
    const LayoutSpec o = with_layout(run, waits, to_host).layout;
    EXPECT_EQ(o.offload_to, to_host ? "host" : "file");
    EXPECT_EQ(o.offload_dir, to_host ? "" : "there");
    EXPECT_EQ(with_layout(run, {.gpus = 1}, to_host).layout.offload_to, "file");
  }
}

// The front ends at twice the best one's time, and says how many were cut.
TEST(Search, TheFrontEndsAtTwiceTheBest) {
  SearchRequest q;
  SearchResult r;
  for (const double s : {1.0, 1.9, 2.1, 40.0}) r.front.push_back({.token_s = s});
  cut_front(q, r);
  ASSERT_EQ(r.front.size(), 2u);
  EXPECT_EQ(r.front.back().token_s, 1.9);
  EXPECT_EQ(r.front_cut, 2);
}

}  // namespace
}  // namespace trireme
