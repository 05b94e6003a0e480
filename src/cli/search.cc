#include "cli/search.h"

#include <algorithm>
#include <cinttypes>
#include <cmath>
#include <cstdio>
#include <functional>
#include <numeric>
#include <tuple>

#include "base/file.h"
#include "base/progress.h"
#include "base/say.h"
#include "base/timed.h"
#include "catalog/catalog.h"
#include "catalog/price_list.h"
#include "cli/search_here.h"
#include "cli/used_keys.h"
#include "cost/flops.h"
#include "cost/time_to_loss.h"
#include "cost/walls.h"
#include "forecast/scaled_run.h"
#include "forecast/searched_step.h"
#include "forecast/untrained_router.h"
#include "search/confirm.h"
#include "search/framework.h"
#include "search/one_kind.h"
#include "search/search.h"
#include "search/search_flip.h"
#include "search/search_sweep.h"
#include "spec/toml.h"

namespace trireme::cli {
namespace {

constexpr double kTokensToSearch = 20;  // a parameter, of the loss that --by loss aims at by itself

// All that the question leaves out, at once.
void refuse_missing(const SearchOptions& o, const PlanSubject& s, const std::optional<RunSpec>& run,
                    std::string_view asked) {
  const bool model =
      run || !s.model.empty() || s.parameters > 0 || s.layers > 0 || s.hidden > 0 || s.heads > 0;
  std::string missing, example;
  for (const auto& [given, what, how] :
       {std::tuple{model, "the model (a run file, --model, or --layers, --hidden, --heads)",
                   " --model llama3-8B"},
        {!s.cluster.empty() || (run && !run->cluster.file.empty()),
         "the devices (--cluster: a file, or one by name)", " --cluster H100"},
        {run || s.gpus > 0 || !o.sweep.empty(), "how many (--gpus)", " --gpus 64"},
        {run || s.seq > 0, "tokens of a sequence (--seq)", " --seq 4096"},
        {run || o.global > 0 || o.largest, "sequences of a step (--global-batch)", " --global-batch 512"}}) {
    if (given) continue;
    missing += fmt::format("{}{}", missing.empty() ? "" : ", ", what), example += how;
  }
  if (!missing.empty()) bad_request("{}: not said: {}; such as{}", asked, missing, example);
}

// What the model is: of a run file, or by name. asked: the option whose answer this is, for errors.
void set_model(SearchRequest& q, const PlanSubject& subject, const std::optional<RunSpec>& run,
               std::string_view asked) {
  if (run) {
    q.model = run->model;
    q.name = model_name(run->model);
    q.seq = run->data.seq_len;
    q.globals = {run->batch.global}, q.gpus = {run->world()};
    if (run->precision.compute == "f32")
      bad_request(
          "{}: precision.compute = \"f32\": the closed forms are of 16-bit training; give --set "
          "precision.compute=bf16",
          asked);
  } else {
    const SubjectModel m = model_of(subject);
    if (!m.shape)
      bad_request("{}: no shape of a model; it takes a run file, --model, or --layers, --hidden, --heads",
                  asked);
    q.model = *m.shape, q.name = m.name;
  }
  if (subject.seq > 0) q.seq = subject.seq;
  q.model.finish(q.seq);
}

// Refuses number types that the device does not have.
void refuse_types(const SearchRequest& q, const PrecisionSpec& p, std::string_view asked) {
  if (p.compute == "fp8" && q.figures.fp8 <= 0)
    bad_request("{}: precision.compute = \"fp8\": {} has no fp8; give --set precision.compute=bf16", asked,
                q.device);
}

// A run file is the model.
void refuse_two_models(const PlanSubject& s) {
  for (const auto& [name, given] :
       {std::pair{"--model", !s.model.empty()}, std::pair{"--parameters", s.parameters > 0},
        std::pair{"--layers", s.layers > 0}, std::pair{"--hidden", s.hidden > 0},
        std::pair{"--heads", s.heads > 0}, std::pair{"--kv-heads", s.kv_heads > 0},
        std::pair{"--ffn", s.ffn > 0}, std::pair{"--vocab", s.vocab > 0}})
    if (given) bad_request("{}: RUN is a model already; give one of the two", name);
}

// Returns the cluster.file of a printed run file: a name unchanged, or the absolute path of a file.
std::string cluster_file_of(const std::string& cluster) {
  return is_device_name(cluster) ? cluster : fs::absolute(cluster).lexically_normal().string();
}

// Returns the run that layouts are searched for, which is the printed run file. It has the devices and the
// sums that are priced (a run's own default adds in rank order).
RunSpec run_of_search(const SearchRequest& q, const std::string& cluster,
                      const std::optional<RunSpec>& given) {
  RunSpec run = given.value_or(RunSpec());
  if (!given) run.optimizer.lr = kAutomatic;
  if (!given) run.train.checkpoint_every.automatic = true;  // the interval that goodput has
  if (!given && !no_bf16_text(q.device, "bf16").empty()) {
    run.precision.compute = "f16";
    say("note: {} has no bf16: layouts and the run file are of precision.compute = \"f16\"\n", q.device);
  }
  run.model = q.model;
  run.data.seq_len = q.seq;
  run.cluster.file = cluster_file_of(cluster);
  // This version multiplies 8-bit floats and keeps the rest in bf16.
  if (run.precision.compute == "fp8") {
    run.precision.compute = "bf16";
    if (run.precision.fp8 == "none") run.precision.fp8 = "current";
  }
  if (!given || (run.train.device == "cpu" && has_own_devices(cluster_called(cluster, 1))))
    run.train.device = "cuda";
  if (run.train.device == "cuda" && run.precision.moments != "f32")
    bad_request("precision.moments = {}: GPUs have f32 moments; give --set precision.moments=f32",
                toml_string(run.precision.moments));
  if (run.train.device == "cuda") run.train.comm = "nccl";
  if (q.software.ordered() || run.train.comm == "nccl") run.train.sum_order = "auto";
  return run;
}

// Refuses a place for optimizer state without a bandwidth in the cluster file.
void refuse_unknown_offload(const std::optional<RunSpec>& run, const SubjectDevice& d,
                            std::string_view cluster, std::string_view asked) {
  if (run && run->layout.offloads_state() && run->layout.offload_to == "host" && d.host == 0)
    bad_request(
        "{}: layout.offload_to = \"host\", and {} says nothing of host_bandwidth, which the forecast needs",
        asked, cluster);
}

// devices: the most that are looked at.
void set_cluster(SearchRequest& q, const PlanSubject& subject, const std::optional<RunSpec>& run,
                 int64_t devices, std::string_view asked) {
  const std::string& cluster = subject.cluster.empty() ? run->cluster.file : subject.cluster;
  SubjectDevice d = device_of(cluster, devices);
  complete_figures(d, std::min(devices, int64_t(d.figures.near)), asked);  // set_sizes() looks farther
  if (!is_device_name(subject.cluster) || d.curve.empty()) q.curve = curve_text(d);
  q.device = d.name, q.figures = d.figures, q.price = d.price_per_hour, q.note = d.note;
  q.currency = d.currency;
  refuse_unknown_offload(run, d, cluster, asked);
  q.run = run_of_search(q, cluster, run);
  q.by_rules = !run;
  set_offload(q, run ? &*run : &*q.run, d);
  q.reliability.devices_per_machine = d.machine > 0 ? d.machine : int64_t(q.figures.near);
  const ListedPrice listed = listed_price(subject.prices, subject.region, d.name);
  if (listed.per_hour > 0) {
    q.price = listed.per_hour;
    q.currency = listed.currency;
  }
  q.price_of_kinds = listed.per_hour == 0 && d.site.kinds.size() > 1;
  q.price_note = listed.text;
  q.site = d.site;
  q.saved_bytes = double(checkpoint_bytes(*q.run));
  if (const double write = d.site.checkpoint_bandwidth(); write > 0)
    q.reliability.write_s = q.saved_bytes / write;
  if (d.mtbf_hours > 0) q.reliability.mtbf_device_s = d.mtbf_hours * 3600;
}

// "gpus=8..4096" -> 8, 16, ..., 4096.
std::vector<int64_t> swept(const std::string& text) {
  constexpr int64_t kMost = 1 << 20;
  int64_t low = 0, high = 0;
  char end = 0;
  if (std::sscanf(text.c_str(), "gpus=%" SCNd64 "..%" SCNd64 "%c", &low, &high, &end) != 2 || low < 1 ||
      high < low || high > kMost)
    bad_request("--sweep: \"{}\"; right is gpus=LOW..HIGH, such as gpus=8..4096, up to {}", text, kMost);
  std::vector<int64_t> all;
  for (int64_t n = low; n <= high; n *= 2) all.push_back(n);
  return all;
}

// If the number of devices has a prime factor that the batch lacks, most layouts' replicas do not divide the
// batch. Adds the nearest batch that they divide. Batches are compared by time per token.
void add_dividing_batch(SearchRequest& q) {
  const int64_t gpus = q.gpus[0];
  const int64_t global = q.globals[0];
  int64_t missing = gpus;
  for (int64_t g = std::gcd(missing, global); g > 1; g = std::gcd(missing, global)) missing /= g;
  const bool fixed =
      std::any_of(q.require.begin(), q.require.end(), [](const Requirement& r) { return r.key == "global"; });
  if (missing == 1 || fixed) return;
  int64_t multiple = missing * std::gcd(gpus / missing, global);
  if (multiple > global) multiple = missing;
  const int64_t near = std::max<int64_t>(1, (global + multiple / 2) / multiple) * multiple;
  q.globals.push_back(near);
  q.asked_global = global;
}

// Values of requirements that are properties of the run, not of its layout.
struct RequiredValues {
  int64_t seq = 0;
  std::string precision;
};

// Splits --require into conditions on layouts (of the request) and values of the run.
RequiredValues take_requirements(const SearchOptions& o, SearchRequest& q) {
  RequiredValues values;
  if (!o.as.empty()) q.require = framework_named(o.as).require;
  for (const std::string& text : o.require) {
    const size_t at = text.find('=');
    const std::string key = text.substr(0, at);
    const std::string value = at == text.npos ? "" : text.substr(at + 1);
    if (key == "precision") {
      if (value != "fp8" && value != "bf16")
        bad_request("--require {}: expected precision=bf16 or fp8", text);
      if (!values.precision.empty() && values.precision != value)
        bad_request("--require precision={} and --require {}: no layout has both; give one of the two",
                    values.precision, text);
      values.precision = value;
    } else if (key == "seq_len") {
      const int64_t seq = std::atoll(value.c_str());
      if (values.seq > 0 && seq != values.seq)
        bad_request("--require seq_len={} and --require {}: no layout has both; give one of the two",
                    values.seq, text);
      values.seq = seq;
      if (values.seq < 1) bad_request("--require {}: expected seq_len=N with an integer N >= 1", text);
    } else {
      q.require.push_back(parse_requirement(text));
    }
  }
  refuse_contradiction(q.require);
  return values;
}

void require_precision(SearchRequest& q, const std::string& precision) {
  if (precision.empty()) return;
  if (precision == "fp8" && q.figures.fp8 <= 0)
    bad_request("--require precision=fp8: {} has no fp8; precision can be bf16", q.device);
  q.run->precision.compute = "bf16";
  q.run->precision.fp8 = precision == "fp8" ? "current" : "none";
}

void set_sizes(SearchRequest& q, const SearchOptions& o, const PlanSubject& subject) {
  if (subject.gpus > 0) q.gpus = {subject.gpus};
  if (!o.sweep.empty()) q.gpus = swept(o.sweep);
  if (o.largest && q.globals.empty()) q.globals = {q.gpus[0]};
  if (o.global > 0) q.globals = {o.global};
  constexpr int64_t kMost = 1 << 20;
  const int64_t most = q.gpus.back();
  if (most > kMost) bad_request("--gpus: {} is more than {}", most, kMost);
  if (double(most) > q.figures.near && q.figures.nic <= 0)
    bad_request("--gpus: {} devices are {} nodes, and inter_node.bandwidth is not known", most,
                int64_t(std::ceil(double(most) / q.figures.near)));
  if (o.fewer)
    for (int64_t n = q.gpus[0]; n % 2 == 0;) q.gpus.insert(q.gpus.begin(), n /= 2);
  if (o.by != "loss" && o.layouts() && q.gpus.size() == 1) add_dividing_batch(q);
  if (o.by == "loss") {
    constexpr int64_t kAround = 8;
    std::vector<int64_t> around;
    for (int64_t k = kAround; k > 1; k /= 2)
      if (q.globals[0] % k == 0) around.push_back(q.globals[0] / k);
    for (int64_t k = 1; k <= kAround; k *= 2) around.push_back(q.globals[0] * k);
    q.globals = around;
  }
}

// A cluster that only ever restarts has no step time.
void refuse_hopeless(const SearchRequest& q) {
  for (const int64_t n : q.gpus)
    if (const Goodput g = goodput_of(q, n); g.share <= 0)
      bad_request(
          "--gpus: {} devices fail every {:.3g} s, and a restart takes {:.3g} s (repair {:.3g} s): nothing "
          "that they do stays; give fewer devices, or a larger mtbf_hours in the cluster file",
          n, g.mtbf_s, q.reliability.restart_s, q.reliability.repair_s);
}

// best: in closed form, whatever meta says of it, for so are all that it is held against.
std::vector<FlipPoint> flips_of(const SearchOptions& o, const SearchRequest& q, const Priced& best) {
  std::vector<std::string> knobs = o.flip;
  const bool all = std::find(knobs.begin(), knobs.end(), "all") != knobs.end();
  if (all) knobs = flip_knobs();
  if (q.globals.size() > 1 && std::erase(knobs, "batch") > 0 && !all)
    bad_request("--flip: batch: --by loss chooses the batch; leave one of the two out");
  return flip_points(q, best, knobs);
}

// Of what takes longer than anybody waits for without a word.
class ShownLooks {
 public:
  // A proof ends the replays at any of the listed layouts: their number predicts no end.
  // Each search, and the alternatives after the last, count from 0 again: here one number grows.
  void operator()(int64_t, int64_t, const SearchLayout& l) {
    constexpr double kQuietS = 2;
    looked_at_++;
    if (now_s() - begin_ < kQuietS) return;
    if (!progress_) progress_.emplace("replayed layouts", int64_t(0));
    progress_->update(looked_at_, text_of(l));
  }

