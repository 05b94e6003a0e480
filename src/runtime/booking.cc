#include "runtime/booking.h"

#include <algorithm>
#include <optional>

#include "comm/meta/meta_comm.h"
#include "cost/flops.h"
#include "model/adapters.h"
#include "runtime/composed_booking.h"
#include "runtime/composed_tape.h"
#include "runtime/meta_rank.h"
#include "runtime/recording.h"
#include "spec/batch_ramp.h"
#include "spec/rank_kinds.h"
#include "spec/run_schedule.h"

namespace trireme {
namespace {

// Ops of a step by kind, most FLOPs first.
std::vector<OpTotal> totals_of(const Tape& tape) {
  std::vector<OpTotal> ops;
  for (const Piece& p : tape.pieces) {
    if (!p.launched) continue;
    auto it = std::find_if(ops.begin(), ops.end(), [&](const OpTotal& t) { return t.op == p.name; });
    if (it == ops.end())
      it = ops.insert(ops.end(), OpTotal{.op = std::string(p.name), .launches = 0, .cost = {}});
    it->launches++;
    it->cost += p.cost;
  }
  std::stable_sort(ops.begin(), ops.end(),
                   [](const OpTotal& x, const OpTotal& y) { return x.cost.flops > y.cost.flops; });
  return ops;
}

// What a piece counts as; none: no collective, or words about the step itself, which are not counted.
std::optional<Collective> collective_of(const Tape& tape, const Piece& p) {
  if (p.kind == PieceKind::send || p.kind == PieceKind::recv) return Collective::p2p;
  if (p.kind != PieceKind::call) return std::nullopt;
  const std::string& group = tape.groups[size_t(p.group)].name;
  if (group == "control" || group == "settle") return std::nullopt;
  for (size_t k = 0; k < kCollectives; k++)
    if (name_of(Collective(k)) == p.name) return Collective(k);
  return std::nullopt;
}

void nothing(int64_t, int64_t, const HostBatch&) {}

// The longest sequence wants the most of every tensor, but placement may differ for others: try a spread.
void try_lengths(StageRunner& r, int64_t seq_len) {
  std::vector<float> out;
  const std::vector<int32_t> tokens(static_cast<size_t>(seq_len));
  for (int64_t s = seq_len; s >= 1; s = s > 64 ? s - std::max<int64_t>(1, seq_len / 64) : s - 1)
    r.evaluator().logits(std::span(tokens).first(size_t(s)), out);
}

// Master copies (f32) and moments of what the rank answers for.
int64_t snapshot_bytes(const StageRunner& r) {
  int64_t bytes = 0;
  for (const Param* p : r.params().saved()) {
    int64_t element = size_of(DType::f32);
    for (const StateDecl& s : r.memory().state_decls())
      if (!p->decl.buffer && s.has(p->decl)) element += size_of(s.dtype);
    bytes += r.memory().answers_for(*p).size() * element;
  }
  return bytes;
}

// A model for inference: whole, or the part of the first rank at `pp_rank`.
struct MetaModel {
  std::unique_ptr<Device> device;
  std::unique_ptr<CommFactory> factory;
  std::unique_ptr<CommSet> comms;
  StageRunner runner;

