// distill: its request, the checks of it, and the record of it in the folder.
#pragma once
#include <string>
#include <vector>

#include "base/file.h"
#include "base/json.h"
#include "cli/cli.h"
#include "cli/tune.h"
#include "spec/run_spec.h"

namespace trireme::cli {

struct DistillRequest {
  std::string model, tasks, prompts, out;
  double temperature = 1.2, top_p = 0.8;  // sampling
  int64_t top_k = 20, tokens = 512, parallel = 8;
  double epochs = 3, lr = 5e-6;
  int64_t batch = 32, seq_len = 0;
  std::vector<std::string> sets;
  std::vector<double> eval_temperatures = {0.2, 0.4, 0.6, 0.8, 1.0, 1.2};
  double eval_top_p = 0.8;
  int64_t eval_top_k = 20, per_task = 5, eval_tokens = 512;
  int64_t seeds = 3;
  bool plain = false;
  double time_limit = 3;
};

fs::path base_file(const DistillRequest&);  // run file of the model before fine-tuning
std::string base_file_text(const DistillRequest&);
int64_t context_of_model(const DistillRequest&);  // tokens that the model sees at once when it samples
// A fine-tuning on conversations, as `tune` takes it.
TuneRequest tune_request(const DistillRequest&, const fs::path& data, const fs::path& run, uint64_t seed);

// Prompts, rendered for the model, and as messages for the fine-tuning file.
struct Asked {
  std::vector<std::string> shown;                // rendered
  std::vector<nlohmann::ordered_json> messages;  // null without a chat template
};
Asked asked_of(const DistillRequest&, const RunSpec& base);

// Options that determine the numbers, and digests of the files and weights that they name.
nlohmann::ordered_json options_of(const DistillRequest&);
// bad_request for what a later stage would refuse: options, tasks, prompts, keys of --set, a model that
// cannot be asked, and a folder that holds other files. Writes nothing.
void refuse_bad(const DistillRequest&);
// Writes the options into the folder; bad_request if it has results of other options.
void keep_options(const DistillRequest&, const nlohmann::ordered_json& options);

}  // namespace trireme::cli
