#include "runtime/layer_recorder.h"

#include <fmt/format.h>

#include <algorithm>

namespace trireme {
namespace {

using EventKind = LayerTape::Event::Kind;

// Marks a pause among an arena's calls, whose sizes are never 0.
constexpr Arena::Call kPause = {};

void no_batch(int64_t, int64_t, const HostBatch&) {}

}  // namespace

struct LayerRecorder::At {
  const StagePasses::Chunk& chunk;
  Microbatch& m;
  size_t layer, slot;
  int16_t mb;
  bool embedding, head;
};

// Where blocks are between two passes of the layer that is recorded: places in the arena, -1 if there is
// none.
struct LayerRecorder::Blocks {
  std::map<Home, int64_t> homes;
  std::vector<int64_t> saved;
};

LayerRecorder::LayerRecorder(StageRunner& r, LayerTapes& tapes, bool by_number)
    : runner_(r), passes_(r.passes()), params_(r.memory().params()), tapes_(tapes) {
  require(r.sync_ && !r.device().has_data(), "tapes are recorded on meta");
  passes_.set_facts({.step = 1, .targets = 1});
  passes_.turns_.other_pass = [this] { calls_.push_back(kPause); };
  for (size_t l = 0; l < passes_.stage_.layers.size(); l++)
    kinds_.push_back(by_number ? std::to_string(l) : kind_of(l));
}

LayerRecorder::~LayerRecorder() {
  runner_.arena().list_calls(nullptr);
  passes_.turns_.other_pass = [passes = &passes_] { passes->let_other_pass_run(); };
}

// Layers are alike if their parameters are, their place at an end of the model, and how they run.
std::string LayerRecorder::kind_of(size_t layer) const {
  const StagePasses& r = passes_;
  std::vector<ParamDecl> decls;
  r.stage_.layers[layer]->declare(decls);
  const Recompute& again = r.recompute_[layer];
  std::string s = fmt::format("{} {}", again.full, again.tensors);
  for (const StagePasses::Chunk& c : r.chunks_)
    if (layer >= c.first && layer < c.last)
      s += fmt::format(" {}{}", c.embedding && layer == c.first ? "e" : "",
                       c.head && layer + 1 == c.last ? "h" : "");
  const std::string own(r.stage_.layers[layer]->name());
  const auto add_name = [&](std::string_view name) {
    s += ' ';
    s += name.starts_with(own) ? name.substr(own.size()) : name;
  };
  // There may be many: a model with experts has hundreds in a layer.
  const auto add_number = [&](int64_t n) { s += fmt::format_int(n).c_str(); };
  for (const ParamDecl& d : decls) {
    s += ';';
    add_name(d.name), add_name(d.tied_to);
    s += r.fp8_ && !d.linear.empty() && r.fp8_->has(d.linear) ? " fp8" : "";
  }
  for (const uint32_t u : r.shape_.layers[layer].units) {
    const Unit& unit = params_.units[u];
    s += unit.layer == layer ? " unit" : " other unit";
    for (size_t i = unit.first; i < unit.last; i++) {
      const Param& p = params_.params[i];
      s += ',';
      add_name(p.decl.name);
      if (p.decl.frozen) s += " frozen";
      for (int d = 0; d < p.stored.rank; d++) {
        s += ' ';
        add_number(p.box.extent[d]);
        s += '/';
        add_number(p.stored[d]);
      }
    }
  }
  if (r.run_.known_routing.rows) s += " " + own;
  return s;
}

void LayerRecorder::run(OpKind kind, const At& at, int32_t unit) {
  passes_.ctx_.reset();
  passes_.turns_.ctx.reset();
  passes_.run({.kind = kind,
               .mb = at.mb,
               .stage = int16_t(at.chunk.stage),
               .layer = int32_t(at.layer),
               .unit = unit,
               .last = unit + 1},
              no_batch);
}

const LayerTape& LayerRecorder::pass(size_t layer, const PassKey& key) {
  std::map<PassKey, LayerTape>& known = tapes_[kinds_.at(layer)];
  if (!known.count(key)) record(layer, key);
  return known.at(key);
}

std::vector<LayerRecorder::Again> LayerRecorder::recomputed(size_t layer, std::span<const Recompute> ways) {
  require(tapes_[kinds_.at(layer)].empty() && !passes_.recompute_[layer].any(), "a block is recorded once");
  std::vector<Again> all;
  for (const Recompute& way : ways) all.push_back({.way = way, .drop = {}, .again = {}});
  record(layer, later_pass(layer), all);
  return all;
}

PassKey LayerRecorder::later_pass(size_t layer) const {
  std::string started;
  for (const uint32_t u : runner_.programs().shape().layers[layer].units) {
    const Unit& unit = params_.units[u];
    started.append(unit.last - unit.first, '1');
  }
  return {.kind = OpKind::weight, .by_turns = false, .started = started, .mb = -1};
}

// All passes in their order, because each takes over what the ones before it saved.
void LayerRecorder::record(size_t layer, const PassKey& key, std::span<Again> ways) {
  StagePasses& r = passes_;
  const RankShape& shape = runner_.programs().shape();
  const StagePasses::Chunk& c = *std::find_if(r.chunks_.begin(), r.chunks_.end(), [&](const auto& chunk) {
    return layer >= chunk.first && layer < chunk.last;
  });
  const int16_t mb = std::max<int16_t>(0, key.mb);
  const At at{.chunk = c,
              .m = r.microbatches_.at(size_t(mb)),
              .layer = layer,
              .slot = c.slot + layer - c.first,
              .mb = mb,
              .embedding = c.embedding && layer == c.first,
              .head = c.head && layer + 1 == c.last};
  const std::vector<uint32_t>& units = shape.layers[layer].units;
  r.device_.kernels().attach(&r.arena_);
  r.routing_.start_step();
  run(OpKind::load, at);
  for (const uint32_t u : units) {
    if (shape.units[u].gathers) run(OpKind::gather, at, int32_t(u)), run(OpKind::arrive, at, int32_t(u));
    if (shape.units[u].slots) run(OpKind::open, at, int32_t(u));
  }
  const auto boundary = [&] {
    return r.boundary(r.run_.batch.micro, r.run_.data.seq_len / r.sharing_.cp.size);
  };
  if (!at.embedding) at.m.x[at.slot] = boundary();
  Blocks blocks;
  std::map<PassKey, LayerTape>& known = tapes_[kinds_[layer]];
  const auto pass = [&](OpKind kind, bool by_turns) {
    const bool weight = kind == OpKind::weight;
    r.turns_.mb = by_turns ? mb : -1;
    known.insert_or_assign(
        {.kind = kind, .by_turns = by_turns, .started = weight ? key.started : "", .mb = key.mb},
        run_pass(at, kind, blocks));
    r.turns_.mb = -1;
  };
  pass(OpKind::forward, key.by_turns);
  if (r.recompute_[layer].any()) {
    pass(OpKind::drop, false);
    run(OpKind::left, at);
    run(OpKind::fetch, at);
    pass(OpKind::again, key.by_turns);
  }
  // Each leaves what the forward pass left.
  for (Again& a : ways) {
    r.recompute_[layer] = a.way;
    a.drop = run_pass(at, OpKind::drop, blocks);
    a.again = run_pass(at, OpKind::again, blocks);
    r.recompute_[layer] = {};
  }
  if (!at.head) at.m.dx[at.slot + 1] = boundary();
  pass(OpKind::input, key.by_turns);
  size_t bit = 0;
  for (const uint32_t u : units)
    for (size_t i = params_.units[u].first; i < params_.units[u].last; i++)
      params_.params[i].grad_started = key.kind == OpKind::weight && key.started.at(bit++) == '1';
  pass(OpKind::weight, key.by_turns);
  r.abandon();
  abandon(*runner_.sync_, params_);
}

// Runs one pass; `blocks` has the blocks from before it, then those after it.
LayerTape LayerRecorder::run_pass(const At& at, OpKind kind, Blocks& blocks) {
  const Arena& arena = runner_.arena();
  const auto homes = [&] {
    const auto place = [&](const Owned& t) { return t ? arena.place_of(*t) : -1; };
    return std::map<Home, int64_t>{{Home::input, place(at.m.x[at.slot])},
                                   {Home::output, place(at.m.x[at.slot + 1])},
                                   {Home::output_grad, place(at.m.dx[at.slot + 1])},
                                   {Home::input_grad, place(at.m.dx[at.slot])},
                                   {Home::leaving, place(passes_.leaving_)}};
  };
  blocks.homes = homes();
  calls_.clear();
  runner_.arena().list_calls(&calls_);
  run(kind, at);
  runner_.arena().list_calls(nullptr);
  const std::map<Home, int64_t> after = homes();

  LayerTape tape;
  std::map<int64_t, int32_t> taken, made;  // by place: existing blocks
  const auto take = [&](int64_t place, const BlockSize& size) {
    LayerTape::Taken t{.size = size};
    const auto saved = std::find(blocks.saved.begin(), blocks.saved.end(), place);
    if (saved != blocks.saved.end()) {
      t.at = int32_t(saved - blocks.saved.begin());
      *saved = -1;
    } else {
      const auto h = std::find_if(blocks.homes.begin(), blocks.homes.end(),
                                  [&](const auto& known) { return known.second == place; });
      require(h != blocks.homes.end(), "a pass frees a block of another layer");
      t.home = h->first;
      h->second = -1;
    }
    tape.takes.push_back(t);
  };
  // Blocks that are taken are numbered first, so their number is known before the events.
  std::map<int64_t, int> now;  // by place, blocks made in the pass
  for (const Arena::Call& c : calls_) {
    if (c.size > 0) now[c.at]++;
    if (c.size < 0 && now[c.at]-- == 0) {
      taken[c.at] = int32_t(tape.takes.size());
      take(c.at, {c.bucket, c.bytes});
      now[c.at] = 0;
    }
  }
  const int64_t left = after.at(Home::leaving);
  // The input as it was leaves.
  const bool moved = left >= 0 && left != blocks.homes.at(Home::leaving) && now[left] == 0;
  if (moved) {
    taken[left] = int32_t(tape.takes.size());
    take(left, {Bucket::activations, passes_.leaving_->bytes()});
  }
  for (const Arena::Call& c : calls_) {
    if (c.size == 0) {
      tape.events.push_back({EventKind::pause, -1});
    } else if (c.size > 0) {
      made[c.at] = int32_t(tape.takes.size() + tape.makes.size());
      tape.makes.push_back({c.bucket, c.bytes});
      tape.events.push_back({EventKind::make, made[c.at]});
    } else {
      const auto it = made.find(c.at);
      tape.events.push_back({EventKind::free, it != made.end() ? it->second : taken.at(c.at)});
      if (it != made.end()) made.erase(it);
    }
  }
  // In the order of making.
  std::map<int32_t, int64_t> stay;
  for (const auto& [place, block] : made) stay[block] = place;
  if (moved) stay[taken.at(left)] = left;
  if (kind == OpKind::forward) blocks.saved.clear();
  for (const auto& [block, place] : stay) {
    Home home = Home::saved;
    for (const auto& [h, p] : after)
      if (p == place) home = h;
    tape.leaves.push_back({block, home});
    if (home == Home::saved) blocks.saved.push_back(place);
  }
  if (kind == OpKind::weight)
    for (const uint32_t u : passes_.shape_.layers[at.layer].units)
      for (size_t i = params_.units[u].first; i < params_.units[u].last; i++)
        tape.started += params_.params[i].grad_started ? '1' : '0';
  sum_events(tape);
  return tape;
}

// Work that leaves nothing behind.
LayerTape LayerRecorder::between(const std::function<void()>& work) {
  calls_.clear();
  runner_.arena().list_calls(&calls_);
  work();
  runner_.arena().list_calls(nullptr);
  LayerTape tape;
  std::map<int64_t, int32_t> made;
  for (const Arena::Call& c : calls_) {
    if (c.size > 0) {
      made[c.at] = int32_t(tape.makes.size());
      tape.makes.push_back({c.bucket, c.bytes});
    }
    const auto it = made.find(c.at);
    require(it != made.end(), "work outside passes frees a block that it did not make");
    tape.events.push_back({c.size > 0 ? EventKind::make : EventKind::free, it->second});
    if (c.size < 0) made.erase(it);
  }
  require(made.empty(), "work outside passes leaves a block behind");
  sum_events(tape);
  return tape;
}

std::vector<BlockSize> LayerRecorder::batch_blocks() {
  const LayerTape tape = between([&] {
    const StagePasses::Chunk& c = passes_.chunks_.front();
    const At at{c, passes_.microbatches_[0], c.first, c.slot, 0, false, false};
    run(OpKind::load, at);
    run(OpKind::unload, at);
  });
  return tape.makes;
}

RankTapes LayerRecorder::rank() {
  StagePasses& r = passes_;
  const StagePrograms& programs = runner_.programs();
  const FlatState& flat = runner_.flat();
  r.device_.kernels().attach(&r.arena_);
  RankTapes t{.shape = programs.shape(), .policy = programs.policy()};
  t.by_microbatch = r.run_.known_routing.rows != nullptr;
  t.placed = r.arena_.places();
  t.booked = r.arena_.ledger();
  t.batch = batch_blocks();
  const Owned boundary = r.boundary(r.run_.batch.micro, r.run_.data.seq_len / r.sharing_.cp.size);
  t.message = {Bucket::activations, boundary->bytes()};
  t.fetched = {Bucket::activations, r.kept_bytes()};
  for (const Unit& u : params_.units) {
    t.weights.push_back({Bucket::weights, u.padded * size_of(flat.weights.dtype)});
    t.grads.push_back({Bucket::grads, u.padded * size_of(flat.grads.dtype)});
    t.parameters.push_back(u.last - u.first);
  }
  const StepFacts facts{.step = 1, .targets = r.run_.tokens_per_step()};
  t.begin = between([&] {
    r.start_step(facts);
    runner_.step_end().start_step(1);
  });
  // The end of a step without actions; sums over replicas are separate operations.
  Program end = lower({.actions = {}}, programs.shape(), programs.policy());
  end.sums = end.norm;
  t.end = between([&] {
    runner_.step_end().finish({.step = 1,
                               .targets = facts.targets,
                               .program = &end,
                               .losses = r.sequence_losses(),
                               .routing = &r.routing(),
                               .fp8 = r.fp8()});
  });
  t.pass = [this](size_t layer, const PassKey& key) -> const LayerTape& { return pass(layer, key); };
  return t;
}

std::string run_key(const RunSpec& run) {
  RunSpec r = run;
  r.layout.pp = 1;
  r.layout.chunks = 1;
  r.layout.schedule = RunSpec().layout.schedule;
  r.layout.cut = RunSpec().layout.cut;
  r.layout.stage_layers.clear();
  r.batch.global = r.batch.micro;
  if (!r.model.moe()) r.layout.dp = 1;
  // Known routing has no key in a run file.
  return save_run(r) + fmt::format("{}", static_cast<const void*>(r.known_routing.rows.get()));
}

}  // namespace trireme
