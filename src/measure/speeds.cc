#include "measure/speeds.h"

#include <algorithm>
#include <charconv>
#include <cmath>

#include "spec/known_routing.h"

namespace trireme {
namespace {

// By work, and never faster for more of it: what noise made so is the slower one's.
void make_curve(SpeedTable& t) {
  std::stable_sort(t.points.begin(), t.points.end(),
                   [](const SpeedPoint& a, const SpeedPoint& b) { return a.work < b.work; });
  double slowest = 0;
  for (SpeedPoint& p : t.points) p.seconds = slowest = std::max(slowest, p.seconds);
}

template <class Take>
void for_tables(const Texts& lines, const Take& take) {
  for (const std::string& line : lines) {
    std::string wrong;
    SpeedTable t = speed_table_of(line, wrong);
    if (wrong.empty() && !t.points.empty()) take(std::move(t));  // files are checked as they are read
  }
}

int64_t ranks_together(const RunSpec& run, const ClusterSpec& cluster) {
  return std::max<int64_t>(1, run.world() / std::max<int64_t>(1, std::min(cluster.nodes, run.world())));
}

}  // namespace

bool is_product(std::string_view op) {
  return op.starts_with("matmul") || op == "fp8_matmul" || op.starts_with("grouped_matmul") ||
         op.starts_with("attention");
}

bool passes_through_state(std::string_view op) {
  return op == "adamw" || op == "square_sums";
}

double work_of(const Piece& p) {
  return is_product(p.name) ? p.cost.flops : double(p.cost.bytes_read + p.cost.bytes_written);
}

namespace {

// Of the block that the layer "blocks.3.moe" is of; -1: of none.
int64_t block_of(std::string_view layer) {
  constexpr std::string_view kBlocks = "blocks.";
  int64_t block = -1;
  if (layer.starts_with(kBlocks))
    std::from_chars(layer.data() + kBlocks.size(), layer.data() + layer.size(), block);
  return block;
}

// Rows of a rank's experts in a microbatch, over those that each rank has, and in how many rounds they came.
struct Filling {
  double load = 1, rounds = 1;
};

// As the known routing says; further rounds are taken to be as full as the first.
std::optional<Filling> known_filling(const Piece& p, const RunSpec& run, int rank, double room) {
  const int64_t block = block_of(p.layer);
  if (!run.known_routing.rows || block < 0 || p.microbatch < 0) return std::nullopt;
  const std::vector<int> group = mesh_of(run.layout).group(rank, std::array{Axis::ep});
  std::vector<int64_t> lines(group.size());
  const size_t own = size_t(run.model.experts) / group.size();
  for (const int from : group) {
    const std::span<const int32_t> rows = run.known_routing.rows->of(from, block, p.microbatch);
    for (size_t e = 0; e < rows.size(); e++) lines[e / own] += rows[e];
  }
  const double each = double(routing_shape_of(run).rows());
  const double longest = double(*std::max_element(lines.begin(), lines.end()));
  const auto at = size_t(std::find(group.begin(), group.end(), rank) - group.begin());
  return Filling{std::max(1.0, double(lines[at])) / each,
                 std::max(1.0, std::ceil(longest / std::ceil(room * each)))};
}

}  // namespace

Piece as_filled(const Piece& p, const RunSpec& run, int rank) {
  if (run.layout.ep == 1 || !p.name.starts_with("grouped_matmul")) return p;
  const double most = double(run.layout.ep);  // no more rows than there are
  const double room = std::min(run.layout.ep_buffer, most);
  const Filling balanced{std::min(run.layout.ep_load.number, most), std::max(1.0, std::ceil(1 / room))};
  const Filling f = known_filling(p, run, rank, room).value_or(balanced);
  const double filled_part = f.load / room / f.rounds;
  Piece filled = p;
  filled.cost.flops *= filled_part;
  // Rows are the output's, but of a weight's gradient, whose rows are the weights'.
  if (p.name == "grouped_matmul") filled.rows = std::llround(double(p.rows) * filled_part);
  return filled;
}

std::string call_table(std::string_view name, std::string_view algorithm, size_t ranks, bool beside) {
  return std::string(name) + " " + (algorithm.empty() ? "-" : std::string(algorithm)) + " " +
         std::to_string(ranks) + std::string(beside ? kBeside : "");
}

double curve_seconds(const SpeedTable& t, double work) {
  auto after = std::upper_bound(t.points.begin(), t.points.end(), work,
                                [](double w, const SpeedPoint& p) { return w < p.work; });
  if (after == t.points.begin()) return after->seconds;
  const SpeedPoint& a = *std::prev(after);
  if (after == t.points.end()) return a.work > 0 ? a.seconds * work / a.work : a.seconds;
  if (a.work <= 0) return a.seconds;
  const double part = std::log(work / a.work) / std::log(after->work / a.work);
  return a.seconds * std::pow(after->seconds / a.seconds, part);
}

Speeds::Speeds(const Calibration& c) : between_s_(c.between_s), ranks_(size_t(c.ranks)) {
  const auto keep = [](auto& tables, SpeedTable t) {
    make_curve(t);
    std::string name = t.of;
    tables.insert_or_assign(std::move(name), std::move(t));
  };
  for_tables(c.ops, [&](SpeedTable t) {
    if (is_product(t.of.substr(0, t.of.find(' '))))
      products_.insert_or_assign(t.of, ProductTimes(t));
    else
      keep(ops_, std::move(t));
  });
  for_tables(c.calls, [&](SpeedTable t) { keep(calls_, std::move(t)); });
}

std::optional<double> Speeds::op(const Piece& p, std::string_view compute, double of_step) const {
  const std::string of = std::string(p.name) + " " + std::string(compute);
  const double work = work_of(p);
  if (is_product(p.name)) {
    auto it = products_.find(of);
    // Where drills had it in two launches: gelu goes by where the product's elements are at hand.
    if (it == products_.end() && p.name.starts_with("matmul_gelu"))
      it = products_.find("matmul " + std::string(compute));
    if (it == products_.end()) return std::nullopt;
    return it->second.seconds(double(std::max<int64_t>(p.rows, 1)), double(std::max<int64_t>(p.cols, 1)),
                              work);
  }
  const auto it = ops_.find(of);
  if (it == ops_.end()) return std::nullopt;
  if (!passes_through_state(p.name) || of_step <= work) return curve_seconds(it->second, work);
  return curve_seconds(it->second, of_step) * work / of_step;
}

std::optional<double> Speeds::call(std::string_view name, std::string_view algorithm, size_t ranks,
                                   bool beside, double bytes) const {
  for (const bool b : {beside, !beside})
    if (const auto s = call_of(name, algorithm, ranks, b, bytes)) return s;
  return std::nullopt;
}

std::optional<double> Speeds::call_of(std::string_view name, std::string_view algorithm, size_t ranks,
                                      bool beside, double bytes) const {
  const auto measured = [&](size_t group) -> std::optional<double> {
    const auto it = calls_.find(call_table(name, algorithm, group, beside));
    if (it == calls_.end()) return std::nullopt;
    return curve_seconds(it->second, bytes);
  };
  if (const auto s = measured(ranks)) return s;
  size_t fewer = ranks, more = ranks;
  std::optional<double> below, above;
  while (!below && fewer > 2) below = measured(--fewer);
  while (!above && more < ranks_) above = measured(++more);
  if (!below || !above) return std::nullopt;
  const double part = std::log(double(ranks) / double(fewer)) / std::log(double(more) / double(fewer));
  return *below * std::pow(*above / *below, part);
}

Axis divided_axis(const LayoutSpec& l) {
  return l.pp > 1 ? Axis::pp : l.ep > 1 ? Axis::ep : l.cp > 1 ? Axis::cp : l.tp > 1 ? Axis::tp : Axis::dp;
}

Beside calls_beside(const Tape& tape) {
  Beside b;
  for (const Piece& p : tape.pieces)
    if (p.kind == PieceKind::call && p.stream != 0) b.calls++, b.bytes += p.payload;
  return b;
}

double Calibration::*whole_step(Axis axis) {
  switch (axis) {
    case Axis::pp:
      return &Calibration::step_pp;
    case Axis::ep:
    case Axis::edp:
      return &Calibration::step_ep;
    case Axis::cp:
      return &Calibration::step_cp;
    case Axis::tp:
      return &Calibration::step_tp;
    case Axis::dp:
      break;
  }
  return &Calibration::step_dp;
}

const Calibration* calibration_of(const RunSpec& run, const ClusterSpec& cluster) {
  if (run.train.device == "cuda")
    return cluster.alone.known() ? &cluster.alone : nullptr;  // each rank has its own
  const int64_t ranks = ranks_together(run, cluster);
  const Calibration& c = ranks == 1 ? cluster.alone : cluster.together;
  if (!c.known() || (run.train.threads > 0 && run.train.threads != c.threads)) return nullptr;
  return ranks == 1 || ranks == c.ranks ? &c : nullptr;
}

ClusterSpec as_met(const RunSpec& run, ClusterSpec c) {
  const Calibration* measured = calibration_of(run, c);
  if (measured && measured->f32 > 0) {
    c.peak = {.f32 = measured->f32, .bf16 = measured->bf16};
    if (measured->memory_bandwidth > 0) c.memory_bandwidth = measured->memory_bandwidth;
    c.threads = measured->threads;
  }
  return c;
}

void raise_peaks(ClusterSpec& c, const Calibration& measured) {
  for_tables(measured.ops, [&](const SpeedTable& t) {
    const size_t space = t.of.find(' ');
    if (space == t.of.npos || !is_product(t.of.substr(0, space))) return;
    const std::string type = t.of.substr(space + 1);
    double* peak = type == "f32"    ? &c.peak.f32
                   : type == "bf16" ? &c.peak.bf16
                   : type == "f16"  ? &c.peak.f16
                                    : nullptr;
    if (!peak || *peak == 0) return;  // 0: the processor does not have the type
    for (const SpeedPoint& p : t.points) *peak = std::max(*peak, p.work / p.seconds);
  });
}

ClusterSpec passed_by_kernels(const RunSpec& run, ClusterSpec c) {
  if (const Calibration* measured = calibration_of(run, c)) raise_peaks(c, *measured);
  return c;
}

ClusterSpec part_of(ClusterSpec c, int64_t ranks, int64_t threads, int64_t there) {
  const int64_t wanted = ranks * std::min(threads, there);
  if (wanted <= there) return c;
  const double part = double(there) / double(wanted);
  for (double* x : {&c.peak.f32, &c.peak.bf16, &c.peak.f16, &c.peak.fp8, &c.peak.fp4, &c.memory_bandwidth})
    *x *= part;
  c.alone = c.together = {};
  return c;
}

void take_links(ClusterSpec& now, const ClusterSpec& before) {
  now.intra_node_mpi = before.intra_node_mpi, now.inter_node = before.inter_node;
  now.nodes = before.nodes, now.tiers = before.tiers, now.launch = before.launch;
}

bool displaces(const ClusterSpec& now, const ClusterSpec& before) {
  const auto other = [](const Calibration& a, const Calibration& b) {
    return a.known() && b.known() && (a.ranks != b.ranks || a.threads != b.threads);
  };
  return now.name == before.name && (other(now.alone, before.alone) || other(now.together, before.together));
}

}  // namespace trireme