  MetaModel(const RunSpec& run, int threads, int pp_rank)
      : device(meta_device(run, threads)),
        factory(pp_rank == kAlone
                    ? nullptr
                    : make_meta_comm(first_of_stage(run, pp_rank), int(run.world()), options_of(run, {}))),
        comms(factory ? std::make_unique<CommSet>(*factory, mesh_of(run.layout)) : nullptr),
        runner(run, RunMode::infer, *device, kEndlessArena, comms.get()) {}
};

// Sets everything that the tape tells.
void set_totals(Booking& b, const RunSpec& run) {
  b.wire.take(b.tape);
  b.comm = counts_of(b.tape);
  b.parameters = parameters(run.model);
  b.trained = run.lora.active() ? adapter_parameters(run.model, run.lora) : b.parameters;
  b.ops = totals_of(b.tape);
  for (const Piece& p : b.tape.pieces) {
    if (!p.launched) continue;
    b.total += p.cost;
    b.launches++;
  }
}
// State that the rank keeps between steps.
void set_state(Booking& b, StageRunner& r) {
  for (Bucket k : {Bucket::weights, Bucket::grads, Bucket::optimizer})
    b.state[size_t(k)] = r.arena().ledger().now(k);
  if (r.posted()) b.rollback_bytes = r.posted()->rollback_bytes();
}
void set_host(Booking& b, const RunSpec& run, const StageRunner& r) {
  if (run.train.async_save) b.snapshot_bytes = snapshot_bytes(r);
  b.waiting_bytes = r.waiting_bytes();
}

}  // namespace

std::unique_ptr<Device> meta_device(const RunSpec& run, int threads) {
  return make_device("meta", {.threads = threads,
                              .models = run.train.device,
                              .deterministic = run.train.deterministic,
                              .sm90_attention = run.train.attention == "sm90"});
}

int first_of_stage(const RunSpec& run, int pp_rank) {
  const Mesh mesh = mesh_of(run.layout);
  int rank = 0;
  while (mesh.coord(rank, Axis::pp) != pp_rank) rank++;
  return rank;
}

// The last batch of an evaluation may be any size.
int64_t evaluations_high_water(StageRunner& r, const RunSpec& run) {
  for (int64_t n = run.batch.micro; n >= 1; n--) r.evaluator().evaluate(n, run.data.seq_len, nothing);
  const bool tasks = !run.train.tasks.empty();
  for (const BatchShape& s : tasks ? task_shapes(run) : std::vector<BatchShape>()) {
    r.evaluator().evaluate(s.sequences, s.seq, nothing);
    const std::vector<int64_t> last(size_t(s.sequences), 0);
    std::vector<int32_t> ids(last.size());
    r.evaluator().most_likely_next(s.sequences, s.seq, nothing, last, run.model.vocab, ids);
  }
  return r.arena().high_water();
}

CommCounts counts_of(const Tape& tape) {
  CommCounts counts{};
  for (const Piece& p : tape.pieces) {
    const std::optional<Collective> kind = collective_of(tape, p);
    if (!kind) continue;
    CommCount& c = counts[size_t(*kind)];
    c.calls++, c.payload += p.payload, c.wire += p.wire;
  }
  return counts;
}

void MostWire::take(const Tape& tape) {
  MostWire one{.of = counts_of(tape), .ranks = 1};
  for (const CommCount& c : one.of) one.busiest += c.wire;
  Rows rows_of_ep{.rank = tape.rank, .all_to_all = one.of[size_t(Collective::all_to_all)].wire};
  for (const Piece& p : tape.pieces) {
    const std::optional<Collective> kind = collective_of(tape, p);
    if (!kind || p.kind != PieceKind::call) continue;
    one.algorithms[size_t(*kind)].emplace(p.algorithm);
    const auto size = int64_t(tape.groups[size_t(p.group)].ranks.size());
    if (*kind == Collective::all_to_all && tape.streams[size_t(p.stream)] == "ep")
      rows_of_ep.starts++, rows_of_ep.started += p.wire;
    if (*kind == Collective::all_reduce) one.uneven |= size * (p.payload - p.wire / 2) != p.payload;
  }
  if (std::find(tape.streams.begin(), tape.streams.end(), "ep") != tape.streams.end())
    one.rows.push_back(rows_of_ep);
  take(one);
}

void MostWire::take(const MostWire& other) {
  for (size_t k = 0; k < kCollectives; k++) {
    const CommCount& c = other.of[k];
    alike = alike && (ranks == 0 || of[k].wire == c.wire);
    if (std::pair(c.wire, c.calls) > std::pair(of[k].wire, of[k].calls)) of[k] = c;
    algorithms[k].insert(other.algorithms[k].begin(), other.algorithms[k].end());
  }
  alike = alike && other.alike, uneven = uneven || other.uneven;
  rows.insert(rows.end(), other.rows.begin(), other.rows.end());
  busiest = std::max(busiest, other.busiest), ranks += other.ranks;
}

Booking book_stage(const RunSpec& run, const Schedule& schedule, int threads, const ClusterSpec& cluster,
                   int pp_rank) {
  return book_rank(run, schedule, threads, cluster, first_of_stage(run, pp_rank));
}

Booking book_rank(const RunSpec& run, const Schedule& schedule, int threads, const ClusterSpec& cluster,
                  int rank) {
  auto device = meta_device(run, threads);
  const int pp_rank = mesh_of(run.layout).coord(rank, Axis::pp);
  std::unique_ptr<CommFactory> factory = make_meta_comm(rank, int(run.world()), options_of(run, cluster));
  StepRecorder recorder(*device, *factory);
  CommSet comms(recorder.factory(), mesh_of(run.layout));
  StageRunner r(run, RunMode::train, recorder.device(), kEndlessArena, &comms);
  r.arena().ledger().restart_peaks();
  Booking b;
  set_state(b, r);
  const std::vector<Action>& actions = schedule.ranks.at(size_t(pp_rank));
  recorder.start(r, actions);
  r.step(actions, 1, run.tokens_per_step(), nothing);
  b.tape = recorder.stop();
  set_totals(b, run);
  set_host(b, run, r);
  b.peak = r.arena().ledger().peaks();
  b.at_peak = r.arena().ledger().at_peak();
  b.peak_total = r.arena().ledger().peak_total();
  r.settle();
  b.arena_bytes = evaluations_high_water(r, run);
  return b;
}

int64_t arena_of_stage(const RunSpec& run, const Schedule& schedule, int threads, const ClusterSpec& cluster,
                       int pp_rank) {
  auto device = meta_device(run, threads);
  std::unique_ptr<CommFactory> factory =
      make_meta_comm(first_of_stage(run, pp_rank), int(run.world()), options_of(run, cluster));
  CommSet comms(*factory, mesh_of(run.layout));
  StageRunner r(run, RunMode::train, *device, kEndlessArena, &comms);
  r.step(schedule.ranks.at(size_t(pp_rank)), 1, run.tokens_per_step(), nothing);
  r.settle();
  return evaluations_high_water(r, run);
}

namespace {

// The bookings of every stage's first rank. Steps of fewer microbatches than this are not composed.
constexpr int64_t kLeastComposed = 12;

class StageBookings {
 public:
  StageBookings(const RunSpec& run, const Schedule& schedule, int threads, const ClusterSpec& cluster)
      : run_(run), schedule_(schedule), threads_(threads), cluster_(cluster) {
    if (composes(run) && !run.known_routing.rows && run.microbatches() >= kLeastComposed)
      composed_.emplace(run, schedule, threads, cluster, tapes_);
  }
  Booking of(int pp_rank) const {
    if (composed_)
      if (std::optional<Booking> b = composed(pp_rank)) return std::move(*b);
    return book_stage(run_, schedule_, threads_, cluster_, pp_rank);
  }

