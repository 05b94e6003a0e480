// trireme tune MODEL --chat FILE --out RUN: supervised fine-tuning of all weights. It writes shards and a run
// file, and trains by that file. So the run resumes, and is planned, evaluated and exported, like any other.
#include <cmath>

#include "base/counted.h"
#include "base/say.h"
#include "cli/cli.h"
#include "cli/tokenize_chat.h"
#include "cli/training.h"
#include "data/whole_windows.h"
#include "spec/hf_config.h"
#include "spec/toml.h"

namespace trireme::cli {
namespace {

struct TuneRequest {
  std::string model;
  ChatRequest chat;
  std::string out;
  double epochs = 3, lr = 2e-5;
  int64_t batch = 16, seq_len = 0;
  std::vector<std::string> sets;
  bool json = false;
};

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

std::string run_file_text(const TuneRequest& r) {
  const fs::path data = fs::path(r.out) / "data";
  const int64_t seq_len = seq_len_of(r), steps = steps_of(r, data / "train", seq_len);
  const int64_t micro = r.batch % 4 == 0 ? 4 : r.batch % 2 == 0 ? 2 : 1;
  const bool valid = fs::exists(data / "valid.idx");
  std::string text = fmt::format(
      "# Written by `trireme tune`; `trireme train` takes it too, on any layout.\n[model]\nfrom = "
      "{}\n\n[data]\n"
      "train = {}\nvalid = {}\ntokenizer = {}\nseq_len = {}\ndocuments = \"whole\"\n\n[batch]\nglobal = "
      "{}\nmicro = {}\n\n",
      toml_string(r.model), toml_string((data / "train").string()),
      valid ? toml_string((data / "valid").string()) : "[]", toml_string((data / "tokenizer.json").string()),
      seq_len, r.batch, micro);
  text += fmt::format(
      "[optimizer]\nlr = {:g}\nmin_lr = {:g}\nwarmup = {}\nweight_decay = 0.0\n\n[train]\nsteps = {}\ndir = "
      "{}\n",
      r.lr, r.lr / 10, std::max<int64_t>(1, steps * 3 / 100), steps, toml_string(r.out));
  return text;
}

void tune(const TuneRequest& r) {
  const fs::path out = r.out, file = out / "tune.toml";
  std::error_code none;
  if (!fs::is_regular_file(fs::path(r.model) / "config.json", none))
    bad_request("{}: no config.json: MODEL is a Hugging Face folder; `trireme convert` makes one from a run",
                r.model);
  if (fs::is_regular_file(file, none)) {
    if (!r.json)
      say("note: {} exists: this run resumes by it, and other options are not used\n", file.string());
  } else {
    if (r.chat.files.empty()) bad_request("tune: no --chat FILE");
    ChatRequest chat = r.chat;
    chat.out = (out / "data").string();
    chat.tokenizer = (fs::path(r.model) / "tokenizer.json").string();
    tokenize_chat(chat);
    write_text_atomic(file, run_file_text(r));
  }
  RunRequest request;
  request.file = file.string();
  request.sets = r.sets;
  request.json = r.json;
  train_here(request, {});
}

}  // namespace

void add_tune(CLI::App& app) {
  CLI::App* verb = app.add_subcommand(
      "tune",
      "fine-tunes a model on conversations: tokenizes them, writes RUN/tune.toml, and trains by it; the same "
      "command resumes\nexample: trireme tune models/smollm2 --chat talks.jsonl --out runs/tuned");
  auto r = std::make_shared<TuneRequest>();
  verb->add_option("MODEL", r->model, "Hugging Face folder")->required();
  verb->add_option("--chat", r->chat.files,
                   "JSON Lines of conversations, as `tokenize --chat` takes (may be repeated)")
      ->allow_extra_args(false);
  verb->add_option("--chat-template", r->chat.chat_template,
                   "Jinja file that renders conversations; default: the model's");
  verb->add_option("--out", r->out, "run folder; its data and run file go there too")->required();
  verb->add_option("--epochs", r->epochs, "passes over the conversations")
      ->capture_default_str()
      ->check(CLI::Range(1e-3, 1e6));
  verb->add_option("--lr", r->lr, "peak learning rate")->capture_default_str()->check(CLI::Range(1e-12, 1e3));
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
