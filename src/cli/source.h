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

// Weights only. The newest complete checkpoint of run.train.dir, else model.from.
LoadedModel load_model(const RunSpec&);

// data.tokenizer, else tokenizer.json in model.from, in the run folder or beside data.train; bad_request that
// says where it looked.
Tokenizer tokenizer_of(const RunSpec&);
fs::path tokenizer_path(const RunSpec&);

}  // namespace trireme::cli
