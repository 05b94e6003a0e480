// trireme demo: the main job on this machine, from text to a trained model, in one command.
#include <array>
#include <cmath>
#include <numbers>
#include <numeric>
#include <sstream>

#include "base/counted.h"
#include "base/interrupt.h"
#include "base/json.h"
#include "base/learning_curve.h"
#include "base/machine.h"
#include "base/say.h"
#include "base/shell_word.h"
#include "base/timed.h"
#include "cli/controls.h"
#include "cli/convert.h"
#include "cli/prepare.h"
#include "cli/prompts.h"
#include "cli/report_page.h"
#include "cli/training.h"
#include "cli/try_change.h"
#include "generate/generate.h"
#include "spec/run_schedule.h"
#include "text/king_james.h"
#include "text/unicode.h"
#include "train/batches.h"

namespace trireme::cli {
namespace {

constexpr double kProbeSeconds = 5,
                 kDemoSeconds = 290;  // of timing steps; of the whole demo, if it can be helped
constexpr int64_t kFewestSteps = 100, kMostSteps = 4000;
// The size of the demo's vocabulary. In minutes a small model learns more bits of a text from many short
// tokens than from few long ones (bench/demo_recipe.py).
constexpr int64_t kVocab = 1024;
constexpr double kBusy = 0.1;                        // share of the processors, others'
constexpr double kLonger = 15;                       // minutes that beat the control on a slow machine too
constexpr double kTrySeconds = 14;                   // for steps with and without a change
constexpr double kAfterTraining = 20 + kTrySeconds;  // evaluation, samples, export

struct DemoRequest {
  std::string text, dir = "runs/demo";
  double begin_s = now_s();
  double minutes = 3.25;  // of training: the whole demo stays below five
  bool minutes_given = false;
};

void heading(int n, std::string_view what) {
  tell("\n[{}/7] {}\n", n, what);
}

void leave_demo_if_interrupted() {
  if (interrupt_requested())
    throw Error("interrupted; the same command goes on from here", Fault::interrupted);
}

void banner(const DemoRequest& r) {
  tell("trireme demo: text -> tokenizer -> shards -> training -> evaluation -> text, in {}\n", r.dir);
}

struct DemoText {
  fs::path folder;
  std::string name;  // with the folder
  CorpusOptions options;
};

DemoText text_of(const DemoRequest& r) {
  if (!r.text.empty()) {
    const fs::path folder = fs::weakly_canonical(r.text);
    return {folder, folder.string(), {}};
  }
  const fs::path prose = fs::weakly_canonical(fs::path(r.dir) / "text");
  if (write_king_james(prose))
    return {prose,
            "the King James Bible (Debian's bible-kjv), now in " + (fs::path(r.dir) / "text").string(),
            {}};
  const fs::path folder = python_stdlib_folder();
  return {folder, "Python's standard library in " + folder.string(), {.extensions = {".py"}}};
}

// ---- 1, 2: text, tokenizer, shards: once, marked by prepared.json ----
void prepare(const DemoRequest& r) {
  fs::path dir = r.dir, mark = dir / "prepared.json";
  if (fs::exists(mark)) {
    auto j = nlohmann::json::parse(read_text(mark), nullptr, false);
    std::string from = j.is_object() ? j.value("text", "") : "";
    if (!r.text.empty() && fs::weakly_canonical(r.text).string() != from)
      bad_request("{} was made from {}, not {}: choose another --dir, or remove it to start afresh", r.dir,
                  from, r.text);
    banner(r);
    heading(1, "text and tokenizer: done before");
    tell("      {}\n", from);
    heading(2, "token shards: done before");
    return;
  }
  const DemoText text = text_of(r);
  Corpus all = gather_corpus(text.folder, text.options);
  auto [train, valid] = hold_out(all, 0.04);
  make_folders(dir / "data");
  banner(r);  // not before it is clear that there is something to do
  heading(1, "gather text and learn a tokenizer");
  tell("      {}, {} of {}; {} held out ({})\n", counted(all.files.size(), "file"), human_bytes(all.bytes),
       text.name, counted(valid.files.size(), "file"), human_bytes(valid.bytes));
  if (const std::string skipped = to_text(all.skipped); !skipped.empty()) tell("      {}\n", skipped);
  Tokenizer t = train_tokenizer(texts_of(train), {.vocab = kVocab, .threads = threads_of(RunSpec())});
  leave_demo_if_interrupted();
  t.save(dir / "tokenizer.json");
  write_text_atomic(dir / "tokenizer_config.json", t.config_json(256));
  heading(2, "encode into token shards");
  int threads = threads_of(RunSpec());
  Encoded a = encode_corpus(t, train, dir / "data/train", threads, "encode");
  leave_demo_if_interrupted();
  Encoded b = encode_corpus(t, valid, dir / "data/valid", threads, "encode what is held out");
  tell("      {} tokens to train on, {} held out; a token is {:.2f} bytes of text\n", a.tokens, b.tokens,
       double(a.bytes) / double(std::max<int64_t>(1, a.tokens)));
  nlohmann::ordered_json j = {{"text", text.folder.string()}, {"own", !r.text.empty()},
                              {"files", all.files.size()},    {"bytes", all.bytes},
                              {"train_tokens", a.tokens},     {"valid_tokens", b.tokens},
                              {"valid_bytes", b.bytes}};
  write_text_atomic(mark, j.dump(2) + "\n");
}

// ---- 3: the run file, its number of steps fitted to the time ----
struct DemoSize {
  int64_t layers, hidden, heads, ffn;
  double lr, momentum;
};
// From the largest. A machine takes the largest whose steps, kEnoughSteps or more, fit into the time: a
// smaller model that reads more text beats a larger one that reads little.
constexpr DemoSize kSizes[] = {
    {6, 256, 4, 672, 4e-3, 0.9}, {4, 192, 4, 512, 6e-3, 0.9}, {4, 128, 4, 336, 8e-3, 0.9}};
constexpr int64_t kEnoughSteps = 500;

RunSpec demo_spec(const fs::path& dir, int64_t vocab, const DemoSize& size) {
  RunSpec run;
  run.model = ModelSpec::of("qwen3");
  run.model.vocab = vocab;
  run.model.layers = size.layers;
  run.model.hidden = size.hidden;
  run.model.heads = size.heads;
  run.model.kv_heads = 2;
  run.model.ffn = size.ffn;
  run.model.tied = true;
  run.data.train = (dir / "data/train").string(), run.data.valid = (dir / "data/valid").string();
  run.data.tokenizer = (dir / "tokenizer.json").string();
  // Muon reaches a loss in far fewer tokens than AdamW here, and a small batch gives it more steps in the
  // same minutes.
  run.batch.global = 8;
  run.batch.micro = 8;
  run.optimizer.name = "muon";
  run.optimizer.lr = size.lr;
  run.optimizer.momentum = size.momentum;
  run.optimizer.schedule = "linear";
  run.optimizer.warmup = 20;
  run.train.dir = dir.string(), run.train.checkpoint_every.count = 100;
  return run;
}

// Runs real steps with throw-away weights for some seconds; returns seconds of one. On a busy machine steps
// differ: the mean counts the slow ones, which a median of a few would pass over, and the run has to live
// with them.
double measured_step(const RunSpec& run) {
  int threads = threads_of(run);
  Schedule schedule = schedule_of(run);
  auto device = make_device(run.train.device, {.threads = threads});
  Batches batches(run);
  StageRunner r(run, RunMode::train, *device, book_training(run, schedule, threads).arena_bytes);
  r.init_weights();
  std::vector<double> seconds;
  FillBatch fill = batches.training();
  constexpr int64_t kFewest = 6, kMost = 60, kWarmUp = 2;
  double begin = now_s();
  for (int64_t s = 1; s <= kFewest || (s <= kMost && now_s() - begin < kProbeSeconds); s++)
    seconds.push_back(r.step(schedule.ranks[0], s, batches.targets_of(s), fill).seconds);
  double sum = std::accumulate(seconds.begin() + kWarmUp, seconds.end(), 0.0);
  return sum / double(seconds.size() - kWarmUp);
}

// The run file begins with what its number of steps was chosen for.
constexpr std::string_view kChosenFor = "# trireme demo --minutes ";

// A run's number of steps is fixed when it starts.
void refuse_other_minutes(const DemoRequest& r, const fs::path& run_file, int64_t steps) {
  const std::string text = read_text(run_file);
  const std::string chosen = fmt::format("{}{:g}", kChosenFor, r.minutes);
  if (!r.minutes_given || text.substr(0, text.find('\n')) == chosen) return;
  bad_request(
      "--minutes {:g}: {} has a run of {} steps already, and what a run computes is fixed: give "
      "another --dir, such as --dir {}-{:g}",
      r.minutes, r.dir, steps, r.dir, r.minutes);
}

// A text that is read more often is known by heart.
constexpr double kManyEpochs = 8;
// How often training reads each token of its text.
double epochs_of(const RunSpec& run) {
  const double tokens = double(TokenShard::open(run.data.train.first()).tokens());
  return double(run.train.steps * run.tokens_per_step()) / std::max(1.0, tokens);
}

RunSpec make_run_file(const DemoRequest& r) {
  fs::path dir = r.dir, path = dir / "run.toml";
  auto load = [&] {
    RunSpec run = load_run(path);
    refuse_unsupported(run);
    return resolve(run, {.native_bf16 = make_device(run.train.device)->native(DType::bf16)});
  };
  if (fs::exists(path)) {
    const RunSpec run = load();
    refuse_other_minutes(r, path, run.train.steps);
    return run;
  }
  Tokenizer t = Tokenizer::load(dir / "tokenizer.json");
  const auto run_of = [&](const DemoSize& size) {
    RunSpec spec = demo_spec(dir, t.vocab_size(), size);
    spec.model.finish(spec.data.seq_len);
    return resolve(spec, {.native_bf16 = make_device("cpu")->native(DType::bf16)});
  };
  tell(
      "      timing some steps with throw-away weights, about {:.0f} s: they say how many fit into the "
      "time\n",
      kProbeSeconds);
  std::fflush(stdout);
  const OthersCpu others;
  RunSpec run;
  double step_s = 0;
  double training = 0;
  for (const DemoSize& size : kSizes) {
    if (r.minutes < 1 && &size != std::end(kSizes) - 1) continue;  // a try: the smallest
    run = run_of(size);
    step_s = measured_step(run);
    // Where reading and encoding took long, training takes less of the demo's time. Chosen once: it goes into
    // the run file, so an interrupted demo continues with the same learning rates.
    const double left = kDemoSeconds - kAfterTraining - (now_s() - r.begin_s);
    training = r.minutes * 60 < kDemoSeconds ? std::min(r.minutes * 60, left) : r.minutes * 60;
    if (training / step_s >= kEnoughSteps) break;
  }
  if (const double busy = others.share(); busy > kBusy)
    tell(
        "      other processes had {:.0f} % of the processors meanwhile: steps take longer, fewer fit, and "
        "the "
        "model learns less\n",
        100 * busy);
  run.train.steps = std::clamp<int64_t>(int64_t(training / step_s), kFewestSteps, kMostSteps);
  run.optimizer.warmup = std::min<int64_t>(run.optimizer.warmup, run.train.steps / 5);
  const bool fewest = run.train.steps == kFewestSteps && training < step_s * double(kFewestSteps);
  tell("      a step takes {}, so training gets {} steps{}: about {}\n", human_seconds(step_s),
       run.train.steps, fewest ? ", which is the least" : "",
       human_seconds(step_s * double(run.train.steps)));
  if (const double epochs = epochs_of(run); epochs > kManyEpochs)
    tell("      the text is small: they read it {:.0f} times, and the model will know it by heart\n", epochs);
  run.train.trace_steps = "20-22";  // for the utilisation in its report
  write_text_atomic(path, fmt::format("{}{:g}\n{}", kChosenFor, r.minutes, save_run(run)));
  return load();
}

// ---- 5, 6: comparison, samples, export ----

// At most so many bytes, without the part of a character that they end in (or the tokens did).
std::string whole_characters(std::string text, size_t most) {
  text.resize(std::min(text.size(), most));
  for (int i = 0; i < 3 && !text.empty() && !is_utf8(text); i++) text.pop_back();
  return text;
}

struct Prompting {
  std::array<std::string, 2> samples;
  std::string next;  // for somebody to try
};

// Python's own words where the held-out text is Python; of any other text some that stand in it.
Prompting prompting_of(const RunSpec& run, const Tokenizer& t) {
  constexpr int64_t kLooked = 1 << 15;
  constexpr size_t kWords = 4, kLongest = 60;  // bytes: of a text without blanks a word would be all
  const TokenShard held_out = TokenShard::open(run.data.valid.first());
  const auto text_at = [&](int64_t begin, int64_t count) {
    std::vector<int32_t> ids(size_t(std::min(count, held_out.tokens() - begin)));
    held_out.read(begin, ids, run.model.vocab);
    std::erase(ids, t.find_end_of_text().value_or(-1));
    return t.decode(ids);
  };
  const std::string head = text_at(0, kLooked);
  if (head.find("\ndef ") != head.npos && head.find("\nclass ") != head.npos)
    return {{"def main(", "class "}, "def read("};
  Prompting p;
  for (size_t i = 0; i < 2; i++) {
    std::istringstream text(text_at(int64_t(i) * held_out.tokens() / 2, 200));
    size_t n = 0;
    std::string word;
    if (i > 0) std::getline(text, word);  // the end of a line
    if (!text || text.peek() == EOF) text.clear(), text.seekg(0), text >> word;
    while (n++ < kWords && text >> word) p.samples[i] += (n == 1 ? "" : " ") + word;
    p.samples[i] = whole_characters(p.samples[i], kLongest);
    if (p.samples[i].empty()) p.samples[i] = p.samples[0];
  }
  p.next = p.samples[0];
  return p;
}

// What names the text that a folder was made from, for the same in another: nothing where it is the usual
// one.
std::string text_option(const fs::path& dir) {
  const auto j = nlohmann::json::parse(read_text(dir / "prepared.json"), nullptr, false);
  if (!j.is_object() || !j.value("own", false)) return "";
  return " --text " + shell_word(j.value("text", ""));
}

void show_samples(const RunSpec& run, const Tokenizer& t, const std::array<std::string, 2>& prompts) {
  const GenerateOptions o{.sample = {.temperature = 0.7, .top_k = 50, .top_p = 0.95, .seed = 7},
                          .tokens = 70,
                          .context = run.data.seq_len,
                          .end_of_text = t.end_of_text(),
                          .vocab = t.vocab_size(),
                          .parallel = 2};
  const Prompts ids = encode_prompts(t, {prompts[0], prompts[1]});
  LoadedModel m = load_model(run, book_generation(run, threads_of(run), generation_shape(ids, o)));
  std::string texts[2];
  GenerateHooks hooks;
  hooks.done = [&](size_t i, const Generated& g) { texts[i] = t.decode(g.tokens); };
  generate(*m.runner, ids, o, hooks);
  for (size_t i = 0; i < 2; i++) {
    std::string text = prompts[i] + texts[i];
    tell("      | ");
    for (char c : text)
      if (c == '\n')
        tell("\n      | ");
      else
        std::putchar(c);
    tell("\n      --\n");
  }
}

// How to call this very program from here: it is seldom on the path.
std::string program() {
  std::error_code ec;
  fs::path self = fs::read_symlink("/proc/self/exe", ec);
  if (ec) return "trireme";
  fs::path near = fs::relative(self, ec);
  return ec || near.empty() || near.native().starts_with("..") ? self.string() : near.string();
}

// Of a model that loses to the control: what it knows by heart does not get better by more steps.
std::string advice(const RunSpec& run, const TrainSummary& trained) {
  if (const double epochs = epochs_of(run); epochs > kManyEpochs)
    return fmt::format(
        "; it has read its {} tokens {:.0f} times and knows them by heart (loss {:.4f} in training): it "
        "wants "
        "more text, such as another --text, not more time",
        TokenShard::open(run.data.train.first()).tokens(), epochs, trained.loss);
  return fmt::format("; longer: {} demo{} --minutes {:g} --dir {}-{:g}", program(),
                     text_option(run.train.dir), kLonger, run.train.dir, kLonger);
}

// Returns 0 if the folder was prepared by a version that did not record the bytes.
double held_out_tokens_per_byte(const fs::path& dir) {
  const auto j = nlohmann::json::parse(read_text(dir / "prepared.json"), nullptr, false);
  if (!j.is_object()) return 0;
  const double bytes = j.value("valid_bytes", 0.0);
  return bytes > 0 ? j.value("valid_tokens", 0.0) / bytes : 0;
}

// One line per predictor, from the one that knows least. "1 in N": as unsure as of N equally likely tokens.
void compare(const RunSpec& run, const Controls& c, double loss) {
  const double tokens_per_byte = held_out_tokens_per_byte(run.train.dir);
  tell("      {} held-out tokens, which training never saw. How well is the next one guessed?\n\n", c.tokens);
  tell("      {:<34} {:>14} {:>9} {:>10}\n", "knowing", "nats per token", "1 in",
       tokens_per_byte > 0 ? "bits/byte" : "");
  const auto line = [&](std::string_view name, double nats) {
    tell("      {:<34} {:>14.4f} {:>9.1f}", name, nats, std::exp(nats));
    if (tokens_per_byte > 0) tell(" {:>10.3f}", nats * tokens_per_byte / std::numbers::ln2);
    tell("\n");
  };
  line("nothing", c.uniform);
  line("how frequent each token is (unigram)", c.unigram);
  line("the token before (bigram)", c.bigram);
  line("the text before (trained model)", loss);
  tell(
      "\n      less is better: at 1 in N the guess is as unsure as between N equally likely tokens. The "
      "bigram is\n"
      "      interpolated Kneser-Ney\n");
}

// The keys that divide the same batch otherwise; no diagnosis asks for them. Empty: it cannot be divided.
std::vector<std::string> other_division(const RunSpec& run) {
  if (run.world() > 1 || run.batch.global % 2 != 0) return {};
  std::vector<std::string> sets = {fmt::format("batch.micro={}", run.batch.global / 2)};
  if (threads_of(run) > 1) sets.insert(sets.begin(), "layout.dp=2");
  return sets;
}

// ---- 7: what the report advises, tried ----
void try_advice(const RunSpec& run, double seconds) {
  heading(7, "ask the report what to change, and try it");
  const fs::path dir = run.train.dir;
  const ReportInput in = report_input(dir);
  const std::vector<Diagnosis> all = diagnose(in);
  std::vector<const Diagnosis*> found;
  for (const Diagnosis& d : all)
    if (d.found) found.push_back(&d);
  tell("      the report looked for {} of lost time in this run and found {}\n", counted(all.size(), "cause"),
       found.empty() ? "none that takes 3 % of a step" : "these:");
  for (const Diagnosis* d : found) tell("      - {} ({})\n", d->title, d->number);
  if (const RunEvent* before = in.record.last_event("tried")) {
    tell("      tried before: {}\n", before->all.value("text", ""));
    return;
  }
  const auto best = std::find_if(found.begin(), found.end(), [](const Diagnosis* d) { return set_of(*d); });
  const bool advised = best != found.end();
  const std::vector<std::string> sets = advised ? std::vector{*set_of(**best)} : other_division(run);
  if (sets.empty()) return;
  if (!advised)
    tell("      {}\n",
         found.empty() ? "so it advises no change. Is that right? Here is the same batch, divided otherwise:"
                       : "no key of the run file changes that. Here is the same batch, divided otherwise:");
  tell("      {}{}: some steps with it and without, by turns, about {:.0f} s\n",
       advised ? "the change that promises most is " : "", fmt::join(sets, " "), seconds);
  std::fflush(stdout);
  const TriedChange tried = try_change(dir, sets, seconds);
  const std::string text = tried_text(tried, advised ? (*best)->gain_share : tried.planned_gain());
  tell("      {}\n", text);
  keep_tried(dir, tried, text);
}

void results(const RunSpec& run, const TrainSummary& trained, const Controls& controls, double try_s) {
  heading(5, "compare with models that need no training");
  RunSpec f32 = run;
  EvalResult e = evaluate_shard(*load_model(run).runner, run, run.data.valid.first());
  leave_demo_if_interrupted();
  compare(run, controls, e.loss);
  const bool beats = e.loss < controls.bigram;
  tell("      the model {} the bigram by {:.3f} nats: it chooses among {:.1f} tokens in place of {:.1f}",
       beats ? "beats" : "loses to", std::fabs(controls.bigram - e.loss), std::exp(e.loss),
       std::exp(controls.bigram));
  tell("{}\n", beats ? "" : advice(run, trained));
  heading(6, "sample, and export for Hugging Face");
  const Tokenizer tokenizer = Tokenizer::load(run.data.tokenizer);
  const Prompting prompting = prompting_of(run, tokenizer);
  show_samples(run, tokenizer, prompting.samples);
  f32.precision.compute = f32.precision.grads = "f32";
  fs::path dir = run.train.dir, hf = dir / "hf";
  export_model(load_model(f32), hf, DType::f32);
  try_advice(run, try_s);
  tell("\nEverything is in {}:\n", dir.string());
  tell("  run.toml            the run, every key\n");
  tell("  metrics.jsonl       one line a step: loss, tokens/s, MFU, memory by bucket, time by part\n");
  tell("  forecast.json       what `plan` knew before the first step\n");
  tell("  checkpoints/        {} (weights, optimizer, data position: resumes to the bit)\n",
       trained.checkpoint.filename().string());
  tell("  hf/                 config.json, model.safetensors, tokenizer: loads in transformers\n");
  const fs::path page = write_run_page(dir);
  if (!page.empty()) tell("  report.html         where time and memory went, and what to change\n");
  tell("\nTry next:\n");
  std::string me = program(), file = (dir / "run.toml").string();
  tell("  {} generate {} --prompt {} --temperature 0.5\n", me, file, shell_word(prompting.next));
  tell("  {} plan {} --set batch.micro=4      what another batch would cost\n", me, file);
  tell("  {} inspect {}                       what is in the checkpoint\n", me, dir.string());
  tell("  {} report {}                        the report as text; --follow shows runs in progress\n", me,
       dir.string());
  if (!page.empty()) tell("\nThe report of this run: open {} in a browser\n", page.string());
}

// Says in plain words what planning does and what it found.
void show_forecast(const RunSpec& run, const TrainingSetup& t) {
  const Forecast& f = t.forecast;
  tell(
      "      one step ran on paper: the code that will train, on a device named meta, which does no\n"
      "      arithmetic and holds no data but counts every byte and every operation\n");
  tell("      found: {} of {} parameters, {} compute, {} gradients; {} steps of {} tokens\n", run.model.arch,
       human_count(double(f.booking.parameters)), run.precision.compute, run.precision.grads, run.train.steps,
       f.tokens);
  auto bucket = [&](Bucket b) { return human_bytes(f.booking.peak[size_t(b)]); };
  tell("      a step needs {:.1f} GFLOP ({} at this machine's measured peak) and {} of memory:\n",
       f.op_flops / 1e9, human_seconds(f.op_flops / t.options.peak_flops), human_bytes(f.booking.peak_total));
  tell("      {} weights, {} gradients, {} optimizer, {} activations\n", bucket(Bucket::weights),
       bucket(Bucket::grads), bucket(Bucket::optimizer), bucket(Bucket::activations));
}

// From well below the bigram's loss to that of equally likely tokens, in whole nats.
LearningCurve curve_of(const RunSpec& run, const Controls& c) {
  const double low = std::max(0.0, std::floor(c.bigram - 1.5));
  const double high = std::ceil(c.uniform);
  return {run.train.steps, low, high, {{"bigram", c.bigram}, {"unigram", c.unigram}}};
}

void demo(const DemoRequest& r) {
  install_interrupt_handlers();
  prepare(r);
  leave_demo_if_interrupted();
  heading(3, "plan: what a step will need, before it runs");
  RunSpec run = make_run_file(r);
  leave_demo_if_interrupted();
  const ClusterSpec cluster = cluster_of(run);
  find_own_schedule(run, cluster);
  run = choose_recompute(run, cluster, rank_threads_of(run));
  TrainingSetup t = prepare_training(run, run.precision, cluster, run.world());
  t.says_time = false;  // the steps that were timed say it of this machine as it is now
  const Forecast& f = t.forecast;
  show_forecast(run, t);
  heading(4, "train (interrupt whenever you like: the same command goes on)");
  const Controls controls = controls_of(run);
  LearningCurve curve = curve_of(run, controls);
  t.head = curve.header();
  t.row = [&](const StepMetrics& m) { return curve.add(m.step, m.loss); };
  TrainSummary s = train_with_progress(run, t, false);
  if (s.ending == Ending::interrupted)
    throw Error(fmt::format("interrupted at step {} of {}; the same command goes on from there", s.last_step,
                            run.train.steps),
                Fault::interrupted);
  if (s.last_step >= s.first_step)
    tell(
        "      {} steps in {}; in the median of them {} tokens/s, MFU {:.1f} % of {:.0f} GFLOP/s; peak {} "
        "(forecast {})\n",
        s.last_step - s.first_step + 1, human_seconds(s.seconds), human_count(s.tokens_per_s), s.mfu * 100,
        t.options.peak_flops / 1e9, human_bytes(s.peak_bytes), human_bytes(f.booking.peak_total));
  results(run, s, controls, r.minutes < 1 ? kTrySeconds / 5 : kTrySeconds);
}

}  // namespace

void add_demo(CLI::App& app) {
  CLI::App* verb = app.add_subcommand("demo",
                                      "the main job on this machine: real text in, a trained model out, in "
                                      "about five minutes; interrupted, the "
                                      "same command goes on\nexample: trireme demo --text ~/notes");
  auto r = std::make_shared<DemoRequest>();
  verb->add_option("--text", r->text,
                   "folder of text; default: the King James Bible of Debian's bible-kjv, else the sources of "
                   "Python's standard library");
  verb->add_option("--dir", r->dir, "run folder; another one starts afresh")->capture_default_str();
  CLI::Option* minutes =
      verb->add_option(
              "--minutes", r->minutes,
              "of training, in as many steps as fit, 100 (0.05 is the smallest demo) to 4000; chosen "
              "when the run "
              "folder is made")
          ->capture_default_str()
          ->check(CLI::Range(0.05, 1e4));
  verb->callback([r, minutes] {
    r->minutes_given = minutes->count() > 0;
    demo(*r);
  });
}

}  // namespace trireme::cli
