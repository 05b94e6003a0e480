// A model to use as it is: the newest checkpoint of a run, or a Hugging Face folder.
#pragma once
#include <optional>

#include "cli/cli.h"
#include "text/chat_template.h"
#include "text/tokenizer.h"
#include "train/trainer.h"

namespace trireme::cli {

struct LoadedModel {
  RunSpec run;
  std::unique_ptr<Device> device;  // null: the rank thread's
  std::unique_ptr<StageRunner> runner;
  int64_t step = 0;   // of the checkpoint; 0 = none
  std::string where;  // what was read
};

// A run whose model is used: RUN may be a run file, or the folder of a run that has begun (its plan.toml, and
// it as train.dir), or one of its checkpoints, which load_model() then takes.
struct UsedRun {
  RunSpec run;
  fs::path checkpoint;  // empty: the newest
};
UsedRun load_used(const RunRequest&);
void add_used_run(CLI::App& verb, RunRequest&, bool with_json = true);  // as an argument that may be either

// Weights only. `checkpoint`, or the newest complete one of run.train.dir, else model.from. arena_bytes: what
// the use of it was booked for; 0 = evaluation.
LoadedModel load_model(const RunSpec&, int64_t arena_bytes = 0, const fs::path& checkpoint = {});

// The same into a runner that is made already: its rank's part.
void load_weights(LoadedModel&, const fs::path& checkpoint);

// data.tokenizer, else tokenizer.json in model.from, in the run folder or beside data.train; bad_request that
// says where it looked.
Tokenizer tokenizer_of(const RunSpec&);
std::optional<ChatTemplate> chat_template_of(const RunSpec&);  // in the tokenizer's folder
fs::path tokenizer_path(const RunSpec&);
std::optional<fs::path> find_tokenizer(const RunSpec&);  // nothing where tokenizer_path() throws
std::string no_tokenizer_text(const RunSpec&);           // why that is so
// bad_request where a shard of data.train or of `shards` says that its ids are of another vocabulary than
// the tokenizer that tokenizer_path() finds, else the first shard that says; also where one says and
// data.tokenizer is named and is not there. Shards that are not there are passed over.
void refuse_foreign_shards(const RunSpec&, const Texts& shards);
void refuse_foreign_tokenizer(const RunSpec&, const Tokenizer&);  // more tokens than the model has

// Tokens that the model sees at once: `asked`, the value of --context, refused beyond the model's positions;
// 0 = what it was trained with, data.seq_len, or max_positions of model.from.
int64_t context_of(const RunSpec&, int64_t asked);

}  // namespace trireme::cli
