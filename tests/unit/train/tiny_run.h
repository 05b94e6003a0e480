// A run that takes milliseconds a step, and what is left of it when it is over.
#pragma once
#include <string>
#include <vector>

#include "checkpoint/store.h"
#include "folder.h"
#include "schedule/schedule.h"
#include "spec/run_spec.h"
#include "train/trainer.h"

namespace trireme::test {

// data/train and data/valid (seeded; there is something to learn), cluster.toml (so that no verb measures
// this machine), and the spec of a run in `folder`/run: a llama of two layers, three microbatches a step,
// shuffled over several epochs, a checkpoint every 3 steps of which 2 stay, an evaluation every 2.
RunSpec tiny_run(const fs::path& folder, int64_t steps);

// The same as a run file, `folder`/run.toml.
fs::path tiny_run_file(const fs::path& folder, int64_t steps);

// `folder`/tokenizer.json: bytes are tokens 0-255, <|endoftext|> is 256. For runs with model.vocab = 300.
fs::path byte_tokenizer_file(const fs::path& folder);

// Runs it in this process, with "auto" settled as the program does.
TrainSummary train_here(RunSpec, const TrainHooks& = {}, TrainOptions = {});

std::vector<std::string> lines_of(std::string_view text);

// Numbers that a run leaves and that no kill, resume or pause may change.
struct Outcome {
  int64_t step = 0;                            // of the newest checkpoint
  std::map<std::string, std::string> tensors;  // its bytes, by name; optimizer state too
  std::string numbers;                         // of its manifest
  std::vector<std::string> metrics;            // one line a step: step, loss, norm, rate, tokens, bytes
  std::vector<std::string> checkpoints;        // complete ones that are there
  std::vector<std::string> parts;              // files that never took their name
};
Outcome outcome_of(const fs::path& run_dir);
// EXPECT_s for each difference.
void expect_same(const Outcome& got, const Outcome& want);

}  // namespace trireme::test
