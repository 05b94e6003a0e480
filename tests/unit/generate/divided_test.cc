// A model divided over ranks of inference gives one rank's logits, tokens and losses, and each rank has its
// part.
#include <gtest/gtest.h>

#include <cmath>
#include <mutex>

#include "../runtime/tiny.h"
#include "generate/generate.h"
#include "runtime/rank_threads.h"
#include "spec/inference.h"

namespace trireme {
namespace {

using test::tiny_run;
using Ids = std::vector<int32_t>;
using Values = std::vector<float>;

struct Case {
  std::string arch, layout;
  int64_t kv_heads = 2;
  std::string method = "ring";
  std::string compute = "f32";
};
void PrintTo(const Case& c, std::ostream* out) {
  *out << c.arch << ' ' << c.layout;
}

// Three blocks, so that pipeline ranks have different numbers; a vocabulary that nothing divides.
RunSpec run_of(const Case& c) {
  RunSpec run = tiny_run("llama", c.compute, 1);
  const ModelSpec dense = run.model;
  run.model = ModelSpec::of(c.arch);
  ModelSpec& m = run.model;
  m.vocab = dense.vocab;
  m.layers = 3;
  m.hidden = 40;
  m.heads = 4;
  m.kv_heads = c.arch == "gpt2" ? 4 : c.kv_heads;
  m.ffn = 52;
  m.init_std = 0.2;
  if (m.moe()) {
    m.experts = 6;
    m.experts_per_token = 2;
  }
  if (m.latent()) {
    m.kv_heads = 4;
    m.kv_rank = 10;
    m.q_rank = 14;
    m.nope_head_dim = 6;
    m.rope_head_dim = 4;
    m.v_head_dim = 5;
    m.experts = 8;
    m.expert_groups = 4;
    m.top_groups = 2;
    m.dense_layers = 1;
    m.shared_ffn = 24;
    m.attn_bias = true;
  }
  run.model.finish(run.data.seq_len);
  run.precision.reduce = "f32";
  run.layout.cp_method = c.method;
  return run;
}

using Book = std::function<int64_t(const RunSpec&, int pp_rank)>;

// Runs `work` on rank 0 and then `after` on every rank, one at a time.
void on_ranks(const RunSpec& run, const Book& book, const std::function<void(StageRunner&)>& work,
              const std::function<void(int rank, StageRunner&)>& after = {}) {
  std::mutex mutex;
  run_rank_threads(int(run.world()), "cpu", {.threads = 1}, [&](Device& device, CommFactory& ranks) {
    CommSet comms(ranks, mesh_of(run.layout));
    const int64_t arena = book(run, comms.mesh().coord(comms.rank(), Axis::pp));
    StageRunner runner(run, RunMode::infer, device, arena, &comms);
    runner.init_weights();
    if (comms.rank() > 0) {
      runner.follow();
    } else {
      work(runner);
      runner.dismiss();
    }
    std::lock_guard lock(mutex);
    EXPECT_EQ(runner.arena().high_water(), arena) << "rank " << comms.rank();
    if (after) after(comms.rank(), runner);
  });
}

void alone(const RunSpec& run, int64_t arena, const std::function<void(StageRunner&)>& work) {
  auto device = make_device("cpu", {.threads = 1});
  StageRunner runner(run, RunMode::infer, *device, arena);
  runner.init_weights();
  work(runner);
}

Ids random_text(const RunSpec& run, int64_t n, uint64_t which) {
  Ids t(static_cast<size_t>(n));
  for (size_t i = 0; i < t.size(); i++)
    t[i] = int32_t(below(rng_key(which, 0, "text"), i, uint64_t(run.model.vocab)));
  return t;
}

class Divided : public testing::TestWithParam<Case> {
 protected:
  RunSpec one_ = run_of(GetParam());
  RunSpec run_ = inference_run(one_, inference_layout(GetParam().layout, one_));
};

// Texts of odd lengths, read and decoded together; one moves to another slot.
Values logits_of(StageRunner& r, const std::vector<Ids>& texts, std::span<const int64_t> prompts) {
  const auto vocab = size_t(r.run().model.vocab);
  const size_t n = texts.size();
  Values all;
  const auto rows = [&](size_t count) {
    all.resize(all.size() + count * vocab);
    return std::span(all).last(count * vocab);
  };
  r.decoder().open_cache(int64_t(n), 20);
  for (size_t i = 0; i < n; i++)
    r.decoder().prefill(int64_t(i), std::span(texts[i]).first(size_t(prompts[i])), rows(1));
  for (int64_t step = 0; step < 4; step++) {
    Ids tokens, positions;
    for (size_t i = 0; i < n; i++) {
      positions.push_back(int32_t(prompts[i] + step));
      tokens.push_back(texts[i][size_t(positions.back())]);
    }
    r.decoder().decode(tokens, positions, rows(n));
  }
  r.decoder().move_text(int64_t(n) - 1, 0, prompts[n - 1] + 4);
  const int32_t at = int32_t(prompts[n - 1]) + 4;
  r.decoder().decode({&texts[n - 1][size_t(at)], 1}, {&at, 1}, rows(1));
  return all;
}

TEST_P(Divided, GivesOneRanksLogitsInTheMemoryThatWasBooked) {
  const std::vector<int64_t> prompts = {7, 1, 12};
  std::vector<Ids> texts;
  for (size_t i = 0; i < prompts.size(); i++) texts.push_back(random_text(one_, 20, i));
  const GenerationShape shape{.slots = 3, .capacity = 20, .prefills = prompts};
  Values want, got;
  int64_t whole = 0, whole_cache = 0;
  alone(one_, book_generation(one_, 1, shape), [&](StageRunner& r) {
    want = logits_of(r, texts, prompts);
    whole = r.flat().weights.bytes();
    whole_cache = r.decoder().cache().sizes().bytes();
  });
  int64_t most = 0, most_cache = 0;
  on_ranks(
      run_, [&](const RunSpec& run, int pp_rank) { return book_generation(run, 1, shape, pp_rank); },
      [&](StageRunner& r) { got = logits_of(r, texts, prompts); },
      [&](int, StageRunner& r) {
        most = std::max(most, r.flat().weights.bytes());
        most_cache = std::max(most_cache, r.decoder().cache().sizes().bytes());
      });
  ASSERT_EQ(got.size(), want.size());
  double off = 0, square = 0;
  for (size_t i = 0; i < want.size(); i++) {
    off = std::max(off, std::fabs(double(got[i]) - want[i]));
    square += double(want[i]) * want[i];
  }
  off /= std::sqrt(square / double(want.size()));
  fmt::print(
      "{} {}: logits within {:.1e} of the typical one; weights of a rank {:.2f}, cache {:.2f} of one "
      "rank's\n",
      GetParam().arch, GetParam().layout, off, double(most) / double(whole),
      double(most_cache) / double(whole_cache));
  EXPECT_LE(off, 1e-5);
  const LayoutSpec& l = run_.layout;
  EXPECT_EQ(most_cache, whole_cache / 3 * (l.pp > 1 ? 2 : 3) /
                            std::min(l.tp, one_.model.latent() ? one_.model.heads : one_.model.kv_heads));
  if (l.pp * l.ep > 1 || (l.tp > 1 && !one_.model.moe())) {
    EXPECT_LT(double(most), 0.8 * double(whole));
  }
}

TEST_P(Divided, GivesOneRanksTokensUpToANearTie) {
  const Prompts prompts = {random_text(one_, 5, 1), random_text(one_, 1, 2), random_text(one_, 11, 3),
                           random_text(one_, 8, 4)};
  // The context ends in the midst of a text, whose last half is read again.
  GenerateOptions o{.sample = {.temperature = 0}, .tokens = 14, .context = 17, .parallel = 3};
  const GenerationShape shape = generation_shape(prompts, o);
  std::vector<Ids> want(prompts.size()), got(prompts.size());
  std::vector<size_t> ties(prompts.size(), size_t(-1));
  const auto hooks_of = [](std::vector<Ids>& to) {
    GenerateHooks h;
    h.done = [&to](size_t p, const Generated& g) { to[p] = g.tokens; };
    return h;
  };
  alone(one_, book_generation(one_, 1, shape), [&](StageRunner& r) {
    GenerateHooks hooks = hooks_of(want);
    hooks.near_tie = [&](size_t p, size_t token, float gap) {
      ties[p] = std::min(ties[p], token);
      fmt::print("text {}, token {}: the two most likely tokens are {:.1e} apart\n", p, token, gap);
    };
    generate(r, prompts, o, hooks);
  });
  on_ranks(
      run_, [&](const RunSpec& run, int pp_rank) { return book_generation(run, 1, shape, pp_rank); },
      [&](StageRunner& r) { generate(r, prompts, o, hooks_of(got)); });
  for (size_t p = 0; p < prompts.size(); p++) {
    const size_t n = std::min(ties[p], want[p].size());
    ASSERT_EQ(got[p].size(), want[p].size());
    EXPECT_EQ(Ids(got[p].begin(), got[p].begin() + int64_t(n)),
              Ids(want[p].begin(), want[p].begin() + int64_t(n)))
        << "text " << p;
  }
}

// Sequences of 23 and of 7 tokens, which no number of ranks divides; some positions have no target.
TEST_P(Divided, GivesOneRanksLosses) {
  const std::vector<BatchShape> shapes = {{2, 23}, {3, 7}};
  const auto losses = [&](StageRunner& r) {
    std::vector<double> all;
    for (const BatchShape& s : shapes) {
      const auto fill = [&](int64_t, int64_t, const HostBatch& b) {
        const Ids text = random_text(one_, s.sequences * s.seq + 1, 9);
        for (size_t i = 0; i < b.tokens.size(); i++) {
          b.tokens[i] = text[i];
          b.targets[i] = i % 5 == 3 ? -1 : text[i + 1];
          b.positions[i] = int32_t(int64_t(i) % s.seq);
        }
      };
      std::vector<double> each(size_t(s.sequences));
      const TokenLoss sum = r.evaluator().evaluate(s.sequences, s.seq, fill, each);
      all.insert(all.end(), each.begin(), each.end());
      all.insert(all.end(), {sum.sum, double(sum.tokens)});
    }
    return all;
  };
  std::vector<double> want, got;
  alone(one_, book_evaluation(one_, 1, shapes), [&](StageRunner& r) { want = losses(r); });
  on_ranks(
      run_, [&](const RunSpec& run, int pp_rank) { return book_evaluation(run, 1, shapes, pp_rank); },
      [&](StageRunner& r) { got = losses(r); });
  ASSERT_EQ(got.size(), want.size());
  for (size_t i = 0; i < want.size(); i++) EXPECT_NEAR(got[i], want[i], 1e-5 * std::fabs(want[i])) << i;
}

INSTANTIATE_TEST_SUITE_P(Layouts, Divided,
                         testing::Values(Case{"llama", "tp=2"}, Case{"llama", "pp=2"},
                                         Case{"llama", "tp=2,pp=2"}, Case{"llama", "cp=2"},
                                         Case{"llama", "tp=4"}, Case{"llama", "cp=2", 2, "ulysses"},
                                         Case{"llama", "tp=2,pp=2,cp=2"}, Case{"gpt2", "tp=2,pp=2"},
                                         Case{"gpt2", "cp=3"}, Case{"mixtral", "ep=2"},
                                         Case{"mixtral", "tp=2"}, Case{"mixtral", "tp=2,ep=2"},
                                         Case{"mixtral", "ep=3,pp=2"}, Case{"qwen2_moe", "tp=2,cp=2,ep=2"},
                                         Case{"deepseek_v3", "tp=2,pp=2,ep=2"}),
                         [](const auto& i) {
                           std::string name = i.param.arch + "_" + i.param.layout + "_" + i.param.method;
                           for (char& c : name)
                             if (!std::isalnum(static_cast<unsigned char>(c))) c = '_';
                           return name;
                         });

TEST(DividedModel, LayoutsThatDoNotDivideItAreErrors) {
  const RunSpec run = run_of({"llama", ""});
  const auto error_of = [&](const std::string& layout) -> std::string {
    try {
      inference_run(run, inference_layout(layout, run));
      return "";
    } catch (const Error& e) {
      return e.what();
    }
  };
  EXPECT_NE(error_of("tp=3").find("model.heads = 4"), std::string::npos) << error_of("tp=3");
  EXPECT_NE(error_of("pp=4").find("model.layers"), std::string::npos) << error_of("pp=4");
  for (const char* layout : {"tp", "tp=", "tp=0", "tp=2;pp=2", "dp=2", "tp=2x"})
    EXPECT_NE(error_of(layout).find("no layout"), std::string::npos) << layout;
  RunSpec trained = run;
  trained.layout.tp = 2;
  trained.layout.pp = 2;
  trained.layout.dp = 4;
  EXPECT_EQ(inference_layout("run", trained), (InferenceLayout{.tp = 2, .pp = 2}));
  EXPECT_EQ((InferenceLayout{.tp = 2, .ep = 6}).dp(), 3);
}

// If one rank fails, the others end too, and its error is thrown.
TEST(DividedModel, AFailureEndsAllRanks) {
  const RunSpec one = run_of({"llama", ""}), run = inference_run(one, {.tp = 2, .pp = 2});
  const GenerationShape shape{.slots = 1, .capacity = 8, .prefills = {5}};
  for (int bad = 0; bad < 4; bad++) {
    std::string why;
    try {
      run_rank_threads(4, "cpu", {.threads = 1}, [&](Device& device, CommFactory& ranks) {
        CommSet comms(ranks, mesh_of(run.layout));
        const int pp_rank = comms.mesh().coord(comms.rank(), Axis::pp);
        StageRunner r(run, RunMode::infer, device, book_generation(run, 1, shape, pp_rank), &comms);
        r.init_weights();
        if (comms.rank() == bad) run_failed("a test ends here");
        if (comms.rank() > 0) return r.follow();
        Values logits(size_t(run.model.vocab));
        r.decoder().open_cache(1, 8);
        r.decoder().prefill(0, random_text(run, 5, 1), logits);
        r.dismiss();
      });
    } catch (const Error& e) {
      why = e.what();
    }
    EXPECT_EQ(why, fmt::format("rank {}: a test ends here", bad));
  }
}

// A weight that is not finite is named, on whichever rank it is.
TEST(DividedModel, WeightsThatAreNotFiniteAreNamed) {
  const RunSpec one = run_of({"llama", ""}), run = inference_run(one, {.tp = 2, .pp = 2});
  const std::vector<BatchShape> shapes = {{1, 7}};
  std::string why;
  try {
    run_rank_threads(4, "cpu", {.threads = 1}, [&](Device& device, CommFactory& ranks) {
      CommSet comms(ranks, mesh_of(run.layout));
      const int pp_rank = comms.mesh().coord(comms.rank(), Axis::pp);
      StageRunner r(run, RunMode::infer, device, book_evaluation(run, 1, shapes, pp_rank), &comms);
      r.init_weights();
      if (comms.rank() == 1) {
        for (const Param* p : r.params().held())
          r.memory().write_param(*p, "", Values(size_t(r.memory().owned(*p).size()), NAN));
      }
      if (comms.rank() > 0) return r.follow();
      r.evaluator().evaluate(1, 7, [](int64_t, int64_t, const HostBatch& b) {
        for (size_t i = 0; i < b.tokens.size(); i++) b.tokens[i] = b.targets[i] = b.positions[i] = int32_t(i);
      });
      r.dismiss();
    });
  } catch (const Error& e) {
    why = e.what();
  }
  EXPECT_NE(why.find("rank 1: evaluation"), std::string::npos) << why;
  EXPECT_NE(why.find("are not finite"), std::string::npos) << why;
}

}  // namespace
}  // namespace trireme
