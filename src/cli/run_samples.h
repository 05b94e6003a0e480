// Texts that a run generates as it trains (train.sample_every).
#pragma once
#include "text/tokenizer.h"
#include "train/trainer.h"

namespace trireme::cli {

class RunSamples {
 public:
  // bad_request if the run has no tokenizer.
  explicit RunSamples(const RunSpec&);

  // Generates a text from a checkpoint, on this process's CPU with a separate model, and appends
  //   {"step": 200, "prompt": "...", "text": "...", "tokens": 60, "finish": "length"}
  // to samples.jsonl. A failure does not end the run. Returns the line for the user.
  std::string write(int64_t step, const fs::path& checkpoint) const;

 private:
  RunSpec run_;
  Tokenizer tokenizer_;
};

}  // namespace trireme::cli
