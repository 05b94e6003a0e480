#include "runtime/stage_passes.h"

#include <algorithm>
#include <cmath>

#include "base/rounding.h"
#include "device/rope_table.h"
#include "model/adapters.h"
#include "model/stages.h"
#include "runtime/offload.h"
#include "spec/run_schedule.h"

namespace trireme {

StagePasses::StagePasses(const StageParts& parts, std::span<const Schedule> schedules)
    : StageParts(parts),
      arena_(memory_.arena()),
      dtype_(dtype_from_name(run_.precision.compute)),
      groups_(sharing_.layers),
      stage_(build_stages(run_.model, stage_ranges(schedules), sharing_.tp,
                          comms_ ? comms_->mesh().place(comms_->rank(), Axis::ep) : AxisPlace(), run_.moe)),
      routing_(run_.model.layers) {
  make_groups();
  std::vector<std::vector<ParamDecl>> decls = stage_.declare();
  if (run_.lora.active()) {
    const StageRange whole{.first = 0, .last = run_.model.layers};
    refuse_idle_targets(build_stage(run_.model, whole).declare(), run_.lora);
    add_adapters(decls, run_.lora);
  }
  memory_.params() = comms_ ? lay_out(decls, comms_->mesh(), comms_->rank(), sharing_.place.shards,
                                      sharing_.expert_place.shards)
                            : lay_out(decls, Mesh(), 0);
  find_recompute();
  find_shape(decls);
  const int64_t microbatches = run_.batch.global / (sharing_.dp * run_.batch.micro);
  microbatches_.resize(size_t(microbatches));
  for (Microbatch& m : microbatches_) m.resize(stage_.layers.size(), chunks_.size());
  turns_.other_pass = [this] { let_other_pass_run(); };
  sequence_loss_.resize(size_t(microbatches * run_.batch.micro) + 1);
  const auto rows = size_t(run_.batch.micro * run_.data.seq_len);
  if (!device_.has_data()) return;  // nothing is staged on meta
  token_loss_host_.resize(rows);
  staging_.resize((run_.data.separate() ? 4 : 3) * rows);
}

StagePasses::~StagePasses() {
  device_.forget_actions(this);
  settle_layers();
  offload_.reset();
  leaving_.reset();
  pipeline_.reset();
}

void StagePasses::make_groups() {
  if (divided()) {
    require(sharing_.zero == 0 && !run_.layout.sequence, "ranks of inference have whole units and rows");
    require(sharing_.cp.size == 1 || placement_of(run_.layout) == ContextPlacement::contiguous,
            "ranks of inference have contiguous parts of a text");
  }
  groups_.waited_s = &times_.comm_s;
  groups_.chunks = run_.layout.tp_chunks;
  if (sharing_.tp.group && groups_.chunks > 1) groups_.tp_stream = device_.stream("tp");
  if (groups_.ep) {
    groups_.ep_stream = device_.stream("ep");
    groups_.expert_rows = expert_rows(run_.batch.micro * run_.data.seq_len / sharing_.cp.size);
    if (run_.known_routing.rows && !device_.has_data())
      routing_.expect(run_.known_routing.rows, comms_->mesh().group(comms_->rank(), std::array{Axis::ep}),
                      run_.layout.dp * run_.batch.micro);
  }
  if (groups_.cp.comm && !groups_.cp.ulysses && run_.layout.cp_overlap)
    groups_.cp.stream = device_.stream("cp");
}

// Rows of other ranks that a rank's experts have room for at once, in a pass over `tokens` tokens of this
// rank of cp.
int64_t StagePasses::expert_rows(int64_t tokens) const {
  const int64_t own = divided() ? div_up(tokens, sharing_.tp.size) : tokens / sharing_.tp.size;
  const int64_t rows = own * run_.model.experts_per_token;
  return std::min(int64_t(std::ceil(run_.layout.ep_buffer * double(rows))), rows * groups_.ep->size());
}

// Fills chunks_ too.
std::vector<StageRange> StagePasses::stage_ranges(std::span<const Schedule> schedules) {
  std::vector<StageRange> mine;
  std::vector<int> stages = {0};
  if (sharing_.pp.size > 1) {
    pipeline_ = std::make_unique<PipelineComm>(schedules, *comms_, device_);
    const std::vector<StageRange> all = split_layers(run_, schedules.back().stages);
    stages = pipeline_->holders().stages_of(sharing_.pp.rank);
    for (int s : stages) mine.push_back(all[size_t(s)]);
  } else {
    mine.push_back({.first = 0, .last = run_.model.layers});
  }
  size_t layer = 0;
  for (size_t c = 0; c < mine.size(); c++) {
    chunks_.push_back({.stage = stages[c],
                       .number = c,
                       .first = layer,
                       .last = layer + mine[c].layers(),
                       .slot = layer + c,
                       .embedding = mine[c].embedding,
                       .head = mine[c].head});
    layer += mine[c].layers();
  }
  return mine;
}

const StagePasses::Chunk& StagePasses::chunk_of(int stage) const {
  for (const Chunk& c : chunks_)
    if (c.stage == stage) return c;
  run_failed("the schedule has stage {} on a rank that does not hold it", stage);
}

// A layer uses its own units, and that of the parameter it is tied to.
void StagePasses::find_shape(std::span<const std::vector<ParamDecl>> decls) {
  const ParamSet& params = memory_.params();
  for (size_t l = 0; l < decls.size(); l++) {
    LayerShape& layer = shape_.layers.emplace_back();
    layer.name = stage_.layers[l]->name();
    layer.recomputes = recompute_[l].any();
    std::vector<uint32_t>& units = layer.units;
    for (size_t u = 0; u < params.units.size(); u++)
      if (params.units[u].layer == l) units.push_back(uint32_t(u));
    for (const ParamDecl& d : decls[l]) {
      if (d.tied_to.empty()) continue;
      for (size_t u = 0; u < params.units.size(); u++)
        for (size_t i = params.units[u].first; i < params.units[u].last; i++)
          if (params.params[i].decl.name == d.tied_to) units.push_back(uint32_t(u));
    }
  }
  for (const Chunk& c : chunks_) shape_.stages.push_back({c.stage, c.first, c.last, c.embedding, c.head});
  shape_.tied = run_.model.tied;
}

void StagePasses::bind() {
  bind_rope();
  bind_fp8();
  stage_.bind(memory_.params());
}

void StagePasses::bind_rope() {
  if (!stage_.rope) return;
  const ModelSpec& m = run_.model;
  RopeScaling s = m.rope_scaling;
  int64_t positions = std::max(m.max_positions, run_.data.seq_len), half = m.rope_dim() / 2;
  RopeAngles angles{.theta = m.rope_theta,
                    .scaling = rope_scaling_from_name(s.type),
                    .factor = s.factor,
                    .low_freq_factor = s.low_freq_factor,
                    .high_freq_factor = s.high_freq_factor,
                    .original_max_positions = s.original_max_positions,
                    .beta_fast = s.beta_fast,
                    .beta_slow = s.beta_slow};
  if (angles.scaling == RopeStretch::yarn)
    angles.amplitude = yarn_factors(s.factor, s.mscale, s.mscale_all_dim, s.attention_factor).amplitude;
  for (Tensor* t : {&stage_.rope->cos, &stage_.rope->sin})
    *t = memory_.hold(Bucket::scratch, Shape{positions, half}, DType::f32);
  if (!device_.has_data()) return;
  std::vector<float> cos(size_t(positions * half)), sin(cos.size());
  rope_table(angles, positions, m.rope_dim(), cos, sin);
  device_.upload(stage_.rope->cos, cos.data());
  device_.upload(stage_.rope->sin, sin.data());
}

// Every rank keeps the magnitudes of all layers, whatever stage it has.
void StagePasses::bind_fp8() {
  if (!trains_ || run_.precision.fp8 == "none") return;
  const StageRange whole{.first = 0, .last = run_.model.layers};
  const LayoutSpec& l = run_.layout;  // recompute by name needs unchanged inputs
  const bool keeps = (l.recompute == "none" || l.recompute == "full") && l.recompute_rest.empty();
  fp8_.emplace(run_.precision, build_stage(run_.model, whole).declare(), keeps);
  if (!fp8_->delayed()) return;
  Tensor held[2];
  for (Tensor& t : held) {
    t = memory_.hold(Bucket::scratch, Shape{fp8_->magnitudes()}, DType::f32);
    device_.kernels().run(ZeroArgs{.y = t}, compute_);
  }
  fp8_->bind(held[0], held[1]);
}

void StagePasses::prepare(std::span<const std::unique_ptr<const Program>> programs, RunUnits units) {
  units_ = std::move(units);
  int64_t places = 0;
  for (const auto& program : programs) {
    const auto has_pairs = [](const ActionOps& a) { return a.interleaved > 0; };
    if (sharing_.tp.group && std::any_of(program->actions.begin(), program->actions.end(), has_pairs))
      groups_.tp_stream = device_.stream("tp");
    places = std::max(places, most_away(*program));
  }
  if (!trains_ || !run_.layout.offloads_inputs()) return;
  offload_ = std::make_unique<OffloadStore>(offload_to(run_), device_, places, places * kept_bytes());
  offload_places_ = size_t(places);
  free_places();
}

int64_t StagePasses::waiting_bytes() const {
  return offload_ ? offload_->host_bytes() : 0;
}

// After an error collectives of layers may be in flight. Each rank of the group has the error, so they end.
void StagePasses::settle_layers() {
  for (Stream s : {groups_.tp_stream, groups_.ep_stream, groups_.cp.stream}) {
    if (s.id == 0) continue;
    try {
      device_.sync(s);
    } catch (const std::exception&) {
      // The error that ended the run has a handler already.
    }
  }
}

}  // namespace trireme
