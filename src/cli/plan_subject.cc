#include "cli/plan_subject.h"

#include <fmt/ranges.h>

#include <array>
#include <charconv>

#include "base/say.h"
#include "catalog/catalog.h"
#include "cli/auto_layout.h"
#include "cost/flops.h"
#include "forecast/own_schedule.h"
#include "forecast/recompute.h"
#include "spec/complaint.h"
#include "spec/hf_config.h"
#include "spec/suggest.h"
#include "spec/toml.h"

namespace trireme::cli {
namespace {

constexpr const char* kUsualArch = "llama";
constexpr double kMostParameters = 1e18, kMostSeq = 1e9;

SubjectModel shaped(std::string name, ModelSpec m, int64_t seq) {
  constexpr int64_t kSeq = 4096;  // only learned positions are counted by it
  m.finish(seq > 0 ? seq : kSeq);
  const auto n = double(parameters(m));
  return {std::move(name), std::move(m), n};
}

SubjectModel named_model(const PlanSubject& s) {
  if (s.model.ends_with(".toml")) return shaped(s.model, load_run(s.model).model, s.seq);
  if (s.model.ends_with(".json")) return shaped(s.model, model_from_hf(s.model), s.seq);
  if (const KnownShape* k = shipped_catalog().shape_named(s.model))
    return shaped(k->names.front(), k->model, s.seq);
  std::vector<std::string> names;
  for (const KnownShape& k : shipped_catalog().shapes) names.push_back(k.names.front());
  const std::string near = suggest(s.model, names);
  if (!near.empty()) bad_request("--model: no \"{}\", did you mean {}?", s.model, near);
  bad_request("--model: no \"{}\"; right are a run file (.toml), a Hugging Face config.json, or one of: {}",
              s.model, fmt::join(names, ", "));
}

std::string arch_of(const PlanSubject& s) {
  return s.arch.empty() ? kUsualArch : s.arch;
}

ModelSpec shape_of_options(const PlanSubject& s) {
  if (s.layers == 0 || s.hidden == 0 || s.heads == 0)
    bad_request("--layers {}, --hidden {}, --heads {}: a shape needs these three", s.layers, s.hidden,
                s.heads);
  if (s.hidden % s.heads != 0) bad_request("--hidden: {} is no multiple of --heads {}", s.hidden, s.heads);
  if (s.kv_heads > 0 && s.heads % s.kv_heads != 0)
    bad_request("--kv-heads: {} does not divide --heads {}", s.kv_heads, s.heads);
  ModelSpec m = ModelSpec::of(arch_of(s));
  m.layers = s.layers, m.hidden = s.hidden, m.heads = s.heads;
  m.kv_heads = s.kv_heads, m.ffn = s.ffn;
  m.vocab = s.vocab > 0 ? s.vocab : 32000;
  return m;
}

// How a number with a unit behind it, 7B or 1.5k, is written without; empty where it is none.
std::string form_of(std::string_view text) {
  constexpr std::string_view kUnits = "kKmMgGbBtT";
  constexpr std::array kPowers = {3, 3, 6, 6, 9, 9, 9, 9, 12, 12};
  if (text.size() < 2) return "";
  const size_t unit = kUnits.find(text.back());
  if (unit == kUnits.npos) return "";
  const std::string_view digits = text.substr(0, text.size() - 1);
  double x = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), x);
  if (error != std::errc() || end != digits.data() + digits.size()) return "";
  return fmt::format("{}e{}", digits, kPowers[unit]);
}

}  // namespace

CLI::Validator number_between(double low, double high) {
  return CLI::Validator(
      [low, high](std::string& text) -> std::string {
        double x = 0;
        const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), x);
        if (error == std::errc() && end == text.data() + text.size() && x >= low && x <= high) return "";
        const std::string form = form_of(text);
        return fmt::format("{} is no number from {} to {}{}", text, low, high,
                           form.empty() ? "" : fmt::format("; {} is written {}", text, form));
      },
      "");
}

CLI::Validator named_file() {
  return CLI::Validator(
      [](std::string& text) { return text.empty() ? std::string("the name is empty; expected a file") : ""; },
      "");
}

void refuse_given(const CLI::App& verb, std::span<const char* const> names, std::string_view why) {
  for (const char* name : names)
    if (const CLI::Option* option = verb.get_option_no_throw(name); option && option->count() > 0)
      bad_request("{}: {}", name, why);
}

void refuse_size_of_shape(const CLI::App& verb) {
  static constexpr std::array kSize = {"--parameters"};
  if (verb.count("--model") > 0 || verb.count("--layers") > 0)
    refuse_given(verb, kSize, "the model's shape says it already; leave it out");
}

void refuse_sets_without_run(const RunRequest& request) {
  if (request.file.empty() && !request.sets.empty())
    bad_request("--set: {}: it changes a run file's keys, and RUN is not given", request.sets.front());
}