 private:
  double begin_ = now_s();
  int64_t looked_at_ = -1;  // layouts before this one
  std::optional<Progress> progress_;
};

// The search, its replays and what follows from them.
struct FoundLayouts {
  SearchResult result;
  std::optional<Confirmation> looked;
  std::optional<SearchWhy> why;
  std::optional<std::vector<FlipPoint>> flips;
};

FoundLayouts find_layouts(const SearchOptions& o, SearchRequest& q, const std::optional<RunSpec>& run) {
  FoundLayouts f;
  q.best = std::max(o.best, o.confirm > 0 ? kept_to_confirm(q) : 0);
  if (q.software.ordered() && !q.bound) q.bound = bound_of(q);  // its paths serve all that follows
  if (q.software.taped() && !q.bytes) q.bytes = bytes_of(q);
  SearchResult& r = f.result;
  if (o.confirm > 0) {
    ShownLooks looks;
    const ConfirmRequest c{
        .most = o.confirm, .run = run, .by = o.priced_by(q.device), .progress = std::ref(looks)};
    f.looked = search_and_confirm(q, r, c);
    cut_front(q, r);
    (o.all || o.json ? confirm_front : confirm_alternatives)(q, r, c, *f.looked);
    if (f.looked->looked_at.empty()) f.looked.reset();
    r.alone = kinds_alone(q, c);
  } else {
    r = search(q);
    cut_front(q, r);
  }
  if (r.candidates == 0 && !q.require.empty()) bad_request("{}", unmet_text(q.require, r.unmet));
  if (!o.flip.empty())  // confirmed layouts are another list
    if (const SearchResult closed = o.confirm > 0 ? search(q) : r; !closed.divisions.empty())
      f.flips = flips_of(o, q, closed.divisions.front());
  if (!r.best.empty()) f.why = trireme::why(q, r, o.why);
  return f;
}

// After the answer, which says why: a search that finds no layout fails.
void refuse_nothing(bool nothing, const std::string& out) {
  if (nothing)
    bad_request("search: nothing fits{}", out.empty() ? "" : fmt::format("; --out: {} is not written", out));
}

void print_search(const SearchOptions& o, SearchRequest& q, const std::optional<RunSpec>& run) {
  FoundLayouts f = find_layouts(o, q, run);
  SearchResult& r = f.result;
  if (int64_t(r.best.size()) > o.best) r.best.resize(size_t(o.best));
  if (!o.svg.empty()) write_text_atomic(o.svg, front_svg(q, r));
  const SearchWhy* why = f.why && o.why ? &*f.why : nullptr;
  const Confirmation* confirmed = f.looked ? &*f.looked : nullptr;
  const std::vector<FlipPoint>* flips = f.flips ? &*f.flips : nullptr;
  if (!o.out.empty() && !r.best.empty()) write_text_atomic(o.out, run_file_of(q, r.best.front().layout));
  if (o.json) {
    print_text("{}", search_json(q, r, why, confirmed, flips));
    return refuse_nothing(r.best.empty(), o.out);
  }
  std::string below =
      o.as.empty() || r.best.empty() ? "" : launch_text(framework_named(o.as), q, r.best.front().layout);
  if (!o.out.empty() && !r.best.empty()) below += fmt::format("run file: {}\n", o.out);
  const auto lines = size_t(std::count(below.begin(), below.end(), '\n'));
  std::string text =
      o.all ? search_text(q, r, why, confirmed, flips)
            : answer_text(q, r, f.why && !o.why ? &*f.why : nullptr, confirmed, lines, !o.out.empty());
  if (!o.all) text += asked_text(q, r, why, flips);
  print_text("{}{}", text, below);
  refuse_nothing(r.best.empty(), o.out);
}

}  // namespace

void SearchOptions::add_to(CLI::App& verb) {
  constexpr double kMost = 1e6;
  verb.add_option("--global-batch", global, "sequences per step (default: the run's)")
      ->check(number_between(1, 1e9));
  verb.add_option("--require", require,
                  "a condition on layouts: tp=8, \"pp<=4\", schedule=1f1b,zb-h1, precision=fp8 (repeatable)")
      ->expected(1)
      ->allow_extra_args(false)
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll)
      ->type_name("CONDITION");
  verb.add_option("--as", as, "only layouts of this framework, with its launch flags")
      ->check(CLI::IsMember(framework_names()));
  verb.add_option("--by", by, "rank by step time, cost per token, or time to a loss")
      ->check(CLI::IsMember({"step", "cost", "loss"}))
      ->capture_default_str();
  verb.add_option("--out", out, "file that the best layout's run file is written to")
      ->type_name("FILE")
      ->check(named_file());
  verb.add_flag("--all", all, "also prints rejected layouts, every table and the run file");
  verb.add_option("--sweep", sweep, "instead: the best layout for each number of devices: gpus=8..4096");
  verb.add_flag("--largest", largest,
                "instead: the largest model of --model's family that fits, by technique");
  verb.add_flag("--fewer", fewer, "also a half, a quarter, ... of the devices");
  verb.add_flag("--why", why, "also how each figure would have to change to change the choice");
  std::vector<std::string> turned = flip_knobs();
  turned.emplace_back("all");
  flips = verb.add_option("--flip", flip, "also values of these figures at which another layout wins")
              ->check(CLI::IsMember(turned));
  verb.add_option("--loss", loss,
                  "nats per token for --by loss (default: Chinchilla's of 20 tokens per parameter)")
      ->check(number_between(0.1, 100));
  listed = verb.add_option("--best", best, "layouts that --all and --json list")
               ->check(number_between(1, 10000))
               ->capture_default_str();
  confirmed = verb.add_option("--confirm", confirm,
                              "layouts that are replayed at least; 0 = none, prices in closed form")
                  ->check(number_between(0, kMostConfirmed))
                  ->capture_default_str();
  verb.add_option("--software", software, "framework whose measured constants price the step (default: all)");
  verb.add_option("--site", site, "cluster whose measured constants price the step");
  verb.add_option("--constants", constants, "constants file of `trireme score --calibrate` or --fit");
  verb.add_option("--spares", spares, "spare machines (default: as many as pay)")
      ->check(number_between(0, 1e6));
  verb.add_option("--restart", restart_s, "seconds from a failure to the next step")
      ->check(number_between(0, kMost))
      ->capture_default_str();
  verb.add_option("--repair", repair_h, "hours until a failed machine is back")
      ->check(number_between(0, kMost))
      ->capture_default_str();
  verb.add_option("--memory-share", memory_share, "share of a device's memory that a layout may take")
      ->check(number_between(0.01, 1))
      ->capture_default_str();
  verb.add_option("--price", price, "price of a device-hour (default: the cluster file's)")
      ->check(number_between(0, 1e9));
  verb.add_option("--mix-svg", mix, "--sweep: SVG of the best layouts' degrees")->check(named_file());
  verb.add_option("--svg", svg, "SVG of the Pareto front, or of --sweep's curve")->check(named_file());
}

