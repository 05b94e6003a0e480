// One layout of a run, as the search enumerates it.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "base/interned.h"
#include "cost/step_memory.h"
#include "spec/run_spec.h"

namespace trireme {

enum class Again { none, selective, full };  // layout.recompute
std::string_view name_of(Again);

struct SearchLayout {
  int64_t gpus = 1, global = 1;  // global: sequences of a step
  int64_t tp = 1, pp = 1, dp = 1, cp = 1, ep = 1;
  int64_t micro = 1, chunks = 1;
  std::string_view schedule = "1f1b";
  Again again = Again::none;
  int zero = 0;
  int64_t shards = 0;  // layout.shard_group
  bool offload = false;
  Nearest nearest = Nearest::tensor;
  const NumberList* stage_layers = nullptr;  // interned; null: as the run cuts its layers
  int64_t microbatches() const { return global / (dp * micro); }
  bool same_division(const SearchLayout& o) const {
    return gpus == o.gpus && global == o.global && tp == o.tp && pp == o.pp && dp == o.dp && cp == o.cp &&
           ep == o.ep;
  }
  // What ranks hold beside states is the same.
  bool holds_as(const SearchLayout& o) const {
    return same_division(o) && schedule == o.schedule && chunks == o.chunks && micro == o.micro &&
           again == o.again && stage_layers == o.stage_layers;
  }
  bool operator==(const SearchLayout&) const = default;
};
// "20, 12", or "4 x 14, 4 x 6"
std::string layers_text(const NumberList&);
// "tp 8 pp 4 dp 2, zero 1, interleaved x5, micro 1 (64 microbatches), recompute full"
std::string text_of(const SearchLayout&);
// ", fp8 (current)": follows a layout's text; "" if the run's products are not in 8 bits.
std::string fp8_text(const PrecisionSpec&);
// " of the bf16 peak": follows an MFU of a run with 8-bit products, which is a share of that peak; else "".
std::string mfu_peak_text(const PrecisionSpec&);
std::string division_text(const SearchLayout&);  // "tp 8 pp 4 dp 2"
// The keys of a run's [layout] that the search takes unchanged: all its layouts have them.
LayoutSpec searched_keys(const LayoutSpec&);
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

// Returns whether pp * chunks stages have the same number of layers, which interleaved chunks need.
bool chunks_divide(int64_t layers, int64_t pp, int64_t chunks);

// The run in this layout, as train would start it.
// to_host: where state waits, if it does; else in files.
RunSpec with_layout(RunSpec, const SearchLayout&, bool to_host = false);
// Its degrees and order of axes.
LayoutSpec degrees_of(const SearchLayout&);
// layout.order of it.
std::string_view order_of(Nearest);
// The name as SearchLayout::schedule has it; nothing: the search has no such schedule.
std::optional<std::string_view> searched_schedule(std::string_view name);

}  // namespace trireme
