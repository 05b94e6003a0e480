// trireme tune MODEL --chat FILE --out RUN: supervised fine-tuning of all weights, or of adapters of low
// rank. It writes shards and a run file, and trains by that file. So the run resumes, and is planned,
// evaluated and exported, like any other.
#include <algorithm>
#include <cmath>

#include "base/counted.h"
#include "base/say.h"
#include "checkpoint/peft.h"
#include "cli/cli.h"
#include "cli/convert.h"
#include "cli/kept_options.h"
#include "cli/training.h"
#include "cli/tune.h"
#include "data/whole_windows.h"
#include "model/adapters.h"
#include "model/build.h"
#include "spec/hf_config.h"
#include "spec/toml.h"
#include "train/adapter_files.h"
#include "train/run_lock.h"

namespace trireme::cli {
namespace {

using nlohmann::ordered_json;

constexpr double kLr = 2e-5, kLoraLr = 2e-4;
constexpr char kOptions[] = "tune.json";
constexpr char kHead[] = "# Written by `trireme tune`; `trireme train` takes it too, on any layout.\n";
constexpr int64_t kSeqLen = 1024;  // default, if the model has as many positions

int64_t seq_len_of(const TuneRequest& r) {
  const ModelSpec model = model_from_hf(fs::path(r.model) / "config.json");
  if (r.seq_len > 0) return r.seq_len;
  return model.max_positions > 0 ? std::min(kSeqLen, model.max_positions) : kSeqLen;
}

// Steps of r.epochs, rounded up.
int64_t steps_of(const TuneRequest& r, const fs::path& shard, int64_t seq_len) {
  TokenShard s = TokenShard::open(shard);
  s.know_documents();
  const WholeWindows windows(s, seq_len);
  return std::max<int64_t>(1, int64_t(std::ceil(r.epochs * double(windows.count()) / double(r.batch))));
}

// The adapter's own rank, alpha and matrices, if one is given.
LoraSpec lora_of(const TuneRequest& r) {
  LoraSpec l;
  l.rank = r.rank;
  l.alpha = r.alpha > 0 ? r.alpha : 2 * double(r.rank);
  if (!r.targets.empty()) l.targets = Texts::of(r.targets);
  if (r.adapter.empty()) return l;
  const ModelSpec model = model_from_hf(fs::path(r.model) / "config.json");
  const PeftFolder found(r.adapter, model);
  std::vector<std::string> all;
  for (const PeftPlace& p : peft_places(model)) all.push_back(p.ours);
  l.rank = found.config().rank;
  l.alpha = found.config().alpha;
  l.targets = Texts::of(target_patterns(found.matrices(), all));
  l.adapter = r.adapter;
  return l;
}

std::string lora_text(const LoraSpec& l) {
  if (!l.active()) return "";
  std::string targets;
  for (const std::string& t : l.targets) targets += (targets.empty() ? "" : ", ") + toml_string(t);
  return fmt::format("[lora]\nrank = {}\nalpha = {}\ntargets = [{}]\nadapter = {}\n\n", l.rank,
                     toml_number(l.alpha), targets, toml_string(l.adapter));
}

}  // namespace

std::string tune_file_text(const TuneRequest& r, int64_t steps) {
  const fs::path data = fs::path(r.out) / "data";
  const int64_t seq_len = seq_len_of(r);
  const int64_t micro = r.batch % 4 == 0 ? 4 : r.batch % 2 == 0 ? 2 : 1;
  const bool valid = fs::exists(data / "valid.idx");
  std::string text = kHead;
  text += fmt::format(
      "[model]\nfrom = {}\n\n[data]\n"
      "train = {}\nvalid = {}\ntokenizer = {}\nseq_len = {}\ndocuments = \"whole\"\n\n[batch]\nglobal = "
      "{}\nmicro = {}\n\n",
      toml_string(r.model), toml_string((data / "train").string()),
      valid ? toml_string((data / "valid").string()) : "[]", toml_string((data / "tokenizer.json").string()),
      seq_len, r.batch, micro);
  const LoraSpec lora = lora_of(r);
  const double lr = r.lr > 0 ? r.lr : lora.active() ? kLoraLr : kLr;
  text += lora_text(lora);
  text += fmt::format(
      "[optimizer]\nlr = {:g}\nmin_lr = {:g}\nwarmup = {}\nweight_decay = 0.0\n\n[train]\nsteps = {}\ndir = "
      "{}\n",
      lr, lr / 10, std::max<int64_t>(1, steps * 3 / 100), steps, toml_string(r.out));
  return text;
}

namespace {

bool is_hf_folder(const fs::path& folder) {
  std::error_code none;
  return fs::is_regular_file(folder / "config.json", none);
}

// The folder of the base model: MODEL, or the newest checkpoint of the run that MODEL names, exported into
// OUT/base.
std::string base_folder(const TuneRequest& r) {
  if (is_hf_folder(r.model)) return r.model;
  if (!fs::exists(r.model) && r.model.find('@') == std::string::npos)
    bad_request("{}: there is no such model; MODEL is a Hugging Face folder, a run file or a run folder",
                r.model);
  RunRequest request;
  request.file = r.model;
  UsedRun used = load_used(request);
  used.run.precision.compute = used.run.precision.grads = "f32";  // as the master copies that are exported
  const fs::path base = fs::path(r.out) / "base";
  export_model(load_model(used.run, 0, used.checkpoint), base, DType::f32);
  return base.string();
}

// The request that the run file and its data follow from. A file that is gone has no digest: a run that has
// its shards needs it no more.
ordered_json options_json(const TuneRequest& r) {
  ordered_json digests = ordered_json::array();
  std::error_code none;
  bool all = true;
  for (const std::string& f : r.chat.files) {
    all = all && fs::is_regular_file(f, none);
    if (all) digests.push_back(digest_of(f));
  }
  const std::string& t = r.chat.chat_template;
  return {{"model", r.model},
          {"chat", r.chat.files},
          {"chat_xxh3", all ? digests : ordered_json()},
          {"chat_template", t},
          {"chat_template_xxh3", fs::is_regular_file(t, none) ? ordered_json(digest_of(t)) : ordered_json()},
          {"hold_out", r.chat.hold_out},
          {"skip_bad_lines", r.chat.skip_bad_lines},
          {"epochs", r.epochs},
          {"lr", r.lr},
          {"lora_rank", r.rank},
          {"lora_alpha", r.alpha},
          {"lora_targets", r.targets},
          {"adapter", r.adapter},
          {"batch", r.batch},
          {"seq_len", r.seq_len}};
}

// Refuses a folder of something else before a file in it changes.
void refuse_occupied(const fs::path& out) {
  constexpr std::string_view kOwn[] = {kOptions, "data", "base", "lock"};
  std::error_code none;
  if (fs::exists(out / "tune.toml", none)) return;
  const bool begun = fs::exists(out / kOptions, none);
  for (const std::string& name : names_in(out))
    if (std::find(std::begin(kOwn), std::end(kOwn), name) == std::end(kOwn) || (!begun && name != "lock"))
      bad_request("--out {}: holds {:?}, which no `trireme tune` has begun; give a new or empty folder",
                  out.string(), name);
}

void refuse_contradictions(const TuneRequest& r) {
  if (r.chat.files.empty()) bad_request("tune: no --chat FILE");
  if (!r.adapter.empty() && (r.rank > 0 || r.alpha > 0 || !r.targets.empty()))
    bad_request("--adapter: its files give rank, alpha and targets; leave --lora-* out");
  if (r.rank == 0 && (r.alpha > 0 || !r.targets.empty()))
    bad_request("--lora-alpha and --lora-targets belong to adapters; give --lora-rank too");
}

// The run file, checked as `train` checks it. --set becomes part of it.
std::string checked_run_file(const TuneRequest& r, const fs::path& file, int64_t steps) {
  const std::string text = tune_file_text(r, steps);
  const RunSpec run = parse_run(text, file.string(), r.sets, {.nearest = true});
  refuse(run);
  if (run.lora.active())
    refuse_idle_targets(build_stage(run.model, {.first = 0, .last = run.model.layers}).declare(), run.lora);
  return r.sets.empty() ? text : std::string(kHead) + save_run(run);
}

void write_run(TuneRequest r, const fs::path& file) {
  const fs::path out = r.out, data = out / "data";
  const ordered_json options = options_json(r);
  write_text_atomic(out / kOptions, options.dump(2) + "\n");
  r.model = base_folder(r);
  (void)checked_run_file(r, file, 1);  // before hours of work on the data
  fs::remove_all(data);
  ChatRequest chat = r.chat;
  chat.out = data.string();
  chat.tokenizer = (fs::path(r.model) / "tokenizer.json").string();
  chat.report_on_stderr = r.json;
  tokenize_chat(chat);
  write_text_atomic(file, checked_run_file(r, file, steps_of(r, data / "train", seq_len_of(r))));
}

// OUT/adapter, in PEFT's format.
void write_trained_adapter(const RunRequest& request, const fs::path& out) {
  RunSpec run = request.load();
  if (!run.lora.active()) return;
  run.precision.compute = run.precision.grads = "f32";
  const LoadedModel m = load_model(run);
  write_adapter(*m.runner, out / "adapter");
  if (!request.json) print_text("adapter in PEFT's format: {}\n", (out / "adapter").string());
}

void tune(const TuneRequest& r) {
  const fs::path out = r.out, file = out / "tune.toml";
  refuse_contradictions(r);
  refuse_occupied(out);
  {
    const RunLock lock(out);  // the trainer takes it next
    std::error_code none;
    if (!fs::is_regular_file(file, none)) {
      write_run(r, file);
    } else if (fs::is_regular_file(out / kOptions, none)) {
      refuse_other_options(r.out, out / kOptions, options_json(r));
      if (!r.json) say("note: {} exists: this run resumes by it\n", file.string());
    } else if (!r.json) {
      say("note: {} exists without {}: this run resumes by it, and other options are not compared\n",
          file.string(), kOptions);
    }
  }
  RunRequest request;
  request.file = file.string();
  request.sets = r.sets;
  request.json = r.json;
  train_here(request, {});
  write_trained_adapter(request, out);
}

}  // namespace

void add_tune(CLI::App& app) {
  CLI::App* verb = app.add_subcommand(
      "tune",
      "fine-tunes a model on conversations, all weights or adapters (LoRA): tokenizes them, writes "
      "RUN/tune.toml, and trains by it; the same "
      "command resumes\nexample: trireme tune models/smollm2 --chat talks.jsonl --out runs/tuned");
  auto r = std::make_shared<TuneRequest>();
  verb->add_option("MODEL", r->model, "Hugging Face folder, run file, run folder, RUN@STEP or RUN@best")
      ->required();
  verb->add_option("--chat", r->chat.files,
                   "JSON Lines of conversations, as `tokenize --chat` takes (may be repeated)")
      ->allow_extra_args(false);
  verb->add_option("--chat-template", r->chat.chat_template,
                   "Jinja file that renders conversations; default: the model's");
  verb->add_option("--out", r->out, "run folder; its data and run file go there too")->required();
  verb->add_option("--epochs", r->epochs, "passes over the conversations")
      ->capture_default_str()
      ->check(CLI::Range(1e-3, 1e6));
  verb->add_option("--lr", r->lr, "peak learning rate (default: 2e-5, with adapters 2e-4)")
      ->check(CLI::Range(1e-12, 1e3));
  verb->add_option(
          "--lora-rank", r->rank,
          "trains adapters of this rank (LoRA) and no other weight; RUN/adapter has them in PEFT's format "
          "(default: 0, all weights are trained)")
      ->check(CLI::Range(int64_t(1), int64_t(65536)));
  verb->add_option("--lora-alpha", r->alpha,
                   "an adapter's product is multiplied by alpha / rank (default: twice the rank)")
      ->check(CLI::Range(1e-6, 1e6));
  verb->add_option(
          "--lora-targets", r->targets,
          "pattern of names of matrices with an adapter, such as '*.attn.q' (default: '*'; may be repeated)")
      ->allow_extra_args(false);
  verb->add_option("--adapter", r->adapter,
                   "adapter in PEFT's format that training starts from (default: a new one)");
  verb->add_option("--batch", r->batch, "sequences per step")
      ->capture_default_str()
      ->check(CLI::Range(int64_t(1), int64_t(1) << 20));
  verb->add_option("--seq-len", r->seq_len,
                   "tokens of a sequence; default: 1024, or the model's positions if fewer")
      ->check(CLI::Range(int64_t(2), int64_t(1) << 24));
  verb->add_option("--hold-out", r->chat.hold_out, "share of the conversations for evaluation; 0 = none")
      ->capture_default_str()
      ->check(CLI::Range(0.0, 0.9));
  verb->add_flag(
      "--skip-bad-lines", r->chat.skip_bad_lines,
      "leaves out lines that cannot be read or rendered, and counts them; default: the first is an error");
  verb->add_option("--set", r->sets, "key=value of the run file, as for `train` (may be repeated)")
      ->allow_extra_args(false);
  verb->add_flag("--json", r->json, "prints the result as JSON");
  verb->callback([r] { tune(*r); });
}

}  // namespace trireme::cli