PricedBy priced_by(std::string device, const std::string& software, const std::string& site,
                   const std::string& constants) {
  PricedBy by{.device = std::move(device), .software = software, .site = site, .own = nullptr, .file = ""};
  if (!constants.empty()) price_by_own(by, read_text(constants), constants);
  return by;
}

PricedBy SearchOptions::priced_by(std::string device) const {
  const std::string by =
      software.empty() && !as.empty() ? std::string(framework_named(as).software) : software;
  return cli::priced_by(std::move(device), by, site, constants);
}

void SearchOptions::reject_unread() const {
  if (largest && !sweep.empty())
    bad_request("--sweep and --largest: each is an answer of its own; give one of them");
  const std::string_view asked = largest ? "--largest" : "--sweep";
  for (const auto& [name, given] : {std::pair{"--why", why},
                                    {"--fewer", fewer},
                                    {"--flip", flips->count() > 0},
                                    {"--out", !out.empty()},
                                    {"--all", all}})
    if (given && !layouts()) bad_request("{}: {} does not read it; leave it out", name, asked);
  if (confirmed->count() > 0 && largest) bad_request("--confirm: --largest does not read it; leave it out");
  if (listed->count() > 0 && !all && !json)
    bad_request("--best: only --all and --json list layouts; give one of them, or leave it out");
  if (loss > 0 && by != "loss")
    bad_request("--loss: only --by loss reads it; give --by loss, or leave it out");
  if (!mix.empty() && sweep.empty()) bad_request("--mix-svg: only --sweep reads it");
  if (largest && !svg.empty()) bad_request("--svg: --largest is a table; nothing is drawn");
}