 private:
  std::optional<Booking> composed(int pp_rank) const {
    Booking b;
    const int rank = first_of_stage(run_, pp_rank);
    std::optional<Tape> tape =
        composed_training(run_, schedule_, threads_, rank, cluster_, [&](StageRunner& r) {
          set_state(b, r);
          set_host(b, run_, r);
        });
    if (!tape) return std::nullopt;
    b.tape = std::move(*tape);
    set_totals(b, run_);
    const ProgramBytes bytes = composed_->placed(pp_rank);
    b.peak = bytes.peak;
    b.at_peak = bytes.at_peak;
    b.peak_total = bytes.peak_total;
    b.arena_bytes = bytes.arena_bytes;
    return b;
  }

  const RunSpec& run_;
  const Schedule& schedule_;
  int threads_;
  const ClusterSpec& cluster_;
  LayerTapes tapes_;
  std::optional<ComposedRun> composed_;
};

}  // namespace

Booking book_training(const RunSpec& run, const Schedule& schedule, int threads, const ClusterSpec& cluster,
                      std::vector<Tape>* others) {
  const StageBookings stages(run, schedule, threads, cluster);
  // With several kinds of devices: bytes that the device of each pipeline rank has beyond the least memory.
  NumberList more = memory_of_ranks(cluster, run.layout);
  for (int64_t& bytes : more) bytes -= cluster.memory_bytes;
  const bool kinds = !more.empty();
  more.resize(size_t(run.layout.pp));
  int64_t worst_more = more[0];
  Booking worst = stages.of(0);
  int64_t arena = worst.arena_bytes - worst_more, snapshot = worst.snapshot_bytes,
          waiting = worst.waiting_bytes;
  MostWire wire = worst.wire;
  for (int k = 1; k < int(run.layout.pp); k++) {
    Booking b = stages.of(k);
    const int64_t b_more = more[size_t(k)];
    arena = std::max(arena, b.arena_bytes - b_more);
    snapshot = std::max(snapshot, b.snapshot_bytes);
    waiting = std::max(waiting, b.waiting_bytes);
    wire.take(b.wire);
    if (kinds ? b.arena_bytes - b_more > worst.arena_bytes - worst_more : b.peak_total > worst.peak_total) {
      std::swap(worst, b);
      worst_more = b_more;
    }
    if (others) others->push_back(std::move(b.tape));
  }
  for (const BatchStage& stage : batch_stages(run)) {
    if (stage.global == run.batch.global) continue;
    const RunSpec small = with_batch(run, stage.global);
    const Schedule its = schedule_of(small);
    for (int k = 0; k < int(run.layout.pp); k++)
      arena = std::max(arena, arena_of_stage(small, its, threads, cluster, k) - more[size_t(k)]);
  }
  worst.wire = std::move(wire);
  worst.arena_bytes = arena + worst_more;
  worst.snapshot_bytes = snapshot;
  worst.waiting_bytes = waiting;
  return worst;
}

std::vector<Program> programs_of(const RunSpec& run, const Schedule& schedule) {
  std::vector<Program> all;
  for (int k = 0; k < int(run.layout.pp); k++) {
    auto device = meta_device(run, 1);
    std::unique_ptr<CommFactory> factory =
        make_meta_comm(first_of_stage(run, k), int(run.world()), options_of(run, {}));
    CommSet comms(*factory, mesh_of(run.layout));
    StageRunner r(run, RunMode::train, *device, kEndlessArena, &comms);
    all.push_back(r.programs().of(schedule.ranks.at(size_t(k))));
  }
  check_messages(all);
  return all;
}

int64_t book_generation(const RunSpec& run, int threads, const GenerationShape& shape, int pp_rank) {
  MetaModel m(run, threads, pp_rank);
  StageRunner& r = m.runner;
  r.decoder().open_cache(shape.slots, shape.capacity);
  std::vector<float> logits(size_t(shape.slots * run.model.vocab));
  auto rows = [&](int64_t n) { return std::span(logits).first(size_t(n * run.model.vocab)); };
  for (int64_t n : shape.prefills) r.decoder().prefill(0, std::vector<int32_t>(size_t(n)), rows(1));
  for (int64_t n = 1; n <= shape.slots; n++) {
    std::vector<int32_t> each(static_cast<size_t>(n));
    r.decoder().decode(each, each, rows(n));
  }
  return r.arena().high_water();
}

std::vector<BatchShape> task_shapes(const RunSpec& run) {
  constexpr int64_t kShortest = 32;
  constexpr int64_t kMostTexts = 64;
  const int64_t divided = 2 * run.layout.cp * run.layout.tp;  // zigzag cuts a sequence twice per rank of cp
  std::vector<BatchShape> out;
  for (int64_t seq = run.data.seq_len;; seq /= 2) {
    out.push_back({std::clamp<int64_t>(run.batch.micro * run.data.seq_len / seq, 1, kMostTexts), seq});
    if (seq / 2 < kShortest || seq % 2 != 0 || seq / 2 % divided != 0) return out;
  }
}

int64_t book_evaluation(const RunSpec& run, int threads, std::span<const BatchShape> shapes, int pp_rank) {
  MetaModel m(run, threads, pp_rank);
  for (const BatchShape& s : shapes) m.runner.evaluator().evaluate(s.sequences, s.seq, nothing);
  return m.runner.arena().high_water();
}

int64_t book_inference(const RunSpec& run, int threads, int pp_rank) {
  MetaModel m(run, threads, pp_rank);
  evaluations_high_water(m.runner, run);
  if (pp_rank == kAlone) try_lengths(m.runner, run.data.seq_len);
  return m.runner.arena().high_water();
}

}  // namespace trireme
