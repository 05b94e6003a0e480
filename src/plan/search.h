// All layouts of a model on a number of devices, priced in closed form (cost/step_time.h, cost/step_memory.h)
// and ranked. Nothing is sampled: what divides is enumerated, what does not fit is counted by reason.
// docs/search.md.
#pragma once
#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "cost/checkpoint_plan.h"
#include "cost/goodput.h"
#include "cost/step_memory.h"
#include "plan/rank_bytes.h"
#include "plan/requirement.h"
#include "plan/search_layout.h"
#include "plan/step_bound.h"
#include "spec/cluster_spec.h"
#include "spec/run_spec.h"

namespace trireme {

// The run in this layout, as train would start it.
// to_host: where state waits, if it does; else in files.
RunSpec with_layout(RunSpec, const SearchLayout&, bool to_host = false);
struct SearchRequest;
// The run that layouts are of: `given`, or one with defaults and the request's types.
RunSpec run_of(const SearchRequest&, const std::optional<RunSpec>& given);

enum class RankBy { step, cost, loss };

// What bookings say of a kind of layouts (plan/confirm.h): it holds so many times the closed form's
// activations, and so many bytes, which small layouts have as well as large ones.
struct HeldMore {
  std::string_view schedule;
  int zero = 0;  // what whole weights and gradients take beside is not another degree's
  Again again = Again::none;
  double times = 1, bytes = 0;
  struct Seen {
    double closed = 0, booked = 0;  // bytes of activations
  };
  std::vector<Seen> seen;
};

// A layout that was booked and is too large: it and all of its division, schedule, chunks, microbatch and
// recompute, whatever their order of axes and sharding, hold so many bytes more than in closed form.
struct BookedMore {
  SearchLayout layout;
  double bytes = 0;
};

struct SearchRequest {
  ModelSpec model;  // finish()ed
  std::string name;
  int64_t seq = 0, window = 0;
  double window_share = 0;
  bool expert_bias = false;      // StepCase's
  std::vector<int64_t> gpus;     // each number of devices is searched
  std::vector<int64_t> globals;  // and with it each global batch, in sequences
  std::vector<Requirement> require;
  // The requested batch, if the devices' number does not divide with it and a near one is searched
  // too; 0 = only the given ones.
  int64_t asked_global = 0;
  std::string device;
  std::string curve;  // whose rates a cluster file's device has
  std::string note;   // what is assumed of the devices' links
  // The run that the layouts are of, for the run file that is printed: all but its layout and batch.
  std::optional<RunSpec> run;
  bool by_rules = false;  // no run file gave steps, warmup, learning rates and initial weights
  DeviceFigures figures;
  FitValues fits{};
  std::string constants;  // whose these are, in words; "" = the shipped ones of all
  // Layouts are run by trireme: what overlaps follows from its order of events (StepCase::own), not from
  // shares that a software was seen to expose.
  bool own = false;
  NumberType numbers = NumberType::half;
  double grad_bytes = 2;   // of a gradient on the wire
  double grad_stored = 0;  // and in memory; 0 = 4 where a step has several microbatches, else 2
  double optimizer = 12;   // bytes of a parameter (Keeping::optimizer)
  // Keys that the search does not vary (set_layout_keys()).
  LayoutSpec keys{.sequence = true};
  // Bytes/s of a device to its machine's disk, or to the host's memory, where state may wait; 0 = nowhere.
  double disk = 0;
  bool disk_each_way = false;  // reads and writes have that rate at once: the host's link
  double memory_share = 1;     // of the device's memory that may be planned with
  double price = 0;            // of a device-hour; 0 = cost is in device-hours
  Reliability reliability;
  ClusterSpec site;        // for energy and checkpoints; its nodes are not read
  double saved_bytes = 0;  // size of a checkpoint; 0 = 14 bytes per parameter
  std::string price_note;  // row of the price table; "" = none
  RankBy by = RankBy::step;
  double loss = 0;  // the target of RankBy::loss, nats a token
  int64_t best = 10;
  // 10th and 90th percentile of measured over forecast steps, of published runs.
  double low = 1, high = 1;
  // Paths of this model, sequence and cut, which several searches may share; null: the search makes its own.
  std::shared_ptr<StepBound> bound;
  // Likewise, of trireme's own layouts: their memory.
  std::shared_ptr<RankBytes> bytes;
  std::vector<HeldMore> held_more;
  std::vector<BookedMore> booked_more;
};

// One candidate's price. Times are of wall clock: the share that failures take is in it (goodput).
struct Priced {
  SearchLayout layout;
  StepSeconds time;
  StepMemory memory;
  double token_s = 0;   // seconds a token of the whole cluster, failures included
  double cost = 0;      // of a token: device-hours paid, times their price where that is known
  double headroom = 0;  // bytes of the device's memory that are left
  double score = 0;     // what is ranked: the lowest is best
  uint8_t alike = 0;    // further orders of the axes that take as long: bits of Nearest
};
// Them, in the order of Nearest.
std::vector<Nearest> orders_alike(const Priced&);
// text_of(layout), and behind it the orders alike: ` (or order "dp pp cp tp")`.
std::string text_of(const Priced&);

// Why a division, or a layout of it, is no candidate.
enum class Refusal {
  heads,
  kv_heads,
  ffn,
  shared_ffn,
  vocabulary,
  sequence,
  context,
  layers,
  batch,
  experts,
  memory,
  count
};
inline constexpr size_t kRefusals = size_t(Refusal::count);
std::string_view text_of(Refusal);

// What the model, the sequence or the batch have against this division; Refusal::count: nothing.
Refusal division_refusal(const ModelSpec&, int64_t seq, const SearchLayout&);

struct Refused {
  int64_t divisions =
      0;  // (tp, pp, cp, dp, ep) refused as such; of memory: those whose leanest layout is too large
  int64_t candidates = 0;  // of memory
  SearchLayout nearest;    // the one that misses by least (memory), or the first
  double bytes = 0;        // memory: what that one takes
};

// Seconds and cost of what is worked for: of a token; by RankBy::loss, of all until the loss, for larger
// batches take more tokens.
double seconds_of(const SearchRequest&, const Priced&);
double cost_of(const SearchRequest&, const Priced&);

struct SearchResult {
  std::vector<Priced> best;   // ranked
  std::vector<Priced> front;  // none of the others is better in time, cost and headroom alike; fastest first
  std::vector<Priced> divisions;  // the best of each division that fits, ranked
  std::array<Refused, kRefusals> refused;
  // Each division that is no candidate; of memory with the bytes of its leanest layout.
  struct Rejected {
    SearchLayout layout;
    Refusal why = Refusal::memory;
    double bytes = 0;
  };
  std::vector<Rejected> rejected;
  RejectedValues unmet;   // of request.require
  int64_t front_cut = 0;  // of the front, taken out by cut_front()
  int64_t divisions_seen = 0, candidates = 0, fits = 0;
  int64_t unweighed = 0;  // candidates that are too slow to change any list; they may fit or not
  double seconds = 0;     // that the search took, on one core
  double rate() const { return seconds > 0 ? double(candidates) / seconds : 0; }
};

SearchResult search(const SearchRequest&);
// Takes out of the front what takes more than kFrontTimes the best one's time: nobody trains so for memory.
inline constexpr double kFrontTimes = 3;
void cut_front(const SearchRequest&, SearchResult&);

StepCase step_case(const SearchRequest&, const SearchLayout&);
// The request's, or new ones.
std::shared_ptr<StepBound> bound_of(const SearchRequest&);
std::shared_ptr<RankBytes> bytes_of(const SearchRequest&);
// Memory of the most loaded rank, without what bookings say: in trireme's own runs (plan/rank_bytes.h), or in
// runs elsewhere (cost/step_memory.h).
StepMemory closed_memory(const SearchRequest&, const SearchLayout&);
// The step that search() ranks by. For trireme's own layouts it is a lower bound of the replayed step, for
// other software its closed form.
// exact: as StepBound::of().
StepSeconds step_of(const SearchRequest&, const SearchLayout&, bool exact);
// By itself; search() gives the same but for which paths a bound knows.
Priced price_layout(const SearchRequest&, const SearchLayout&);
// The interval of a layout's step, in seconds.
// It goes from SearchRequest::low times the lesser forecast to high times the larger.
// Forecasts are the closed form and, if above 0, the simulated step.
struct StepInterval {
  double low = 0, high = 0;
};
StepInterval interval_of(const SearchRequest&, const Priced&, double simulated_s);
Goodput goodput_of(const SearchRequest&, int64_t gpus);
// Requires: saved_bytes > 0.
CheckpointCase checkpoint_case_of(const SearchRequest&, int64_t gpus, double step_s);
// Model FLOPs utilisation of the step itself.
double mfu_of(const SearchRequest&, const Priced&);
double step_tokens(const SearchRequest&, const SearchLayout&);

// Which figure or constant, larger or smaller by a factor, makes another division the best: found by
// bisection among the best of each division.
struct Flip {
  std::string what;   // "bandwidth between machines", "share of tp's sums that is exposed"
  double factor = 0;  // above 1: larger; below: smaller
  Priced rival;       // which then wins
};
struct SearchWhy {
  Priced best;              // in closed form
  std::string binds;        // the largest toll beside products
  double binds_s = 0;       // seconds a step
  Priced runner_up;         // best of another division; token_s = 0: there is none
  std::vector<Flip> flips;  // smallest change first
  // With more memory: the leanest of the faster layouts. token_s = 0: none is faster.
  Priced with_memory;
};
// with_memory: also finds SearchWhy::with_memory, by a second search.
SearchWhy why(const SearchRequest&, const SearchResult&, bool with_memory = true);
// Tolls of a step, largest first: name and seconds.
std::vector<std::pair<std::string, double>> tolls_of(const StepSeconds&);
// What binds a layout: the largest beside products.
std::pair<std::string, double> binding_toll(const StepSeconds&);

struct Confirmation;  // plan/confirm.h
struct FlipPoint;     // plan/search_flip.h
std::string search_text(const SearchRequest&, const SearchResult&, const SearchWhy*,
                        const Confirmation* = nullptr, const std::vector<FlipPoint>* = nullptr);
std::string search_json(const SearchRequest&, const SearchResult&, const SearchWhy*,
                        const Confirmation* = nullptr, const std::vector<FlipPoint>* = nullptr);
// The answer of a search on one screen, at most 25 lines. why: null = nothing fits.
std::string answer_text(const SearchRequest&, const SearchResult&, const SearchWhy*, const Confirmation*);
// Rejected layouts by reason, one line each.
std::string refused_text(const SearchRequest&, const SearchResult&);
// A run file of this layout that plan and train accept.
std::string run_file_of(const SearchRequest&, const SearchLayout&);
// [batch] and [layout] of a run file in this layout.
std::string layout_toml(const SearchLayout&, bool to_host = false);
// The front: step time against memory left, SVG.
std::string front_svg(const SearchRequest&, const SearchResult&);

}  // namespace trireme
