// Tasks in the format of EleutherAI's lm-evaluation-harness (0.4): a YAML file, and documents in local JSON
// files. Errors name parts that are not supported: Python functions (!function), other metrics, filters and
// samplers.
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "base/file.h"
#include "base/json.h"

namespace trireme {

struct HarnessMetric {
  std::string name;  // acc, acc_norm, acc_bytes, exact_match, word_perplexity, byte_perplexity, bits_per_byte
  std::vector<std::string> regexes_to_ignore;
  bool ignore_case = false, ignore_punctuation = false, ignore_numbers = false;
};

// Applied to each answer, one function after the other: {"function": "regex", "regex_pattern": ...}.
struct HarnessFilter {
  std::string name = "none";
  std::vector<nlohmann::ordered_json> functions;
  std::string where = "filter_list";  // file and key, for messages
};

// Fields of the file: the name of a key of the document, a template, or a value.
struct HarnessFields {
  nlohmann::ordered_json text, target, choice;  // doc_to_text, doc_to_target, doc_to_choice; null: none
  std::string gen_prefix, target_delimiter = " ", fewshot_delimiter = "\n\n";
};

struct HarnessTask {
  enum class Kind { multiple_choice, generate_until, loglikelihood_rolling };
  std::string name, file;
  Kind kind = Kind::generate_until;
  std::string description;
  HarnessFields fields, examples;  // for the questions; for few-shot examples
  int64_t fewshot = 0;
  bool first_n = false;                            // examples: the first ones, else drawn
  bool without_itself = false;                     // an example is never the question
  std::vector<nlohmann::ordered_json> docs, pool;  // questions; where examples come from
  std::vector<std::string> until;
  int64_t most_tokens = 256;
  std::vector<HarnessMetric> metrics;
  std::vector<HarnessFilter> filters;
};

// fewshot: below 0, what the file says.
HarnessTask read_harness_task(const fs::path&, int64_t fewshot = -1);

}  // namespace trireme
