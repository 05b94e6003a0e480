#include "layout_run.h"

#include <limits>
#include <mutex>

#include "base/file.h"
#include "base/rng.h"
#include "far_device.h"
#include "runtime/rank_threads.h"
#include "spec/run_schedule.h"
#include "test_device.h"
#include "train/routing_file.h"

namespace trireme::parity {
namespace {

constexpr const char* kStates[] = {"", "exp_avg", "exp_avg_sq"};

FillBatch batches_of(const RunSpec& run, int dp_rank) {
  return [run, dp_rank](int64_t step, int64_t mb, const HostBatch& b) {
    const size_t seq = size_t(run.data.seq_len);
    for (size_t row = 0; row * seq < b.tokens.size(); row++)
      fill_row(run, step, (mb * run.layout.dp + dp_rank) * run.batch.micro + int64_t(row),
               b.tokens.subspan(row * seq, seq), b.targets.subspan(row * seq, seq),
               b.positions.subspan(row * seq, seq));
  };
}

int64_t targets_of(const RunSpec& run, int64_t step) {
  std::vector<int32_t> t(size_t(run.data.seq_len)), targets(t.size()), p(t.size());
  int64_t n = 0;
  for (int64_t row = 0; row < run.batch.global; row++) {
    fill_row(run, step, row, t, targets, p);
    for (int32_t x : targets) n += x >= 0;
  }
  return n;
}

class Calls : public CommObserver {
 public:
  void issued(const CommCall& c) override { list.push_back(fmt::format("{} {}", name_of(c.kind), c.numel)); }
  std::vector<std::string> list;
};

// Element by global index, so every layout has the same.
void stir_adapters(StageRunner& r) {
  for (const Param& p : r.params().params) {
    if (!p.decl.name.ends_with(".lora_b")) continue;
    const Range own = r.memory().owned(p);
    const uint64_t key = rng_key(3, 0, p.decl.name);
    Values values;
    for (int64_t i = own.begin; i < own.end; i++) {
      const int64_t columns = p.box.extent[1];
      const int64_t row = p.box.offset[0] + i / columns, column = p.box.offset[1] + i % columns;
      values.push_back(float(below(key, uint64_t(row * p.decl.global[1] + column), 2001)) / 20000.0f - 0.05f);
    }
    r.memory().write_param(p, "", values);
  }
  r.weights_from_master();
}

// Rank by rank into whole parameters: each says what it answers for.
struct Home {
  std::mutex mutex;
  Ran ran;