void PlanSubject::add_to(CLI::App& verb) {
  verb.add_option(
      "--model", model,
      "a model by name (llama3-70B, GPT3-175B, ...), a run file's, or a Hugging Face config.json");
  verb.add_option("--parameters", parameters, "of a model of which no more is known: 13e9")
      ->check(number_between(1, kMostParameters));
  verb.add_option("--arch", arch, "of a model given by its sizes")->default_str(kUsualArch);
  const auto size = [&](const char* name, int64_t& to, double most, const char* what) {
    verb.add_option(name, to, what)->check(number_between(1, most));
  };
  size("--layers", layers, kMaxLayers, "of a model given by its sizes: blocks");
  size("--hidden", hidden, kMaxWidth, "width of its residual stream");
  size("--heads", heads, kMaxWidth, "of its attention");
  size("--kv-heads", kv_heads, kMaxWidth, "heads of its keys and values (default: --heads)");
  size("--ffn", ffn, kMaxWidth, "width of its feed-forward (default: the architecture's)");
  size("--vocab", vocab, kMaxVocab, "tokens of its vocabulary (default: 32000)");
  verb.add_option("--cluster", cluster,
                  "a cluster file (.toml), or a device by name: H100, A100-80GB, B200, ...");
  size("--gpus", gpus, 1e9, "devices (default: 1, or the run's)");
  size("--seq", seq, kMostSeq, "tokens of a sequence");
  add_price_options(verb, prices, region);
}

void add_price_options(CLI::App& verb, std::string& prices, std::string& region) {
  verb.add_option("--prices", prices, "price table by device and --region (default: data/prices.toml)")
      ->type_name("FILE");
  verb.add_option("--region", region, "region whose price of a device-hour holds");
}

SubjectModel model_of(const PlanSubject& s) {
  SubjectModel m;
  if (!s.model.empty() && !s.arch.empty())
    bad_request("--arch: --model {} has its own; give one of the two", s.model);
  if (!s.model.empty())
    for (const auto& [name, n] :
         {std::pair{"--layers", s.layers}, std::pair{"--hidden", s.hidden}, std::pair{"--heads", s.heads},
          std::pair{"--kv-heads", s.kv_heads}, std::pair{"--ffn", s.ffn}, std::pair{"--vocab", s.vocab}})
      if (n > 0) bad_request("{}: --model {} has its own; give one of the two", name, s.model);
  if (!s.model.empty())
    m = named_model(s);
  else if (s.layers > 0 || s.hidden > 0 || s.heads > 0)
    m = shaped(arch_of(s), shape_of_options(s), s.seq);
  if (s.parameters > 0) m.parameters = s.parameters;
  if (m.name.empty()) m.name = "a model";
  return m;
}

ShapeExtras extras_of(const std::string& model, const SoftwareProfile& software) {
  const KnownShape* k = shipped_catalog().shape_named(model);
  if (!k || (k->window == 0 && !k->expert_bias)) return {};
  if (!software.ordered()) return {k->window, k->window_share, k->expert_bias};
  std::string what;
  if (k->window > 0)
    what = fmt::format("sliding windows of {} tokens in {:.0f} % of the layers", k->window,
                       100 * k->window_share);
  if (k->expert_bias) what += fmt::format("{}biases of experts", what.empty() ? "" : ", ");
  say("note: --model {}: trireme has no {}: not in this forecast, nor in the run file; --software prices "
      "them\n",
      model, what);
  return {};
}

namespace {

PlannedRun run_on_device(const RunRequest& request, const std::string& name) {
  PlannedRun p{.run = {}, .cluster = {}, .device = device_of(name, 0), .note = "", .asked = {}};
  const auto refused = [&](const char* key) {
    bad_request(
        "--cluster: {} is a device by name, and {} = \"auto\" is chosen by booking steps on a machine: "
        "give a cluster file (.toml), or the choice with --set",
        name, key);
  };
  const AutoWish wish = auto_wish_of(request);
  if (wish.any()) refused(wish.layout ? "layout" : "batch.micro");
  p.run = load_runnable(request.file, request.sets);
  refuse(p.run);
  if (p.run.layout.recompute == "auto") refused("layout.recompute");
  p.run = resolve(p.run, {.native_bf16 = true});
  if (p.run.precision.compute == "f32")
    bad_request(
        "--cluster: of {} the 16-bit peak is known, and precision.compute = \"f32\": give a cluster file "
        "(.toml), or --set precision.compute=bf16",
        name);
  tell_notes(p.run, request.file, false);
  return p;
}

}  // namespace

void refuse_adapters(const RunSpec& run, std::string_view what) {
  if (run.lora.active())
    bad_request(
        "lora.rank = {}: {} is for runs that train all weights; plan RUN alone, or give --set "
        "lora.rank=0",
        run.lora.rank, what);
}

PlannedRun planned_run(RunRequest request, const std::string& cluster, const Measuring& how) {
  // A run on GPUs is booked on a device by name as on a cluster file.
  if (is_device_name(cluster) &&
      (auto_wish_of(request).any() || load_run(request.file, request.sets).train.device != "cuda"))
    return run_on_device(request, cluster);
  if (!cluster.empty()) request.sets.push_back("cluster.file=" + toml_string(cluster));
  ChosenRun chosen = load_or_choose(request, false);
  // GPUs of a cluster file are elsewhere, and so is the disk of their checkpoints.
  tell_notes(chosen.run, request.file, chosen.run.cluster.file.empty() || chosen.run.train.device == "cpu");
  PlannedRun p{std::move(chosen.run), {}, {}, std::move(chosen.note), chosen.asked};
  p.cluster = cluster_of(p.run, how);
  if (p.cluster.name.empty()) p.cluster.name = p.run.cluster.file;
  p.device = device_of(p.cluster, p.run.precision.compute, p.run.world());
  return p;
}

void settle(PlannedRun& p) {
  find_own_schedule(p.run, p.cluster);
  p.run = choose_recompute(p.run, p.cluster, rank_threads_of(p.run));
}

}  // namespace trireme::cli
