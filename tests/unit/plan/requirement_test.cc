// --require and --as: a search with requirements finds what a filter of the whole search finds; errors name
// the allowed values; the answer fits a screen.
#include "search/requirement.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "base/error.h"
#include "base/units.h"
#include "search/confirm.h"
#include "search/framework.h"
#include "search/search.h"
#include "search_requests.h"

namespace trireme::test {
namespace {

std::string error_of(std::string_view text) {
  try {
    parse_requirement(text);
  } catch (const Error& e) {
    EXPECT_EQ(e.fault, Fault::request);
    return e.what();
  }
  return "";
}

// All layouts that fit.
std::vector<Priced> all_of(SearchRequest q, const std::vector<std::string>& require) {
  q.best = 1000000;
  q.globals = {12};
  for (const std::string& text : require) q.require.push_back(parse_requirement(text));
  return search(q).best;
}

TEST(Requirement, ErrorsNameWhatIsAllowed) {
  EXPECT_NE(error_of("tq=8").find("no key tq, did you mean tp?; keys: tp, pp, dp"), std::string::npos);
  EXPECT_NE(error_of("zero=4").find("zero = 4: expected 0, 1, 2, 3"), std::string::npos);
  EXPECT_NE(error_of("schedule=zb").find("expected 1f1b, gpipe"), std::string::npos);
  EXPECT_NE(error_of("tp=0").find("tp = 0: expected an integer >= 1"), std::string::npos);
  EXPECT_NE(error_of("schedule<1f1b").find("takes = and !="), std::string::npos);
  EXPECT_NE(error_of("tp").find("expected KEY=VALUE"), std::string::npos);
  EXPECT_NE(error_of("tp=>8").find("expected KEY=VALUE"), std::string::npos);
  EXPECT_EQ(error_of("order=dp pp cp tp"), "");
  EXPECT_EQ(error_of("shard_group=0"), "");
}

TEST(Requirement, Compares) {
  const SearchLayout l{.tp = 4, .pp = 2, .schedule = "zb-h1", .again = Again::full};
  for (const char* text : {"tp=4", "tp==4", "tp=2,4", "tp!=2", "tp<5", "tp<=4", "tp>3", "tp>=4",
                           "recompute=full", "schedule!=1f1b,gpipe", "tp=1 if pp=1"})
    EXPECT_TRUE(parse_requirement(text).allows(l)) << text;
  for (const char* text :
       {"tp=2", "tp!=4", "tp<4", "tp<=3", "tp>4", "tp>=5", "recompute=none", "tp=1 if pp=2"})
    EXPECT_FALSE(parse_requirement(text).allows(l)) << text;
}

TEST(Requirement, ASearchFindsWhatAFilterFinds) {
  const SearchRequest q = small_request();
  const std::vector<Priced> all = all_of(q, {});
  for (const std::vector<std::string>& require : {std::vector<std::string>{"tp=4"},
                                                  {"pp<=2", "zero=1,3"},
                                                  {"schedule=interleaved", "micro=1"},
                                                  {"recompute=full", "dp>2"},
                                                  {"shard_group=2"},
                                                  {"order=pp dp cp tp"},
                                                  {"zero<=1 if pp>1"},
                                                  {"microbatches>=4", "cp=1"}}) {
    std::vector<Priced> kept = all;
    for (const std::string& text : require) {
      const Requirement condition = parse_requirement(text);
      std::erase_if(kept, [&](const Priced& p) { return !condition.allows(p.layout); });
    }
    const std::vector<Priced> found = all_of(q, require);
    EXPECT_FALSE(kept.empty()) << require[0];
    EXPECT_LT(kept.size(), all.size()) << require[0];
    ASSERT_EQ(found.size(), kept.size()) << require[0];
    for (size_t i = 0; i < found.size(); i++)
      EXPECT_EQ(found[i].time.total, kept[i].time.total) << require[0];
  }
}

TEST(Requirement, AnUnmetOneNamesTheValuesThatCouldBe) {
  const auto unmet = [](const std::vector<std::string>& require) {
    SearchRequest q = small_request();
    for (const std::string& text : require) q.require.push_back(parse_requirement(text));
    const SearchResult r = search(q);
    EXPECT_EQ(r.candidates, 0);
    return unmet_text(q.require, r.unmet);
  };
  EXPECT_EQ(unmet({"tp=5"}), "--require tp=5: no layout has it; tp can be 1, 2, 4, 12");
  EXPECT_EQ(unmet({"tp=4", "pp=2"}), "--require pp=2: no layout with tp=4 has it; pp can be 1, 3");
  EXPECT_EQ(unmet({"tp=12", "zero=3"}), "--require zero=3: no layout with tp=12 has it; zero can be 0");
  EXPECT_EQ(unmet({"pp=1", "schedule=gpipe"}),
            "--require schedule=gpipe: no layout with pp=1 has it; schedule can be 1f1b");
  EXPECT_EQ(unmet({"offload=state"}), "--require offload=state: no layout has it; offload can be none");
}

TEST(Framework, SearchesOnlyItsLayouts) {
  for (const std::string& name : framework_names()) {
    const Framework& f = framework_named(name);
    SearchRequest q = small_request();
    q.require = f.require;
    const SearchResult r = search(q);
    ASSERT_FALSE(r.best.empty()) << name;
    for (const Priced& p : r.best)
      for (const Requirement& c : f.require)
        EXPECT_TRUE(c.allows(p.layout)) << name << " " << text_of(p.layout);
    EXPECT_FALSE(launch_text(f, q, r.best.front().layout).empty());
  }
}

TEST(Framework, LaunchFlagsSayTheLayout) {
  SearchRequest q = small_request();
  SearchLayout l{.gpus = 16, .global = 64, .tp = 2, .pp = 4, .dp = 2, .micro = 1, .chunks = 3};
  l.schedule = "interleaved";
  l.zero = 1;
  l.again = Again::full;
  const std::string megatron = launch_text(framework_named("megatron"), q, l);
  for (const char* flag :
       {"--tensor-model-parallel-size 2", "--sequence-parallel", "--pipeline-model-parallel-size 4",
        "--num-virtual-stages-per-pipeline-rank 3", "--use-distributed-optimizer", "--global-batch-size 64",
        "--recompute-granularity full"})
    EXPECT_NE(megatron.find(flag), std::string::npos) << megatron;
  EXPECT_EQ(megatron.find("--cp-comm-type"), std::string::npos);
  EXPECT_EQ(megatron.find("--fp8-format"), std::string::npos);
  EXPECT_EQ(megatron.find("--expert-tensor-parallel-size"), std::string::npos);
  l.schedule = "1f1b";
  l.chunks = 1;
  const std::string deepspeed = launch_text(framework_named("deepspeed"), q, l);
  EXPECT_NE(deepspeed.find("\"zero_optimization\":{\"stage\":1}"), std::string::npos) << deepspeed;
  EXPECT_NE(deepspeed.find("\"gradient_accumulation_steps\":32"), std::string::npos) << deepspeed;
  EXPECT_NE(
      deepspeed.find("in train.py: PipelineModule(num_stages=4, partition_method=\"type:transformer\")"),
      std::string::npos)
      << deepspeed;
  EXPECT_EQ(deepspeed.find("\"stages\""), std::string::npos) << deepspeed;  // no such key
  l.pp = 1;
  l.dp = 8;
  l.zero = 3;
  const std::string titan = launch_text(framework_named("torchtitan"), q, l);
  EXPECT_NE(titan.find("--parallelism.data_parallel_shard_degree 8"), std::string::npos) << titan;
}

// Stages of 12 blocks on 5 ranks: Megatron's flags name them, the others' flags cannot, so that their pp
// divides the blocks.
TEST(Framework, UnevenStagesAreSaidOrNotSearched) {
  SearchRequest q = small_request();
  ASSERT_EQ(q.model.layers, 12);
  q.run.emplace();
  SearchLayout l{.gpus = 5, .global = 5, .pp = 5, .micro = 1};
  const std::string text = launch_text(framework_named("megatron"), q, l);
  EXPECT_NE(text.find("--pipeline-model-parallel-layout \"Et*2|(t*3|)*2,t*2|t*2L\""), std::string::npos)
      << text;
  l.pp = 4;
  EXPECT_EQ(launch_text(framework_named("megatron"), q, l).find("parallel-layout"), std::string::npos);
  for (const std::string& name : framework_names()) {
    q.require.clear();
    require_stages(framework_named(name), q);
    EXPECT_EQ(q.run->layout.cut, "even");
    l.pp = 5;
    const bool five = q.require.empty() || q.require.front().allows(l);
    EXPECT_EQ(five, name == "megatron") << name;
    l.pp = 4;
    EXPECT_TRUE(q.require.empty() || q.require.front().allows(l)) << name;
  }
}

TEST(Requirement, TwoThatNoLayoutHasAreNamedBoth) {
  const auto refused = [](std::vector<const char*> texts) -> std::string {
    std::vector<Requirement> all;
    for (const char* t : texts) all.push_back(parse_requirement(t));
    try {
      refuse_contradiction(all);
    } catch (const Error& e) {
      return e.what();
    }
    return "";
  };
  EXPECT_EQ(refused({"tp=8", "pp=2", "tp=4"}),
            "--require tp=8 and --require tp=4: no layout has both; give one of the two");
  for (const auto& [a, b] :
       {std::pair{"tp<=2", "tp=4"}, {"tp>4", "tp<4"}, {"schedule=1f1b", "schedule!=1f1b"}})
    EXPECT_NE(refused({a, b}), "") << a << " " << b;
  for (const auto& [a, b] : {std::pair{"tp<=4", "tp=4"},
                             {"tp>=2", "tp<=2"},
                             {"tp=2,4", "tp=4,8"},
                             {"tp>2", "tp<8"},
                             {"zero!=1", "zero<=1"},
                             {"tp!=2", "tp!=4"},
                             {"tp=2", "pp=4"}})
    EXPECT_EQ(refused({a, b}), "") << a << " " << b;
}

// The recipe is the framework's name of precision.fp8; a framework without it is an error.
TEST(Framework, LaunchFlagsSayTheRecipeAndTheExperts) {
  SearchRequest q = small_experts();
  q.numbers = NumberType::fp8;
  q.run.emplace();
  q.run->precision.fp8 = "block";
  const SearchLayout l{.gpus = 4, .global = 8, .tp = 2, .dp = 2, .micro = 1};
  const std::string megatron = launch_text(framework_named("megatron"), q, l);
  EXPECT_NE(megatron.find("--fp8-format hybrid --fp8-recipe blockwise"), std::string::npos) << megatron;
  EXPECT_NE(megatron.find("--expert-tensor-parallel-size 1"), std::string::npos) << megatron;
  EXPECT_NE(megatron.find("--nnodes 1 --nproc_per_node 4"), std::string::npos) << megatron;
  EXPECT_NE(launch_text(framework_named("nemo"), q, l).find("trainer.plugins.fp8_recipe=blockwise"),
            std::string::npos);
  EXPECT_THROW(refuse_types(framework_named("torchtitan"), q), Error);
  EXPECT_THROW(refuse_types(framework_named("deepspeed"), q), Error);
  q.run->precision.fp8 = "current";
  EXPECT_NO_THROW(refuse_types(framework_named("torchtitan"), q));
  EXPECT_NE(launch_text(framework_named("torchtitan"), q, l)
                .find("--quantize.linear.float8.recipe_name tensorwise"),
            std::string::npos);
  q.run->precision.fp8 = "none";
  q.run->precision.compute = "f16";
  q.numbers = NumberType::half;
  EXPECT_THROW(refuse_types(framework_named("torchtitan"), q), Error);
  const std::string half = launch_text(framework_named("megatron"), q, l);
  EXPECT_NE(half.find("--fp16"), std::string::npos) << half;
  EXPECT_EQ(half.find("--bf16"), std::string::npos) << half;
}

TEST(Answer, FitsAScreen) {
  for (SearchRequest q : {small_request(), small_experts()}) {
    q.asked_global = 24;
    const SearchResult r = search(q);
    const SearchWhy w = why(q, r, false);
    const std::string text = answer_text(q, r, &w, nullptr);
    EXPECT_LE(std::count(text.begin(), text.end(), '\n'), 24) << text;
    q.saved_bytes = 1e9;  // with a line of checkpoints, which gives way to what the caller prints below
    const std::string above = answer_text(q, r, &w, nullptr, 7);
    EXPECT_LE(std::count(above.begin(), above.end(), '\n'), 17) << above;
    EXPECT_NE(text.find("[bound "), std::string::npos) << text;
    EXPECT_NE(text.find("GPU-hours per billion tokens"), std::string::npos) << text;
    Confirmation all;
    all.looked_at.push_back({.priced = r.best[0]});
    all.looked_at[0].unsimulated = "layout.shard_group = 4: none of that";
    EXPECT_NE(answer_text(q, r, &w, &all).find("(closed form; replays do not have layout.shard_group = 4)\n"),
              std::string::npos);
  }
}

TEST(Answer, NumbersHaveThreeDigits) {
  for (const auto& [x, text] : {std::pair{54.748, "54.7"},
                                {6.8136, "6.81"},
                                {0.012345, "0.0123"},
                                {1966.0, "1,970"},
                                {99.96, "100"},
                                {9.996, "10.0"},
                                {0.0, "0"},
                                {123456789.0, "123,000,000"}})
    EXPECT_EQ(three_digits(x), text);
  EXPECT_EQ(capacity_text(85899345920), "85.9 GB (80 GiB)");
  EXPECT_EQ(capacity_text(8e9), "8.00 GB (7.45 GiB)");
  EXPECT_EQ(seconds_text(0.1732), "173 ms");
  EXPECT_EQ(seconds_text(24.53), "24.5 s");
  EXPECT_EQ(seconds_text(0.9999), "1.00 s");
  EXPECT_EQ(seconds_text(85.04e-6), "85.0 us");
}

}  // namespace
}  // namespace trireme::test