  void take(ByName& whole, const Param& p, const Range& range, std::span<const float> part) {
    std::lock_guard lock(mutex);
    Values& v = whole[p.decl.name];
    v.resize(size_t(p.decl.global.numel()), std::numeric_limits<float>::quiet_NaN());
    const bool matrix = p.decl.global.rank == 2;
    const int64_t columns = matrix ? p.box.extent[1] : 1, stride = matrix ? p.decl.global[1] : 1;
    for (int64_t i = range.begin; i < range.end; i++) {
      const int64_t row = p.box.offset[0] + i / columns, column = matrix ? p.box.offset[1] + i % columns : 0;
      v.at(size_t(row * stride + column)) = part[size_t(i - range.begin)];
    }
  }
};

void bring_state(Home& home, const StageRunner& r, uint64_t& hash) {
  for (const Param& p : r.params().params) {
    const Range own = r.memory().owned(p), mine = r.memory().answers_for(p);
    Values all(size_t(own.size()));
    for (const char* what : kStates) {
      if (p.decl.frozen && *what) continue;
      if (what == std::string("exp_avg_sq") && p.decl.hidden_matrix && r.run().optimizer.name == "muon")
        continue;
      r.memory().read_param(p, what, all);
      hash = hash * 0x9E3779B97F4A7C15u + hash64(all.data(), all.size() * sizeof(float));
      home.take(home.ran.state.at(what), p, mine,
                std::span(all).subspan(size_t(mine.begin - own.begin), size_t(mine.size())));
    }
  }
}

// What no optimizer moves. Every rank that has it has the same.
void bring_buffers(Home& home, const StageRunner& r, ByName& step) {
  for (const Param& p : r.params().buffers) {
    Values all(size_t(p.numel()));
    r.memory().read_param(p, "", all);
    std::lock_guard lock(home.mutex);
    const auto [at, first] = step.try_emplace(p.decl.name, all);
    if (!first && at->second != all) run_failed("ranks differ in {}", p.decl.name);
  }
}

void bring_gradients(Home& home, StageRunner& r, ByName& whole) {
  const FlatState& flat = r.flat();
  for (const Unit& u : r.params().units) {
    if (u.numel == 0 || u.frozen) continue;
    const Range part = own_part(u, flat.place_of(u));
    const Tensor own = flat.own(flat.grads, r.params(), u);
    Values f32(size_t(own.numel()));
    if (own.dtype == DType::f32) {
      r.device().download(f32.data(), own);
    } else {
      std::vector<bf16> raw(f32.size());
      r.device().download(raw.data(), own);
      for (size_t i = 0; i < raw.size(); i++) f32[i] = float(raw[i]);
    }
    for (size_t i = u.first; i < u.last; i++) {
      const Param& p = r.params().params[i];
      const Range mine = r.memory().answers_for(p);
      home.take(whole, p, mine,
                std::span(f32).subspan(
                    size_t(p.offset - u.offset + mine.begin - part.begin) * size_t(mine.size() > 0),
                    size_t(mine.size())));
    }
  }
}

}  // namespace

void fill_row(const RunSpec& run, int64_t step, int64_t global_row, std::span<int32_t> tokens,
              std::span<int32_t> targets, std::span<int32_t> positions) {
  const uint64_t key = rng_key(5, uint64_t(step), "parity data");
  const bool separate = run.data.separate();
  for (size_t i = 0; i < tokens.size(); i++) {
    const uint64_t at = uint64_t(global_row) * 100003 + i;
    tokens[i] = int32_t(below(key, at, uint64_t(run.model.vocab) / 3) * 3);
    const bool ignored = below(key, at + 50000, uint64_t(2 + global_row)) == 0 && i > 0;
    const bool none = global_row == 1 && step % 2 == 0;  // a sequence, or a microbatch, without a target
    targets[i] = ignored || none ? -1 : (tokens[i] * 7 + 3) % int32_t(run.model.vocab);
    const bool begins = separate && below(key, at + 70000, 4) == 0;
    positions[i] = i == 0 || begins ? 0 : positions[i - 1] + 1;
  }
}

Ran train_layout(RunSpec run, const Plan& plan) {
  if (plan.gradients) run.optimizer.lr = 0;
  if (!plan.routing.empty())
    run.train.dir = plan.routing.string(), run.train.record_routing = std::to_string(plan.steps);
  const bool far = plan.far || test::test_device() == test::kFarDevice;
  run.train.device = far ? "cpu" : test::test_device();
  const Schedule schedule = plan.schedule ? *plan.schedule : schedule_of(run);
  validate(schedule);
  Home home;
  home.ran.booking = book_training(run, schedule, 1);
  // Which is not told of it, and f16's scratch of both ops at once is more than of either.
  if (plan.gelu_in_products) home.ran.booking.arena_bytes *= 2;
  home.ran.ranks.resize(size_t(run.world()));
  for (const char* what : kStates) home.ran.state[what];  // maps of maps grow under Home's lock only
  if (plan.gradients) home.ran.gradients.resize(size_t(plan.steps));
  home.ran.buffers.resize(size_t(plan.steps));
  CommOptions sums = options_of(run);
  if (sums.algorithm == "hierarchical") sums.node = 2;
  const RankBody body = [&](Device& device, CommFactory& factory) {
    CommSet comms(factory, mesh_of(run.layout));
    Calls calls;
    StageRunner r(run, RunMode::train, device, home.ran.booking.arena_bytes, &comms);
    comms.observe(&calls);
    RankFacts& facts = home.ran.ranks[size_t(factory.rank())];
    const Ledger& ledger = r.arena().ledger();
    for (Bucket b : {Bucket::weights, Bucket::grads, Bucket::optimizer})
      facts.state[size_t(b)] = ledger.now(b);
    RecordedRouting own;
    if (plan.replay) own = *plan.replay;
    r.passes().routing().use(plan.replay ? Routing::Choices::replayed : Routing::Choices::recorded, &own);
    r.init_weights();
    if (run.lora.active() && !plan.fresh_adapters) stir_adapters(r);
    r.watch().control = {.phase =
                             [&](std::string_view phase) {
                               if (phase == "B" && facts.saved == 0)
                                 facts.saved = ledger.now(Bucket::activations);
                             },
                         .stop = {}};
    RoutingFile recorded(run, 0, factory.rank() == 0);
    const FillBatch fill = batches_of(run, r.sharing().dp_rank);
    const auto take = [&](const StepResult& result) {
      if (factory.rank() == 0)
        home.ran.losses.push_back(result.loss), home.ran.norms.push_back(result.grad_norm);
    };
    if (r.posted()) r.posted()->on_settled(take);
    try {
      for (int64_t s = 1; s <= plan.steps; s++) {
        calls.list.clear();
        r.arena().ledger().restart_peaks();
        device.kernels().restart_counts();
        const int64_t taken_back = r.posted() ? r.posted()->taken_back() : 0;
        StepResult result = r.step(schedule.ranks[size_t(r.sharing().pp.rank)], s,
                                   targets_of(run, s) + plan.announce_more, fill);
        facts.comm = result.comm, facts.again = r.posted() && r.posted()->taken_back() > taken_back;
        facts.cost = device.kernels().total(), facts.launches = device.kernels().launches();
        if (recorded.wants(s)) recorded.write(r, factory.control(), s);
        if (!result.posted) take(result);
        bring_buffers(home, r, home.ran.buffers[size_t(s - 1)]);
        if (plan.gradients) bring_gradients(home, r, home.ran.gradients[size_t(s - 1)]);
      }
      r.settle();
    } catch (const std::exception& e) {
      factory.fail(e.what());
      throw;
    }
    bring_state(home, r, facts.state_hash);
    {
      std::lock_guard lock(home.mutex);
      home.ran.routing.merge(own);
      if (factory.rank() == 0)
        home.ran.routed = r.step_end().routing(),
        home.ran.taken_back = r.posted() ? r.posted()->taken_back() : 0;
    }
    facts.peaks = ledger.peaks(), facts.at_peak = ledger.at_peak(), facts.peak_total = ledger.peak_total();
    facts.high_water = r.arena().high_water();
    facts.left_over = ledger.now(Bucket::activations) + ledger.now(Bucket::comm);
    facts.replayed = device.replayed();
    if (facts.replayed && !facts.replayed->refused.empty()) run_failed("{}", graphs_refused(*facts.replayed));
    facts.calls = calls.list;
    facts.waiting = r.waiting_bytes();
    for (const CommCount& c : comms.counts()) facts.counted += c.wire;
    facts.moved = comms.moved_bytes();
    agree_max(factory.control(), 0);  // nobody leaves while others still need it
  };
  const DeviceOptions alone{
      .threads = 1, .deterministic = !plan.gelu_in_products, .graphs = plan.graphs || test::test_graphs()};
  const MakeDevice make = [&] {
    return far ? test::make_far_device(alone) : make_device(run.train.device, alone);
  };
  run_rank_threads(int(run.world()), make, body, sums);
  return std::move(home.ran);
}

}  // namespace trireme::parity