namespace {

// Keys of a run file that no searched layout has.
void say_left_out(const LayoutSpec& l, bool searches_cuts) {
  const LayoutSpec plain;
  std::string keys;
  const auto add = [&](bool given, std::string_view key) {
    if (given) keys += fmt::format("{}layout.{}", keys.empty() ? "" : ", ", key);
  };
  add(l.tp_chunks != plain.tp_chunks, "tp_chunks");
  add(l.interleave != plain.interleave, "interleave");
  add(l.cp > 1 && l.cp_method != plain.cp_method, "cp_method");
  add(!searches_cuts && l.stage_layers != plain.stage_layers, "stage_layers");
  add(l.recompute_blocks != plain.recompute_blocks, "recompute_blocks");
  add(l.recompute == "selective" && l.recompute_tensors != plain.recompute_tensors, "recompute_tensors");
  if (!keys.empty())
    say("note: {}: searched layouts, and the run file that --out writes, have the default; plan and simulate "
        "price the run's own\n",
        keys);
}

}  // namespace

SearchRequest search_request(const SearchOptions& o, const PlanSubject& given_subject,
                             std::optional<RunSpec>& run) {
  SearchRequest q;
  const std::string_view asked = o.largest ? "--largest" : o.sweep.empty() ? "search" : "--sweep";
  PlanSubject subject = given_subject;
  const RequiredValues values = take_requirements(o, q);
  if (values.seq > 0 && subject.seq > 0 && values.seq != subject.seq)
    bad_request("--require seq_len={}: --seq is {}; give one of the two", values.seq, subject.seq);
  if (values.seq > 0) subject.seq = values.seq;
  if (!run && !subject.model.empty()) model_of(subject);  // an unknown name is the first fault
  refuse_missing(o, subject, run, asked);
  set_model(q, subject, run, asked);
  const int64_t given = subject.gpus > 0 ? subject.gpus : run ? run->world() : 0;
  set_cluster(q, subject, run, o.sweep.empty() ? given : swept(o.sweep).back(), asked);
  require_precision(q, values.precision);
  if (const std::string none = no_bf16_text(q.device, q.run->precision.compute); !none.empty())
    q.note += (q.note.empty() ? "" : "; ") + none;
  if (!o.as.empty()) require_stages(framework_named(o.as), q);
  if (run) refuse_types(q, run->precision, asked), run = q.run;
  set_types(q, q.run->precision);
  q.keys = searched_keys(with_expected_load(*q.run).layout);
  if (q.run->optimizer.name != "adamw")
    say("note: optimizer.name = \"{}\": the search prices AdamW's update; plan prices a layout with the "
        "run's own\n",
        q.run->optimizer.name);
  say_left_out(q.run->layout, q.site.kinds.size() > 1);
  set_sizes(q, o, subject);
  const PricedBy by = o.priced_by(q.device);
  q.fits = constants_of(by), q.constants = text_of(by);
  if (!o.as.empty() && by.software.empty())
    q.constants += fmt::format("{}{} has no measured constants: times are of trireme's own step",
                               q.constants.empty() ? "" : "; ", o.as);
  q.software = profile_of(by.software);
  q.attention = shipped_catalog().fused_attention_of(by.software);
  const ShapeExtras extras = extras_of(subject.model, q.software);
  q.window = extras.window;
  q.window_share = extras.window_share;
  q.expert_bias = extras.expert_bias;
  if (!o.as.empty()) trireme::refuse_types(framework_named(o.as), q);
  if (q.software.ordered()) q.fits = ordered_constants(q.fits);
  if (q.software.ordered() && o.as.empty()) q.kinds = DeviceKinds::of(q.site, q.gpus.back(), by, asked);
  set_interval(q, !by.software.empty());
  q.by = o.by == "step" ? RankBy::step : o.by == "cost" ? RankBy::cost : RankBy::loss;
  q.best = o.best, q.memory_share = o.memory_share;
  if (o.price > 0) {
    q.price = o.price;
    q.price_of_kinds = false;
    q.currency.clear();
  }
  q.reliability.spares = o.spares, q.reliability.restart_s = o.restart_s;
  q.reliability.repair_s = o.repair_h * 3600;
  const double n = active_parameters(q.model);
  q.loss = o.loss > 0 ? o.loss : chinchilla_loss(n, kTokensToSearch * n);
  if (q.by == RankBy::loss && !std::isfinite(chinchilla_tokens(n, q.loss)))
    bad_request("--loss: {} is below what a model of {:.3g} parameters ever reaches, {:.3f}", q.loss, n,
                chinchilla_loss(n, 1e30));
  refuse_hopeless(q);
  return q;
}

