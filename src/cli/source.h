// A model to use as it is: the newest checkpoint of a run, or a Hugging Face folder.
#pragma once
#include <optional>

#include "cli/cli.h"
#include "text/tokenizer.h"
#include "train/trainer.h"

namespace trireme::cli {

struct LoadedModel {
  RunSpec run;
  std::unique_ptr<Device> device;
  std::unique_ptr<StageRunner> runner;
  int64_t step = 0;   // of the checkpoint; 0 = none
  std::string where;  // what was read
};

// Weights only. The newest complete checkpoint of run.train.dir, else model.from. arena_bytes: what the use
// of it was booked for; 0 = evaluation.
LoadedModel load_model(const RunSpec&, int64_t arena_bytes = 0);

// data.tokenizer, else tokenizer.json in model.from, in the run folder or beside data.train; bad_request that
// says where it looked.
Tokenizer tokenizer_of(const RunSpec&);
fs::path tokenizer_path(const RunSpec&);
// bad_request where a shard says that its ids are of another vocabulary than data.tokenizer, model.from's
// tokenizer.json, or the first shard that says so; shards that are not there are passed over.
void refuse_foreign_shards(const RunSpec&, const trireme::Texts& shards);
void refuse_foreign_tokenizer(const RunSpec&, const Tokenizer&);  // more tokens than the model has

// Tokens that the model sees at once: `asked`, the value of --context, refused beyond the model's positions;
// 0 = what it was trained with, data.seq_len, or max_positions of model.from.
int64_t context_of(const RunSpec&, int64_t asked);

}  // namespace trireme::cli
