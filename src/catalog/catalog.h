// What measured runs leave unsaid: shapes of models known by name, figures of
// devices, and of each source its software, its site and how it counts FLOPs.
// Data, in data/score_catalog.json, compiled in.
#pragma once
#include <array>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "cost/step_time.h"

namespace trireme {

struct KnownShape {
  std::vector<std::string> names;
  ModelSpec model;    // not finish()ed
  double params = 0;  // found by its number of parameters where no name is given; 0 = not so
  int64_t window = 0;
  double window_share = 0;
  bool expert_bias = false;  // StepCase's
};
// The name of the known model with these sizes ("llama3-70B"); else its architecture ("llama").
std::string model_name(const ModelSpec&);

struct KnownDevice {
  std::string name;
  std::vector<std::string> match;  // how names of it begin
  DeviceFigures figures;
  std::string cluster;   // its file in configs/cluster; "" = it has none
  bool no_bf16 = false;  // it multiplies f16: DeviceFigures::bf16 is of f16
};

// A device with a cluster file, of whose products and attention nobody has measured a curve here: its rows
// are read, for what they lack, and not forecast.
struct UnmeasuredDevice {
  std::vector<std::string> match;  // as KnownDevice's
  std::string cluster;
  double memory = 0;
};

// "flash", "flash 1", "flash 2", "unfused".
std::optional<AttentionKind> attention_named(std::string_view);

// How a source counts the FLOPs behind its TFLOP/s and MFU.
enum class Convention {
  model,           // 3 forward passes, all of attention's scores (Narayanan et al. 2021
                   // without recompute)
  causal,          // the same, half of the scores
  with_recompute,  // what is done again too (Narayanan et al. 2021, equation 3)
  blocks_only      // 96 B s L h^2: no attention, no logits, recompute in full
};

// The first that fits a row says how to read it.
struct SourceRule {
  std::string source, family, software, site;  // source: how the row's begins
  std::vector<std::string> ids, devices, names, precisions, notes,
      recomputes;  // how they begin; empty = any
  std::optional<bool> moe;
  std::optional<int> zero;              // only rows with this degree
  std::optional<int64_t> dense_layers;  // of its models that are cut to fewer layers
  Convention flops = Convention::model;
  AttentionKind attention = AttentionKind::flash;
  StageCut cut = StageCut::even;
  Keeping keeping;
  std::vector<Keeping> or_keeping;  // what else may be so, for nobody says: cases range over it
  bool binary = false;              // its gigabytes of memory are 2^30 bytes
  bool sequence = true, fused_norms = true;
  bool gradients_unknown = false;  // their type is not known: cases range over f32 and 16 bits
  double grad_bytes = 4, grad_stored = 4, selective = 0;
  int64_t sliced = 0;        // StepCase's
  int64_t interleaved = 0;   // chunks of an interleaved schedule whose row does not say how many; 0 = any
  int64_t chunk_layers = 0;  // blocks of each chunk of its pipelines, of rows that do not say; 0 = any
  int zero_missing = 0;
  int64_t tp_missing = 0;             // tensor parallel ranks of rows that do not say; 0 = nobody says
  std::string model;                  // shape of rows of its hidden size and layers that name none
  int64_t shards = 0;                 // StepCase's, of rows that do not say
  std::string recompute = "unknown";  // of rows that do not say, one of kRecomputes
  bool micro_is_replica = false;
  bool hides_tp = false, hides_dp = false;  // behind compute: those collectives, sums
  StageMessages messages = StageMessages::by_schedule;
  bool expert_tp = false, grouped = true;  // tensor parallel ranks divide each expert; StepCase's
  bool side_by_side = false;               // StepCase's
  bool scatters = false;                   // StepCase's
  bool adds_gradients = false, reduces_gate = false, sums_whole = false, blocking = false;  // StepCase's
};

// What a source's rows may do again: nothing; blocks; nobody knows; nothing or attention's core; that core;
// all but the results of products, of queries, keys, values and attention's projection, of queries, keys and
// values.
inline constexpr std::array<std::string_view, 8> kRecomputes = {"none",
                                                                "full",
                                                                "unknown",
                                                                "none or attention",
                                                                "attention",
                                                                "all but products",
                                                                "all but qkv and out",
                                                                "all but qkv"};

struct Catalog {
  std::vector<KnownShape> shapes;
  std::vector<KnownDevice> devices;
  std::vector<UnmeasuredDevice> unmeasured;
  std::vector<std::pair<std::string, double>>
      sites;  // name, bytes/s of a device to far ones; 0 = the device's
  std::vector<SourceRule> sources;
  std::vector<std::pair<std::string, std::string>> publications;  // how sources of one begin; its name

  // The FlashAttention that all rows of a software have, apart from rows that others cite; else `flash`.
  AttentionKind fused_attention_of(std::string_view software) const;
  const KnownShape* shape_named(std::string_view) const;  // apart from case, spaces, - and _
  const KnownShape* shape_of_params(double) const;
  // Of a published row's spelling, "H100-SXM-80GB": what begins with a device's name.
  const KnownDevice* device_named(std::string_view) const;
  const UnmeasuredDevice* unmeasured_named(std::string_view) const;
  // Of a user's: the name, or one of its aliases, apart from case, spaces, - and _.
  const KnownDevice* device_called(std::string_view) const;
  // device_named(), or of the family that the name's first word is ("A100-SXM-8") the one whose memory is
  // nearest.
  const KnownDevice* device_alike(std::string_view name, double memory) const;
  double nic_of(std::string_view site) const;
  // Returns the publication of a source. Sources of one publication are measured by the same people on the
  // same machines. A source without a publication in the catalog is its own.
  std::string publication_of(const std::string& source) const;
};
Catalog parse_catalog(std::string_view json, std::string_view file);
const Catalog& shipped_catalog();

}  // namespace trireme
