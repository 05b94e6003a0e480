#include "cli/source.h"

#include <fmt/ranges.h>

#include "base/say.h"
#include "checkpoint/named.h"
#include "data/token_shard.h"
#include "runtime/booking.h"
#include "runtime/nonfinite.h"
#include "spec/toml.h"
#include "train/batches.h"
#include "train/checkpointing.h"

namespace trireme::cli {

void add_used_run(CLI::App& verb, RunRequest& request, bool with_json) {
  request.add_to(verb, with_json);
  verb.get_option("RUN")->description(
      "run file (TOML), the folder of a run or of one of its checkpoints, or RUN@STEP or RUN@best");
}

namespace {

// A file that names a model and no run folder means that model: in the default folder may be a checkpoint of
// another run, such as the demo's.
RunSpec without_other_run(RunSpec run) {
  if (run.model.from.empty() || run.train.dir != RunSpec().train.dir) return run;
  const std::vector<fs::path> all = checkpoints_in(checkpoint_root(run.train.dir));
  if (all.empty()) return run;
  try {
    if (saved_run(Checkpoint::open(all[0], Verify::sizes)).model.from == run.model.from) return run;
  } catch (const Error&) {
    return run;  // the reader reports it
  }
  say("note: {} is used; {} has checkpoints of another run\n", run.model.from, run.train.dir);
  run.train.dir = run.model.from;
  return run;
}

}  // namespace

UsedRun load_used(const RunRequest& request) {
  UsedRun used;
  const fs::path given = request.file;
  if (fs::is_regular_file(given)) return {without_other_run(request.load()), {}};
  const std::optional<NamedCheckpoint> found = checkpoint_named(given.string());
  if (!found) return {request.load(), {}};
  used.checkpoint = found->folder;
  const fs::path folder = found->run;
  if (!fs::exists(folder / "plan.toml"))
    bad_request(
        "{} is no folder of a run that has begun: there is no {}. Give a run file (TOML); a Hugging Face "
        "folder is named in one, [model] from = \"folder\"",
        given.string(), (folder / "plan.toml").string());
  RunRequest of_folder = request;
  of_folder.file = (folder / "plan.toml").string();
  of_folder.sets.insert(of_folder.sets.begin(), "train.dir=" + toml_string(folder.string()));
  used.run = of_folder.load();
  // A folder that has moved, or that is used from elsewhere, has its tokenizer with it.
  const fs::path named = used.run.data.tokenizer;
  if (!named.empty() && !fs::exists(named) && fs::exists(folder / named.filename()))
    used.run.data.tokenizer = (folder / named.filename()).string();
  return used;
}

void load_weights(LoadedModel& m, const fs::path& checkpoint) {
  const RunSpec& run = m.run;
  const bool speaks = !m.runner->passes().divided() || m.runner->comms()->rank() == 0;
  Found found;
  if (checkpoint.empty())
    found = find_newest(checkpoint_root(run.train.dir));
  else
    found.newest = Checkpoint::open(checkpoint);
  if (!found.newest && !found.damaged.empty())
    bad_request("no checkpoint in {} is complete: {}; name another train.dir, or remove them",
                checkpoint_root(run.train.dir).string(), found.damaged.front());
  for (const std::string& d : found.damaged)
    if (speaks) say("passed over a damaged checkpoint: {}\n", d);
  if (found.newest) {
    refuse_other_model(run, *found.newest);
    load_checkpoint(*m.runner, *found.newest, Load::weights);
    m.step = found.newest->manifest().step;
    m.where = found.newest->folder().string();
  } else if (!run.model.from.empty()) {
    initial_weights(*m.runner, run);
    m.where = run.model.from;
  } else {
    bad_request(
        "{} holds no complete checkpoint and model.from is empty: train first, or name a Hugging Face folder",
        run.train.dir);
  }
  require_finite_weights(m.where, m.runner->memory());
}

LoadedModel load_model(const RunSpec& run, int64_t arena_bytes, const fs::path& checkpoint) {
  LoadedModel m;
  m.run = run;
  int threads = threads_of(run);
  m.device =
      make_device(run.train.device, {.threads = threads, .sm90_attention = run.train.attention == "sm90"});
  if (arena_bytes == 0) arena_bytes = book_inference(run, threads);
  m.runner = std::make_unique<StageRunner>(run, RunMode::infer, *m.device, arena_bytes);
  load_weights(m, checkpoint);
  return m;
}

namespace {
// Where a tokenizer.json is looked for that data.tokenizer does not name.
std::vector<fs::path> tokenizer_folders(const RunSpec& run) {
  std::vector<fs::path> all = {run.model.from, run.train.dir, fs::path(run.data.train.first()).parent_path()};
  std::erase_if(all, [](const fs::path& dir) { return dir.empty(); });
  return all;
}
fs::path unnamed_tokenizer(const RunSpec& run) {  // empty: there is none
  for (const fs::path& dir : tokenizer_folders(run))
    if (fs::exists(dir / "tokenizer.json")) return dir / "tokenizer.json";
  return {};
}

struct Vocabulary {
  std::string file;
  uint64_t fingerprint;
};
// Of the tokenizer that what the run has learned is read by. One that nobody named, and that cannot be read,
// is none.
std::optional<Vocabulary> vocabulary_of(const RunSpec& run) {
  const fs::path named = run.data.tokenizer, file = named.empty() ? unnamed_tokenizer(run) : named;
  if (file.empty()) return {};
  if (!fs::exists(file)) bad_request("data.tokenizer: there is no {}", file.string());
  try {
    return Vocabulary{file.string(), Tokenizer::load(file).fingerprint()};
  } catch (const Error&) {
    if (!named.empty() || file == fs::path(run.model.from) / "tokenizer.json") throw;
    return {};
  }
}
// The fingerprint in a shard that is there. One that cannot be read: who trains on it says what is wrong with
// it, who evaluates others does without.
std::optional<uint64_t> vocabulary_said_by(const std::string& shard, bool used) {
  if (!shard_exists(shard)) return {};
  try {
    return TokenShard::open(shard).vocabulary();
  } catch (const Error&) {
    if (used) throw;
    return {};
  }
}
}  // namespace

std::optional<ChatTemplate> chat_template_of(const RunSpec& run) {
  return ChatTemplate::find(tokenizer_path(run).parent_path());
}

std::optional<fs::path> find_tokenizer(const RunSpec& run) {
  if (!run.data.tokenizer.empty()) return run.data.tokenizer;
  const fs::path found = unnamed_tokenizer(run);
  return found.empty() ? std::nullopt : std::optional(found);
}

std::string no_tokenizer_text(const RunSpec& run) {
  std::vector<std::string> places;
  for (const fs::path& dir : tokenizer_folders(run)) places.push_back(dir.string());
  return fmt::format("data.tokenizer is empty, and there is no tokenizer.json in {}",
                     fmt::join(places, " or "));
}

fs::path tokenizer_path(const RunSpec& run) {
  const auto found = find_tokenizer(run);
  if (!found) bad_request("no tokenizer: {}; name one", no_tokenizer_text(run));
  return *found;
}

void refuse_foreign_shards(const RunSpec& run, const Texts& shards) {
  std::optional<Vocabulary> first;
  auto hold = [&](const std::string& name, bool used) {
    const std::optional<uint64_t> said = vocabulary_said_by(name, used);
    if (!said) return;
    if (!first) {  // the tokenizer is read where a shard says something to hold against it
      first = vocabulary_of(run);
      if (!first) first = {name, *said};
    }
    if (first->fingerprint != *said)
      bad_request(
          "the ids of {} are of another vocabulary ({}) than {} ({}): name the shards that it made, "
          "data.train = \"FOLDER/train\" and data.valid = \"FOLDER/valid\" (now \"{}\" and \"{}\"), or make "
          "them, `trireme tokenize TEXT --tokenizer {} --out FOLDER`",
          name, hex64(*said), first->file, hex64(first->fingerprint), fmt::join(run.data.train, ","),
          fmt::join(run.data.valid, ","),
          first->file.ends_with(".json") ? first->file : std::string("tokenizer.json"));
  };
  for (const std::string& name : run.data.train) hold(name, false);
  for (const std::string& name : shards) {
    const auto& list = run.data.valid.list;
    const bool of_key = std::find(list.begin(), list.end(), name) != list.end();
    naming_key(of_key ? "data.valid" : "--data", name, [&] { hold(name, true); });
  }
}

void refuse_foreign_tokenizer(const RunSpec& run, const Tokenizer& tokenizer) {
  if (tokenizer.vocab_size() > run.model.vocab)
    bad_request("{} has {} tokens, the model {}: they do not belong together", tokenizer_path(run).string(),
                tokenizer.vocab_size(), run.model.vocab);
  if (!run.model.from.empty()) return;  // its shards may be of another
  for (const std::string& name : run.data.train) {
    const std::optional<uint64_t> said = vocabulary_said_by(name, false);
    if (said && *said != tokenizer.fingerprint())
      bad_request(
          "{} is of another vocabulary ({}) than {}, which the run learned from ({}): name the tokenizer "
          "that made it, data.tokenizer = \"FOLDER/tokenizer.json\"",
          tokenizer_path(run).string(), hex64(tokenizer.fingerprint()), name, hex64(*said));
  }
}

int64_t context_of(const RunSpec& run, int64_t asked) {
  int64_t most = std::max(run.model.max_positions, run.data.seq_len);
  if (asked > most) bad_request("--context {} is beyond the {} positions of the model", asked, most);
  if (asked > 0) return asked;
  return run.model.from.empty() ? run.data.seq_len : most;
}

Tokenizer tokenizer_of(const RunSpec& run) {
  return Tokenizer::load(tokenizer_path(run));
}

}  // namespace trireme::cli
