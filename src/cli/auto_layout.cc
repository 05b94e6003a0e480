#include "cli/auto_layout.h"

#include <fmt/format.h>

#include <algorithm>

#include "catalog/cluster_device.h"
#include "checkpoint/named.h"
#include "device/device.h"
#include "spec/batch_ramp.h"
#include "spec/lr_rule.h"
#include "spec/run_spec.h"
#include "spec/size_rule.h"
#include "spec/toml.h"
#include "spec/walk.h"

namespace trireme::cli {
namespace {

constexpr int64_t kMostRanks = 4096;  // of one machine
constexpr const char* kAxes[] = {"layout.dp", "layout.tp", "layout.pp", "layout.cp"};

bool is_auto(const TomlEntry& e) {
  const std::string* text = std::get_if<std::string>(&e.value);
  return text && *text == "auto";
}

// The request without what asks for a choice.
struct Opened {
  AutoWish wish;
  bool given = false;             // --set names an axis
  std::string text;               // of the file, the line `layout = "auto"` left out
  std::vector<std::string> sets;  // and what stands in the place of what is chosen
};

void blank_line(std::string& text, int line) {
  size_t at = 0;
  for (int i = 1; i < line && at != std::string::npos; i++) at = text.find('\n', at) + 1;
  const size_t end = std::min(text.find('\n', at), text.size());
  text.erase(at, end - at);
}

Opened open(const RunRequest& request) {
  Opened o;
  if (request.file.empty()) return o;
  o.text = read_small(request.file, kMostTomlBytes);
  std::vector<TomlEntry> entries = parse_toml(o.text, request.file);
  for (const TomlEntry& e : entries)
    if (e.key == "layout" && is_auto(e)) o.wish.layout = true, blank_line(o.text, e.line);
  for (const std::string& s : request.sets) {
    const std::vector<TomlEntry> more = parse_set(s);
    entries.insert(entries.end(), more.begin(), more.end());
    for (const TomlEntry& e : more)
      o.given |= std::find(std::begin(kAxes), std::end(kAxes), e.key) != std::end(kAxes);
    const bool whole = more.size() == 1 && more[0].key == "layout" && is_auto(more[0]);
    if (whole) o.wish.layout = true;
    if (!whole) o.sets.push_back(s);
  }
  std::array<int64_t, std::size(kAxes)> sizes{1, 1, 1, 1};
  for (const TomlEntry& e : entries) {  // the last that is given counts
    if (e.key == "batch.micro") o.wish.micro = is_auto(e);
    for (size_t a = 0; a < std::size(kAxes); a++)
      if (const int64_t* n = std::get_if<int64_t>(&e.value); n && e.key == kAxes[a]) sizes[a] = *n;
  }
  // 0, or more than there may be, is said where the choice is made.
  for (const int64_t n : sizes)
    o.wish.ranks = std::min(o.wish.ranks, kMostRanks + 1) * std::clamp<int64_t>(n, 0, kMostRanks + 1);
  if (o.wish.any()) o.sets.emplace_back("batch.micro=1");
  if (o.wish.layout)
    for (const char* axis : kAxes) o.sets.push_back(std::string(axis) + "=1");
  return o;
}

// What choose_recompute() decides stands in plan.toml; what was asked for instead of it.
LayoutSpec as_asked(LayoutSpec before, const LayoutSpec& asked) {
  if (asked.recompute != "auto") return before;
  before.recompute = asked.recompute, before.recompute_tensors = asked.recompute_tensors;
  before.recompute_rest = asked.recompute_rest, before.recompute_blocks = asked.recompute_blocks;
  before.recompute_limit = asked.recompute_limit, before.recompute_shard = asked.recompute_shard;
  return before;
}

// The layout and microbatch that this run had before, from its folder's plan.toml; false: there is none, or
// of another run, or of another layout where that is given.
bool take_layout_of_before(RunSpec& run, const AutoWish& wish) {
  const fs::path file = fs::path(run.train.dir) / "plan.toml";
  if (!fs::exists(file)) return false;
  try {
    const RunSpec before = load_run(file, {}, {.read_from = false});
    if (hash(before) != hash(run) || before.world() != wish.ranks) return false;
    if (!wish.layout && !(as_asked(before.layout, run.layout) == run.layout)) return false;
    if (wish.layout) run.layout = before.layout;
    run.batch.micro = before.batch.micro;
    return problems_of(run).empty();
  } catch (const Error&) {
    return false;  // what is wrong with the folder is said where the run starts
  }
}

// Whether the request leaves a key to its rule.
class LeftToRule {
 public:
  explicit LeftToRule(const RunRequest& request) {
    if (!request.file.empty()) entries_ = parse_toml(read_small(request.file, kMostTomlBytes), request.file);
    for (const std::string& s : request.sets) {
      const std::vector<TomlEntry> more = parse_set(s);
      entries_.insert(entries_.end(), more.begin(), more.end());
    }
  }
  bool operator()(std::string_view key) const {
    bool left = true;  // the last that is given counts
    for (const TomlEntry& e : entries_)
      if (e.key == key) left = is_auto(e);
    return left;
  }

