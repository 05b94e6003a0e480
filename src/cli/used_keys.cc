#include "cli/used_keys.h"

#include <algorithm>
#include <array>
#include <span>

#include "base/say.h"
#include "spec/toml.h"

namespace trireme::cli {
namespace {

using Names = std::span<const std::string_view>;

// Keys, and sections that end in ".", which a subcommand of one rank reads.
constexpr auto kOfWeights =
    std::to_array<std::string_view>({"model.", "lora.", "data.tokenizer", "data.train", "data.seq_len",
                                     "train.dir", "train.device", "train.threads"});
// precision.fp8 is reported by note_fp8().
constexpr auto kOfForward = std::to_array<std::string_view>(
    {"precision.compute", "precision.fp8", "train.attention", "train.comm", "train.timeout"});
constexpr auto kOfEval = std::to_array<std::string_view>({"data.valid", "data.documents", "batch.micro"});
// Keys that change neither memory nor time of a step.
constexpr auto kOfNoForecast = std::to_array<std::string_view>(
    {"data.order", "data.tokenizer", "model.init_std", "model.embed_std", "model.head_std", "optimizer.lr",
     "optimizer.min_lr", "optimizer.warmup", "optimizer.schedule", "optimizer.betas", "optimizer.eps",
     "optimizer.weight_decay", "optimizer.momentum", "optimizer.nesterov", "optimizer.adamw_lr",
     "optimizer.embed_lr", "train.seed"});
constexpr auto kDegrees =
    std::to_array<std::string_view>({"layout.dp", "layout.tp", "layout.pp", "layout.cp", "layout.ep"});

bool named(std::string_view key, Names names) {
  return std::any_of(names.begin(), names.end(),
                     [&](std::string_view n) { return n.ends_with('.') ? key.starts_with(n) : key == n; });
}

bool forecasts(std::string_view verb) {
  return verb == "plan" || verb == "search" || verb == "estimate" || verb == "simulate";
}

bool reads(std::string_view verb, std::string_view key) {
  if (forecasts(verb)) return !named(key, kOfNoForecast);
  if (named(key, kOfWeights)) return true;
  if (verb == "convert") return false;
  return named(key, kOfForward) || (verb == "eval" && named(key, kOfEval));
}

std::vector<TomlEntry> entries_of(const std::string& set) {
  try {
    return parse_set(set);
  } catch (const Error&) {
    return {};  // reported where the run is loaded
  }
}

}  // namespace

void check_set_keys(std::string_view verb, const RunRequest& request) {
  const std::vector<ConfigRow> known = config_rows();
  std::vector<std::string> unread;
  for (const std::string& set : request.sets)
    for (const TomlEntry& e : entries_of(set)) {
      const bool exists =
          std::any_of(known.begin(), known.end(), [&](const ConfigRow& r) { return r.key == e.key; });
      if (!exists || reads(verb, e.key)) continue;
      const int64_t* degree = named(e.key, kDegrees) ? std::get_if<int64_t>(&e.value) : nullptr;
      if (degree && *degree == 1) continue;
      if (degree && (verb == "eval" || verb == "generate"))
        bad_request("--set: {}: {} is not used by {}; give --layout, such as tp=2, or leave it out", e.key,
                    *degree, verb);
      if (degree)
        bad_request("--set: {}: {} is not used by {}, which runs on one rank; leave it out, or give 1", e.key,
                    *degree, verb);
      if (std::find(unread.begin(), unread.end(), e.key) == unread.end()) unread.push_back(e.key);
    }
  std::string names;
  for (const std::string& key : unread) names += (names.empty() ? "" : ", ") + key;
  if (!names.empty())
    say("note: --set {}: {} does not use {}\n", names, verb, unread.size() == 1 ? "this key" : "these keys");
}

void note_fp8(std::string_view verb, const RunSpec& run) {
  if (run.precision.fp8 != "none")
    say("note: precision.fp8 = \"{}\": 8-bit products belong to training; {} multiplies in "
        "precision.compute = \"{}\"\n",
        run.precision.fp8, verb, run.precision.compute);
}

}  // namespace trireme::cli
