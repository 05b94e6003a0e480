// Training with experts over ranks: checkpoints of any ep read by any other, evaluations, replicas, metrics.
#include <gtest/gtest.h>

#include <numeric>

#include <algorithm>
#include <functional>

#include "base/json.h"
#include "checkpoint/hf.h"
#include "runtime/booking.h"
#include "runtime/rank_threads.h"
#include "spec/run_schedule.h"
#include "tiny_run.h"
#include "train/batches.h"
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
      load_checkpoint(r, saved, Load::resume);
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

// The same of latent attention, from one tp to others and to cp, and of routers' biases that have moved; and
// what a Hugging Face folder is made of on one rank is what is read back from it.
TEST(ExpertRanks, LatentAttentionReshardsToTheBit) {
  TempFolder tmp;
  auto run_of = [&](const ExpertLayout& l) {
    RunSpec r = experts_run(tmp.path(), l, 2);
    make_latent(r.model);
    r.moe.bias_rate = 0.01;
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
  const std::vector<float> biases = read_whole(saved, "blocks.1.moe.router.bias/master");
  EXPECT_NE(biases, std::vector<float>(biases.size(), 0.0f));
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

// Two steps under each layout, each going on where the one before was interrupted. Replicas are compared on
// the way, losses stay those of the run of one rank. Returns both runs' newest checkpoints, one rank's first.
std::pair<Checkpoint, Checkpoint> expect_goes_on(
    std::span<const ExpertLayout> layouts, const fs::path& folder,
    const std::function<RunSpec(const fs::path&, const ExpertLayout&, int64_t steps)>& run_of) {
  const fs::path one = folder / "one", many = folder / "many";
  const int64_t steps = 2 * int64_t(layouts.size());
  auto losses = [](const fs::path& at) {
    std::vector<double> all;
    for (const std::string& line : lines_of(read_text(at / "run" / "metrics.jsonl"))) {
      const auto m = nlohmann::json::parse(line);
      if (m.contains("loss")) all.push_back(m.at("loss"));
    }
    return all;
  };
  const fs::path alone = train_here(run_of(one, {}, steps)).checkpoint;
  fs::path newest;
  int64_t done = 0;
  for (const ExpertLayout& l : layouts) {
    TrainHooks hooks;
    int64_t start = -1;
    hooks.start = [&](int64_t s) { start = s; };
    hooks.step = [&](const StepMetrics& m) {
      if (m.step == done + 2) request_interrupt();
    };
    newest = train_here(run_of(many, l, steps), hooks).checkpoint;
    clear_interrupt();
    EXPECT_EQ(start, done) << "ep=" << l.ep;
    done += 2;
  }
  const std::vector<double> want = losses(one), got = losses(many);
  EXPECT_EQ(int64_t(want.size()), steps);
  EXPECT_EQ(got.size(), want.size());
  for (size_t i = 0; i < std::min(got.size(), want.size()); i++)
    EXPECT_NEAR(got[i] / want[i], 1, 1e-5) << "step " << i + 1;
  return {Checkpoint::open(alone), Checkpoint::open(newest)};
}

TEST(ExpertRanks, GoesOnUnderAnotherEp) {
  const ExpertLayout layouts[] = {{.dp = 2, .ep = 2, .zero = 1},          {.dp = 3, .ep = 3, .zero = 3},
                                  {.dp = 2, .tp = 2, .ep = 4, .zero = 2}, {.dp = 2, .ep = 4, .cp = 2},
                                  {.dp = 4, .ep = 2, .zero = 3},          {}};
  TempFolder tmp;
  expect_goes_on(layouts, tmp.path(), experts_run);
}

// Biases go on moving from where they were, and end as one rank's, to the bit: each is a sum of steps of one
// size, as many as loads had it.
TEST(ExpertRanks, BiasesGoOnUnderAnotherEp) {
  const ExpertLayout layouts[] = {
      {.dp = 2, .ep = 2, .zero = 1}, {.dp = 2, .tp = 2, .ep = 4, .zero = 3}, {.tp = 3, .cp = 2}};
  TempFolder tmp;
  const auto [one, many] =
      expect_goes_on(layouts, tmp.path(), [](const fs::path& at, const ExpertLayout& l, int64_t steps) {
        RunSpec r = experts_run(at, l, steps);
        make_latent(r.model);
        r.moe.bias_rate = 0.01;
        r.model.finish(r.data.seq_len);
        return r;
      });
  const std::vector<float> want = read_whole(one, "blocks.1.moe.router.bias/master");
  EXPECT_EQ(read_whole(many, "blocks.1.moe.router.bias/master"), want);
  EXPECT_GT(*std::max_element(want.begin(), want.end()), 0.01f);
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

// Of a first step, by hand: loads and drops from the choices that one rank makes with the same weights, its
// losses those of its counters.
TEST(ExpertRanks, MetricsHaveLoadAndLosses) {
  TempFolder tmp;
  RunSpec run = experts_run(tmp.path(), {.dp = 2, .ep = 2}, 2);
  run.moe = {.aux_loss = 0.01, .z_loss = 0.001, .capacity = 1};
  train_here(run);
  const auto m = nlohmann::json::parse(lines_of(read_text(fs::path(run.train.dir) / "metrics.jsonl")).at(0));

  const int64_t ep = run.layout.ep;
  run.layout.dp = run.layout.ep = 1;
  const RunSpec alone = resolve(run, {});
  const Schedule schedule = schedule_of(alone);
  const auto device = make_device("cpu", {.threads = 1});
  StageRunner r(alone, RunMode::train, *device, book_training(alone, schedule, 1).arena_bytes);
  r.init_weights();
  RecordedRouting choices;
  r.passes().routing().use(Routing::Choices::recorded, &choices);
  Batches batches(alone);
  const StepResult step = r.step(schedule.ranks[0], 1, batches.targets_of(1), batches.training());
  EXPECT_NEAR(m.at("aux_loss").get<double>() / step.aux_loss, 1, 1e-6);
  EXPECT_NEAR(m.at("z_loss").get<double>() / step.z_loss, 1, 1e-6);
  EXPECT_GT(step.aux_loss, 0.01 * 2 * 3 * 0.99);  // balanced is the least
  EXPECT_GT(step.z_loss, 0);
  const int64_t k = alone.model.experts_per_token, seq = alone.data.seq_len, experts = alone.model.experts;
  const int64_t capacity = (seq * k + experts - 1) / experts;  // of a sequence
  ASSERT_EQ(int64_t(m.at("expert_load").size()), alone.model.layers);
  for (int64_t layer = 0; layer < alone.model.layers; layer++) {
    std::vector<int32_t> ids(size_t(alone.batch.global * seq * k));
    choices.replay(fmt::format("blocks.{}.moe", layer), {1, 0, k}, ids);
    std::vector<int64_t> load(static_cast<size_t>(experts)), taken;
    int64_t dropped = 0;
    for (size_t i = 0; i < ids.size(); i++) {
      if (int64_t(i) % (seq * k) == 0) taken.assign(size_t(experts), 0);
      load[size_t(ids[i])]++;
      dropped += ++taken[size_t(ids[i])] > capacity;
    }
    const double most = double(*std::max_element(load.begin(), load.end())), all = double(ids.size());
    EXPECT_DOUBLE_EQ(m.at("expert_load")[size_t(layer)].get<double>(), most * double(experts) / all);
    double fullest = 0;
    for (int64_t r = 0; r < ep; r++)
      fullest = std::max(fullest, double(std::accumulate(load.begin() + r * experts / ep,
                                                         load.begin() + (r + 1) * experts / ep, int64_t{0})));
    EXPECT_DOUBLE_EQ(m.at("ep_load")[size_t(layer)].get<double>(), fullest * double(ep) / all);
    EXPECT_DOUBLE_EQ(m.at("dropped")[size_t(layer)].get<double>(), double(dropped) / all);
    EXPECT_GT(dropped, 0);
  }
}

}  // namespace
}  // namespace trireme::test