 private:
  std::vector<TomlEntry> entries_;
};

// The plan of the run that `asked` continues: its own folder's, or that of the run it branches from.
struct PlanOfBefore {
  fs::path file;  // empty: it starts
  bool branches = false;
};
PlanOfBefore plan_of_before(const RunSpec& asked) {
  const fs::path folder = asked.train.dir;
  if (fs::exists(folder / "checkpoints")) return {folder / "plan.toml"};
  if (asked.train.branch.empty()) return {};
  const auto parent = checkpoint_named(asked.train.branch);
  return parent ? PlanOfBefore{parent->run / "plan.toml", true} : PlanOfBefore{};
}

}  // namespace

std::string take_rules_of_before(RunSpec& asked, const RunRequest& request) {
  try {
    const PlanOfBefore plan = plan_of_before(asked);
    if (plan.file.empty() || !fs::exists(plan.file)) return "";
    const RunSpec before = load_run(plan.file, {}, {.read_from = false});
    const ModelSpec &m = before.model, &n = asked.model;
    if (m.hidden != n.hidden || m.layers != n.layers || before.optimizer.name != asked.optimizer.name)
      return "";
    const LeftToRule left(request);
    RunSpec by_rule = asked;
    apply_lr_rule(by_rule);
    apply_init_rule(by_rule.model);
    RunSpec kept = by_rule;
    if (left("optimizer.lr")) {
      kept.optimizer.lr = before.optimizer.lr;
      if (left("optimizer.adamw_lr")) kept.optimizer.adamw_lr = before.optimizer.adamw_lr;
      if (left("optimizer.embed_lr")) kept.optimizer.embed_lr = before.optimizer.embed_lr;
    }
    if (left("optimizer.warmup")) kept.optimizer.warmup = before.optimizer.warmup;
    if (left("batch.global")) {
      kept.batch.global = before.batch.global;
      // Another layout may need another microbatch.
      if (left("batch.micro"))
        kept.batch.micro = divisor_of_batches(kept.batch) % (kept.layout.dp * before.batch.micro) == 0
                               ? before.batch.micro
                               : micro_by_rule(kept);
    }
    if (left("train.steps") && !plan.branches) kept.train.steps = before.train.steps;
    if (left("model.init_std") && n.init_std == kAutomatic) {
      kept.model.init_std = m.init_std;
      if (left("model.embed_std")) kept.model.embed_std = m.embed_std;
      if (left("model.head_std")) kept.model.head_std = m.head_std;
    }
    if (!problems_of(kept).empty()) return "";
    std::string changed;
    const std::vector<FieldText> rule = fields_of(by_rule), now = fields_of(kept);
    for (size_t i = 0; i < now.size(); i++)
      if (now[i].value != rule[i].value)
        changed += fmt::format("{}{} = {}", changed.empty() ? "" : ", ", now[i].key, now[i].value);
    if (left("optimizer.lr") || left("model.init_std") || !changed.empty()) asked = kept;
    return changed.empty() ? "" : fmt::format("kept from {}: {}", plan.file.string(), changed);
  } catch (const Error&) {
    return "";  // reported where the run starts
  }
}

namespace {

// The sizes that are left to rules, for a layout of `ranks` ranks.
void size_for_ranks(RunSpec& run, const RunRequest& request, int64_t ranks) {
  const LeftToRule left(request);
  if (!left("batch.global")) return;
  RunSpec sized = run;
  sized.layout.dp = ranks;
  sized.batch.global = kAutomaticCount;
  if (left("train.steps")) sized.train.steps = kAutomaticCount;
  if (left("optimizer.warmup")) sized.optimizer.warmup = kAutomaticCount;
  apply_size_rule(sized, true);
  run.batch.global = sized.batch.global;
  run.train.steps = sized.train.steps;
  run.optimizer.warmup = sized.optimizer.warmup;
}

// A run starts on the device that is here; a plan is of the cluster that the file names.
Facts facts_of(const RunSpec& run, bool goes_on) {
  if (!goes_on && !run.cluster.file.empty())
    return {.native_bf16 = cluster_called(run.cluster.file, run.world()).peak.bf16 > 0};
  if (!goes_on && run.train.device == "cuda") return {.native_bf16 = cluster_of(run).peak.bf16 > 0};
  return {.native_bf16 = make_device(run.train.device)->native(DType::bf16)};
}

}  // namespace

AutoWish auto_wish_of(const RunRequest& request) {
  try {
    return open(request).wish;
  } catch (const Error&) {
    return {};  // what is wrong is said where the file is loaded
  }
}

ChosenRun load_or_choose(const RunRequest& request, bool goes_on, const Measuring& how) {
  if (!auto_wish_of(request).any()) {
    RunSpec asked = request.as_asked();
    const std::string note = goes_on ? take_rules_of_before(asked, request) : "";
    return {resolve(asked, facts_of(asked, goes_on)), note, asked.precision};
  }
  Opened o = open(request);
  RunSpec run = parse_run(o.text, request.file, o.sets);
  if (run.train.comm != "thread")
    bad_request(
        "{} = \"auto\" chooses for rank threads of one machine, and train.comm is \"{}\": give the layout",
        o.wish.layout ? "layout" : "batch.micro", run.train.comm);
  refuse(run);
  if (o.wish.layout && (o.wish.ranks < 1 || o.wish.ranks > kMostRanks))
    bad_request("layout = \"auto\": layout.dp x tp x pp x cp is the number of ranks; right is 1 to {}",
                kMostRanks);
  if (o.wish.layout && o.wish.ranks == 1 && !o.given) o.wish.ranks = threads_of(run);
  if (!o.wish.layout) o.wish.ranks = run.world();
  if (o.wish.layout) size_for_ranks(run, request, o.wish.ranks);
  const std::string kept = goes_on ? take_rules_of_before(run, request) : "";
  const auto with_kept = [&](const std::string& note) { return kept.empty() ? note : kept + "\n" + note; };
  RunSpec divided = run;  // as many ranks, for their share of the cores
  if (o.wish.layout) divided.layout.dp = o.wish.ranks;
  const Facts facts = facts_of(run, goes_on);
  RunSpec before = resolve(run, facts);
  if (goes_on && take_layout_of_before(before, o.wish)) {
    before.precision.grads = run.precision.grads;  // follows the microbatches
    return {resolve(before, facts),
            with_kept(fmt::format("{} is the one that this run folder began with",
                                  o.wish.layout ? "the layout" : "batch.micro")),
            run.precision};
  }
  const ClusterSpec cluster = cluster_of(divided, how);
  const AutoChoice c = choose_layout(run, o.wish, cluster, rank_threads_of(divided), facts);
  return {c.tried[c.best].run, with_kept(to_text(c)), run.precision};
}

}  // namespace trireme::cli
