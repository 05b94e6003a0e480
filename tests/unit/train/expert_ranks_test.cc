// Training with experts over ranks: checkpoints of any ep read by any other, evaluations, replicas, metrics.
#include <gtest/gtest.h>

#include <functional>

#include "base/json.h"
#include "checkpoint/hf.h"
#include "runtime/booking.h"
#include "runtime/rank_threads.h"
#include "spec/run_schedule.h"
#include "tiny_run.h"
#include "train/checkpointing.h"

namespace trireme::test {
namespace {

struct ExpertLayout {
  int64_t dp = 1, tp = 1, ep = 1, zero = 0, cp = 1;
};

// deepseek_v3's: what is compressed is whole on every rank of tp, heads are divided.
void make_latent(ModelSpec& m) {
  const int64_t vocab = m.vocab;
  m = ModelSpec::of("deepseek_v3");
  m.vocab = vocab, m.layers = 2, m.dense_layers = 1, m.hidden = 48, m.heads = m.kv_heads = 12, m.ffn = 48;
  m.q_rank = 14, m.kv_rank = 10, m.nope_head_dim = 6, m.rope_head_dim = 4, m.v_head_dim = 5;
  m.experts = 12, m.experts_per_token = 3, m.moe_ffn = m.shared_ffn = 12, m.attn_bias = true;
  m.expert_groups = 4, m.top_groups = 2;
}

RunSpec experts_run(const fs::path& folder, const ExpertLayout& l, int64_t steps) {
  RunSpec r = tiny_run(folder, steps);
  const int64_t vocab = r.model.vocab;
  r.model = ModelSpec::of("qwen2_moe");
  r.model.vocab = vocab, r.model.layers = 2, r.model.hidden = 48, r.model.heads = 6, r.model.kv_heads = 2;
  r.model.ffn = 40, r.model.experts = 12, r.model.experts_per_token = 3, r.model.moe_ffn = 20;
  r.model.shared_ffn = 24;
  r.data.seq_len = 12;  // which tp divides
  r.model.finish(r.data.seq_len);
  r.batch.micro = 1, r.batch.global = 12;
  r.layout.dp = l.dp, r.layout.tp = l.tp, r.layout.ep = l.ep, r.layout.zero = l.zero, r.layout.cp = l.cp;
  r.precision.compute = r.precision.grads = r.precision.reduce = "f32";
  r.optimizer.lr = 1e-2, r.optimizer.schedule = "constant", r.optimizer.warmup = 0;
  r.train.check_every = 2, r.train.checkpoint_every.count = 2, r.train.keep = 9;
  return r;
}

std::vector<float> read_whole(const Checkpoint& c, const std::string& name) {
  const Shape global = c.find(name)->global;
  std::vector<float> x(size_t(global.numel()));
  Slice all;
  all.extent = global, all.offset.rank = global.rank;
  c.read(name, all, {0, global.numel()}, Tensor(x.data(), {global.numel()}, DType::f32));
  return x;
}

// What `saved` holds, read under each layout and saved again, to the bit.
void expect_same_bits_under(std::span<const ExpertLayout> layouts, const Checkpoint& saved,
                            const std::function<RunSpec(const ExpertLayout&)>& run_of, const fs::path& tmp) {
  for (const ExpertLayout& l : layouts) {
    const RunSpec run = resolve(run_of(l), {});
    const int64_t arena = book_training(run, schedule_of(run), 1).arena_bytes;
    run_rank_threads(int(run.world()), "cpu", {.threads = 1}, [&](Device& device, CommFactory& factory) {
      CommSet comms(factory, mesh_of(run.layout));
      StageRunner r(run, RunMode::train, device, arena, &comms);
      load_checkpoint(r, saved, true);
      RunSpec again = run;
      again.train.dir = (tmp / "again").string();
      const fs::path folder = save_checkpoint(r, again, 5, {});
      if (factory.rank() > 0) return;
      const Checkpoint back = Checkpoint::open(folder);
      EXPECT_EQ(back.names(), saved.names());
      for (const std::string& name : saved.names())
        EXPECT_EQ(read_whole(back, name), read_whole(saved, name))
            << name << " ep=" << l.ep << " tp=" << l.tp;
    });
    fs::remove_all(tmp / "again");
  }
}

// Every element to the bit, moments too, whatever divided the experts before and after.
TEST(ExpertRanks, ReshardingMovesNoBit) {
  TempFolder tmp;
  auto run_of = [&](const ExpertLayout& l) { return experts_run(tmp.path(), l, 2); };
  const ExpertLayout layouts[] = {
      {}, {.dp = 3, .ep = 3, .zero = 3}, {.dp = 4, .ep = 2, .zero = 1}, {.tp = 2}};
  const Checkpoint saved =
      Checkpoint::open(train_here(run_of({.dp = 2, .tp = 2, .ep = 4, .zero = 2})).checkpoint);
  expect_same_bits_under(layouts, saved, run_of, tmp.path());
}

// The same of latent attention, from one tp to others and to cp; and what a Hugging Face folder is made of
// on one rank is what is read back from it.
TEST(ExpertRanks, LatentAttentionReshardsToTheBit) {
  TempFolder tmp;
  auto run_of = [&](const ExpertLayout& l) {
    RunSpec r = experts_run(tmp.path(), l, 2);
    make_latent(r.model);
    r.model.finish(r.data.seq_len);
    return r;
  };
  const ExpertLayout layouts[] = {{},
                                  {.tp = 2},
                                  {.dp = 3, .tp = 4, .ep = 3, .zero = 3},
                                  {.tp = 3, .ep = 3},
                                  {.dp = 2, .zero = 1, .cp = 3},
                                  {.tp = 2, .cp = 2}};
  const Checkpoint saved =
      Checkpoint::open(train_here(run_of({.dp = 2, .tp = 4, .ep = 4, .zero = 2})).checkpoint);
  expect_same_bits_under(layouts, saved, run_of, tmp.path());
  const ModelSpec model = resolve(run_of({}), {}).model;
  export_hf(tmp / "hf", model, [&](std::string_view name, const Tensor& to) {
    const std::vector<float> whole = read_whole(saved, std::string(name) + "/master");
    std::copy(whole.begin(), whole.end(), to.as<float>());
  });
  const HfFolder folder(tmp / "hf", model);
  int64_t read = 0;
  for (const std::string& name : saved.names()) {
    if (!name.ends_with("/master")) continue;
    const std::vector<float> want = read_whole(saved, name);
    std::vector<float> got(want.size());
    folder.read(name.substr(0, name.size() - 7), Tensor(got.data(), saved.find(name)->global, DType::f32));
    EXPECT_EQ(got, want) << name;
    read++;
  }
  EXPECT_GT(read, 50);
}

// A run goes on under another ep, tp and cp, and replicas are compared on the way: its losses stay those of
// the run of one rank.
TEST(ExpertRanks, GoesOnUnderAnotherEp) {
  const ExpertLayout layouts[] = {{.dp = 2, .ep = 2, .zero = 1},          {.dp = 3, .ep = 3, .zero = 3},
                                  {.dp = 2, .tp = 2, .ep = 4, .zero = 2}, {.dp = 2, .ep = 4, .cp = 2},
                                  {.dp = 4, .ep = 2, .zero = 3},          {}};
  constexpr int64_t kSteps = 2 * std::size(layouts);
  auto losses = [](const fs::path& folder) {
    std::vector<double> all;
    for (const std::string& line : lines_of(read_text(folder / "run" / "metrics.jsonl"))) {
      const auto m = nlohmann::json::parse(line);
      if (m.contains("loss")) all.push_back(m.at("loss"));
    }
    return all;
  };
  TempFolder one, tmp;
  train_here(experts_run(one.path(), {}, kSteps));
  int64_t done = 0;
  for (const ExpertLayout& l : layouts) {
    TrainHooks hooks;
    int64_t start = -1;
    hooks.start = [&](int64_t s) { start = s; };
    hooks.step = [&](const StepMetrics& m) {
      if (m.step == done + 2) request_interrupt();
    };
    train_here(experts_run(tmp.path(), l, kSteps), hooks);
    clear_interrupt();
    EXPECT_EQ(start, done) << "ep=" << l.ep;
    done += 2;
  }
  const std::vector<double> want = losses(one.path()), got = losses(tmp.path());
  ASSERT_EQ(want.size(), size_t(kSteps));
  ASSERT_EQ(got.size(), want.size());
  for (size_t i = 0; i < want.size(); i++) EXPECT_NEAR(got[i] / want[i], 1, 1e-5) << "step " << i + 1;
}

// Also with a last round that not every rank has work for.
TEST(ExpertRanks, AnEvaluationIsTheSameNumberOnAllOfThem) {
  TempFolder tmp;
  double want = 0;
  for (const ExpertLayout& l :
       {ExpertLayout{}, ExpertLayout{.dp = 3, .ep = 3}, ExpertLayout{.dp = 2, .tp = 2, .ep = 4, .zero = 3}}) {
    const RunSpec run = resolve(experts_run(tmp.path(), l, 2), {});
    const int64_t arena = book_training(run, schedule_of(run), 1).arena_bytes;
    run_rank_threads(int(run.world()), "cpu", {.threads = 1}, [&](Device& device, CommFactory& factory) {
      CommSet comms(factory, mesh_of(run.layout));
      StageRunner r(run, RunMode::train, device, arena, &comms);
      r.init_weights();
      const EvalResult e = evaluate_shard(r, run, run.data.valid.first(), 0);
      if (factory.rank() > 0) return;
      if (want == 0) want = e.loss;
      EXPECT_NEAR(e.loss / want, 1, 1e-6);
    });
  }
  EXPECT_GT(want, 0);
}

TEST(ExpertRanks, MetricsHaveLoadAndLosses) {
  TempFolder tmp;
  RunSpec run = experts_run(tmp.path(), {.dp = 2, .ep = 2}, 2);
  run.moe = {.aux_loss = 0.01, .z_loss = 0.001, .capacity = 1};
  train_here(run);
  const auto m = nlohmann::json::parse(lines_of(read_text(fs::path(run.train.dir) / "metrics.jsonl")).at(1));
  EXPECT_GT(m.at("aux_loss").get<double>(), 0.01 * 2 * 3 * 0.99);
  EXPECT_GT(m.at("z_loss").get<double>(), 0);
  EXPECT_EQ(m.at("expert_load").size(), 2u);
  EXPECT_GT(m.at("expert_load")[0].get<double>(), 1);
  EXPECT_GT(m.at("dropped")[1].get<double>(), 0);
}

}  // namespace
}  // namespace trireme::test
