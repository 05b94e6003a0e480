#include "runtime/composed_booking.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "comm/meta/meta_comm.h"
#include "model/stages.h"

namespace trireme {
namespace {

// Holes differ between ranks with equal stages by less than this share of their bytes.
constexpr double kPlacedFrom = 0.93;

// Equal for pipeline ranks whose memory differs by the order of their actions alone.
std::string stages_text(const RunSpec& run, const Schedule& schedule, const Holders& holders,
                        const std::vector<StageRange>& stages, int rank) {
  std::string s;
  // Layers may differ by name.
  if (run.precision.fp8 != "none" || run.lora.active() || run.known_routing.rows)
    s += fmt::format("{} ", rank);
  // Copies of stages answer for different parts of the parameters.
  const std::vector<int> alike = holders.alike(rank);
  s += fmt::format("{}", std::find(alike.begin(), alike.end(), rank) - alike.begin());
  for (const int i : holders.stages_of(rank)) {
    const auto elsewhere = [&](int stage) {
      return stage >= 0 && stage < schedule.stages && holders.rank_of(stage, 0) != rank;
    };
    const StageRange& stage = stages[size_t(i)];
    s += fmt::format("; {}{}{}{}{} ", stage.embedding, stage.head, holders.rank_of(i, 0) == rank,
                     elsewhere(i - 1), elsewhere(i + 1));
    for (int64_t b = stage.first; b < stage.last; b++)
      s += run.model.moe() && run.model.expert_block(b) ? "e" : "d";
  }
  return s;
}

}  // namespace

bool composes(const RunSpec& run) {
  return run.optimizer.post_validation == "off" && run.train.noise_scale == 0;
}

ComposedRank::ComposedRank(const RunSpec& run, const Schedule& schedule, int threads,
                           const ClusterSpec& cluster, int pp_rank, LayerTapes& tapes)
    : device_(meta_device(run, threads)),
      factory_(make_meta_comm(first_of_stage(run, pp_rank), int(run.world()), options_of(run, cluster))),
      comms_(std::make_unique<CommSet>(*factory_, mesh_of(run.layout))),
      runner_(std::make_unique<StageRunner>(run, RunMode::train, *device_, kEndlessArena, comms_.get())),
      program_(&runner_->programs().of(schedule.ranks.at(size_t(pp_rank)))) {
  const int64_t evaluations = evaluations_high_water(*runner_, run);
  recorder_ = std::make_unique<LayerRecorder>(*runner_, tapes);
  tapes_ = recorder_->rank();
  tapes_.evaluations = evaluations;
}

ComposedRank::~ComposedRank() = default;

ComposedRun::ComposedRun(const RunSpec& run, const Schedule& schedule, int threads,
                         const ClusterSpec& cluster, LayerTapes& tapes)
    : schedule_(schedule),
      holders_(schedule),
      send_ends_(send_ends(schedule)),
      steady_(steady_part(schedule)) {
  const std::vector<StageRange> stages = split_layers(run, schedule.stages);
  std::map<std::string, size_t> known;
  for (int r = 0; r < int(schedule.ranks.size()); r++) {
    const auto [it, first] =
        known.try_emplace(stages_text(run, schedule, holders_, stages, r), kinds_.size());
    if (first) kinds_.push_back(std::make_unique<ComposedRank>(run, schedule, threads, cluster, r, tapes));
    kind_.push_back(it->second);
  }
}

ComposedRun::~ComposedRun() = default;

// Lowered again from its own actions.
ComposedRun::Rank ComposedRun::rank(int pp_rank) const {
  const auto n = size_t(pp_rank);
  Rank r{.program = {}, .tapes = kinds_[kind_[n]]->tapes(), .steady = {}};
  const std::vector<int>& stages = holders_.stages_of(pp_rank);
  for (size_t c = 0; c < stages.size(); c++) r.tapes.shape.stages[c].stage = stages[c];
  LowerInput in{.actions = schedule_.ranks[n], .send_ends = send_ends_[n]};
  if (schedule_.ranks.size() > 1) in.holders = &holders_;
  r.program = lower(in, r.tapes.shape, r.tapes.policy);
  if (steady_) r.steady = steady_ops(r.program, steady_->ranks[n], steady_->period);
  return r;
}

ProgramBytes ComposedRun::booked(int pp_rank) const {
  const Rank r = rank(pp_rank);
  return booked_bytes(r.program, r.tapes, r.steady);
}

ProgramBytes ComposedRun::placed(int pp_rank) const {
  const Rank r = rank(pp_rank);
  return placed_bytes(r.program, r.tapes, r.steady);
}

PlacedCalls ComposedRun::listed(int pp_rank) const {
  const Rank r = rank(pp_rank);
  PlacedCalls all;
  placed_bytes(r.program, r.tapes, {}, &all);
  return all;
}

std::vector<StageArena> ComposedRun::largest_arenas(int64_t enough, const NumberList* devices) const {
  std::map<std::pair<size_t, int64_t>, size_t> groups;
  std::vector<size_t> group;  // by rank
  for (size_t r = 0; r < schedule_.ranks.size(); r++)
    group.push_back(
        groups.try_emplace({kind(int(r)), devices ? devices->at(r) : 0}, groups.size()).first->second);
  std::vector<Rank> ranks;
  std::vector<int64_t> peaks, highest(groups.size());
  std::vector<size_t> order;  // ranks by descending peak
  for (int r = 0; r < int(schedule_.ranks.size()); r++) {
    const Rank& one = ranks.emplace_back(rank(r));
    peaks.push_back(booked_bytes(one.program, one.tapes, one.steady).peak_total);
    int64_t& most = highest[group[size_t(r)]];
    most = std::max(most, peaks.back());
    order.push_back(size_t(r));
  }
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return peaks[a] > peaks[b]; });
  std::vector<StageArena> all(groups.size());
  for (const size_t n : order) {
    const size_t k = group[n];
    if (double(peaks[n]) < kPlacedFrom * double(highest[k])) continue;
    const Rank& one = ranks[n];
    const StageArena here = {int(n), placed_bytes(one.program, one.tapes, one.steady).arena_bytes};
    if (here.bytes > enough) return {here};
    if (here.bytes > all[k].bytes || (here.bytes == all[k].bytes && here.pp_rank < all[k].pp_rank))
      all[k] = here;
  }
  return all;
}

std::vector<StageArena> largest_arenas(const RunSpec& run, const Schedule& schedule, int threads,
                                       const ClusterSpec& cluster, int64_t enough,
                                       const NumberList* devices) {
  RunSpec plain = run;
  plain.optimizer.post_validation = "off";
  plain.train.noise_scale = 0;
  LayerTapes tapes;
  std::vector<StageArena> all =
      ComposedRun(plain, schedule, threads, cluster, tapes).largest_arenas(enough, devices);
  if (!composes(run))
    for (StageArena& a : all) a.bytes = arena_of_stage(run, schedule, threads, cluster, a.pp_rank);
  std::sort(all.begin(), all.end(),
            [](const StageArena& a, const StageArena& b) { return a.pp_rank < b.pp_rank; });
  return all;
}

}  // namespace trireme