namespace {
void run_search(const SearchOptions& o, const PlanSubject& subject, const RunRequest& request) {
  std::optional<RunSpec> run;
  if (!request.file.empty()) {
    refuse_two_models(subject);
    run = load_run(request.file, request.sets);
    refuse_adapters(*run, "search");
  }
  SearchRequest q = search_request(o, subject, run);
  if (o.largest) {
    const std::vector<LargestRow> rows = trireme::largest(q);
    print_text("{}", o.json ? largest_json(q, rows) : largest_text(q, rows));
    return refuse_nothing(std::none_of(rows.begin(), rows.end(), [](const auto& r) { return r.any; }), "");
  }
  if (!o.sweep.empty()) {
    ShownLooks looks;
    const ConfirmRequest how{
        .most = o.confirm, .run = run, .by = o.priced_by(q.device), .progress = std::ref(looks)};
    const Sweep s = trireme::sweep(q, o.confirm > 0 ? &how : nullptr);
    if (!o.svg.empty()) write_text_atomic(o.svg, sweep_svg(q, s));
    if (!o.mix.empty()) write_text_atomic(o.mix, mix_svg(q, s));
    print_text("{}", o.json ? sweep_json(q, s) : sweep_text(q, s));
    return refuse_nothing(std::none_of(s.rows.begin(), s.rows.end(), [](const auto& r) { return r.any; }),
                          "");
  }
  print_search(o, q, run);
}

}  // namespace

void add_search(CLI::App& app) {
  CLI::App* verb = app.add_subcommand(
      "search",
      "finds the best layouts of a model on a number of devices: priced in closed form, the best replayed\n"
      "example: trireme search --model llama3-70B --cluster H100 --gpus 64 --global-batch 512 --seq 8192");
  auto request = std::make_shared<RunRequest>();
  request->add_to(*verb);
  verb->get_option("RUN")->required(false);
  auto subject = std::make_shared<PlanSubject>();
  subject->add_to(*verb);
  verb->get_option("--parameters")->group("");  // a size without a shape has no layouts
  auto options = std::make_shared<SearchOptions>();
  options->add_to(*verb);
  verb->callback([request, subject, options, verb] {
    options->json = request->json;
    options->reject_unread();
    refuse_sets_without_run(*request);
    refuse_size_of_shape(*verb);
    check_set_keys("search", *request);
    if (options->layouts() && searches_cpu(*request, *subject))
      return search_cpu(*verb, *options, *subject, *request);
    run_search(*options, *subject, *request);
  });
}

}  // namespace trireme::cli
