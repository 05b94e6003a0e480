#include "cli/describe.h"

#include <algorithm>

#include "checkpoint/hash.h"
#include "cost/flops.h"
#include "data/token_shard.h"
#include "spec/batch_ramp.h"
#include "spec/hf_config.h"
#include "spec/kind.h"
#include "spec/toml.h"
#include "text/tokenizer.h"
#include "train/checkpointing.h"

namespace trireme::cli {
namespace {

constexpr uint64_t kMostText = uint64_t(2) << 30;  // bytes of a metrics.jsonl, trace or tokenizer

Description describe_cluster(const fs::path& p) {
  ClusterSpec c = load_cluster(p);
  Description d = {{"kind", "cluster file"},
                   {"path", p.string()},
                   {"name", c.name},
                   {"nodes", c.nodes},
                   {"devices_per_node", c.devices_per_node}};
  d["peak_f32_GFLOP/s"] = c.peak.f32 / 1e9, d["peak_bf16_GFLOP/s"] = c.peak.bf16 / 1e9;
  d["memory_bytes"] = c.memory_bytes, d["memory_GB/s"] = c.memory_bandwidth / 1e9;
  for (const auto& [name, link] : {std::pair("intra_node", c.intra_node),
                                   {"intra_node_mpi", c.intra_node_mpi},
                                   {"inter_node", c.inter_node}})
    if (link.bandwidth > 0) {
      d[std::string(name) + "_us"] = link.latency * 1e6;
      d[std::string(name) + "_GB/s"] = link.bandwidth / 1e9;
    }
  if (!c.tiers.empty()) {
    Description tiers = Description::array();
    for (const TierSpec& t : c.tiers)
      tiers.push_back({{"level", t.name},
                       {"kind", t.kind},
                       {"units", t.size},
                       {"us", t.link.latency * 1e6},
                       {"GB/s", t.link.bandwidth / 1e9}});
    d["tiers"] = tiers;
  }
  d["threads"] = c.threads, d["price_per_hour"] = c.price_per_hour;
  d["source"] = c.source, d["date"] = c.date;
  return d;
}

Description describe_run_file(const fs::path& p) {
  RunSpec r = load_run(p);
  const ModelSpec& m = r.model;
  return {{"kind", "run file"},
          {"path", p.string()},
          {"model", m.arch},
          {"parameters", parameters(m)},
          {"layers", m.layers},
          {"hidden", m.hidden},
          {"vocab", m.vocab},
          {"data", r.data.train},
          {"batch", batch_text(r)},
          {"steps", r.train.steps},
          {"tokens", samples_until(r.batch, r.train.steps) * r.data.seq_len},
          {"compute", r.precision.compute},
          {"run_folder", r.train.dir},
          {"hash", hex64(hash(r))}};
}

Description describe_toml(const fs::path& p) {
  std::string text = read_small(p, kMostTomlBytes);
  const bool cluster = kind_of_spec(parse_toml(text, p.string())) == SpecKind::cluster;
  return cluster ? describe_cluster(p) : describe_run_file(p);
}

Description describe_tokenizer(const fs::path& p) {
  Tokenizer t = Tokenizer::load(p);
  Description d = {{"kind", "tokenizer"}, {"path", p.string()}, {"bytes", int64_t(fs::file_size(p))}};
  d["tokens"] = t.vocab_size(), d["merges"] = t.merges().size(), d["added_tokens"] = t.added().size();
  auto end = t.find_added(kEndOfText);
  d["end_of_text"] = end ? Description(*end) : Description(nullptr);
  d["vocabulary"] = hex64(t.fingerprint());
  d["xxh3"] = hex64(digest_file(p).xxh3);
  return d;
}

// The last line of metrics.jsonl that is whole.
Description last_metrics(const fs::path& file) {
  std::string text = read_small(file, kMostText);
  for (size_t end = text.rfind('\n'); end != std::string::npos && end > 0; end = text.rfind('\n', end - 1)) {
    size_t begin = text.rfind('\n', end - 1);
    begin = begin == std::string::npos ? 0 : begin + 1;
    auto j = Description::parse(text.substr(begin, end - begin), nullptr, false);
    if (j.is_object()) return j;
  }
  return Description::object();
}

Description describe_metrics(const fs::path& p) {
  std::string text = read_small(p, kMostText);
  Description d = {{"kind", "metrics"}, {"path", p.string()}, {"bytes", int64_t(text.size())}};
  d["lines"] = std::count(text.begin(), text.end(), '\n');
  d["last"] = last_metrics(p);
  return d;
}

int64_t bytes_below(const fs::path& folder) {
  int64_t n = 0;
  for (const auto& e : fs::recursive_directory_iterator(folder))
    if (e.is_regular_file()) n += int64_t(e.file_size());
  return n;
}

}  // namespace

Description describe_run(const fs::path& p) {
  Description d = {{"kind", "run folder"}, {"path", p.string()}};
  Description checkpoints = Description::array();
  Found found = find_newest(checkpoint_root(p), Verify::sizes);
  if (fs::is_directory(checkpoint_root(p)))
    for (const auto& e : fs::directory_iterator(checkpoint_root(p)))
      if (auto step = step_of_folder_name(e.path().filename().string()))
        checkpoints.push_back(
            {{"step", *step}, {"bytes", bytes_below(e.path())}, {"path", e.path().string()}});
  std::sort(checkpoints.begin(), checkpoints.end(),
            [](const Description& a, const Description& b) { return a["step"] < b["step"]; });
  d["steps_done"] = found.newest ? found.newest->manifest().step : 0;
  if (fs::exists(p / "plan.toml")) {
    Description run = describe_run_file(p / "plan.toml");
    run.erase("kind"), run.erase("path"), run.erase("run_folder");
    d["run"] = run;
  }
  if (fs::exists(p / "metrics.jsonl")) {
    Description last = last_metrics(p / "metrics.jsonl"), some;
    for (const char* key : {"step", "loss", "eval_loss", "grad_norm", "lr", "tokens_per_s", "mfu"})
      if (last.contains(key)) some[key] = last[key];
    d["last_metrics"] = some;
    if (last.contains("sequences"))
      d["mixture"] = last["sequences"];  // a shard and what was drawn of it, each
  }
  if (Description rows = forecast_and_measured(p); !rows.empty()) d["forecast"] = rows;
  if (!found.damaged.empty()) d["damaged"] = found.damaged;
  d["checkpoints"] = checkpoints;
  Description files = Description::array();
  for (const auto& e : fs::directory_iterator(p))
    if (e.is_regular_file())
      files.push_back({{"file", e.path().filename().string()}, {"bytes", int64_t(e.file_size())}});
  std::sort(files.begin(), files.end(),
            [](const Description& a, const Description& b) { return a["file"] < b["file"]; });
  d["files"] = files;
  return d;
}

Description FileHashes::of(const fs::path& file) {
  const auto bytes = int64_t(fs::file_size(file));
  if (!all_ && bytes > kMostHashed - bytes_) return nullptr;
  bytes_ += bytes;
  return hex64(digest_file(file).xxh3);
}

Description describe_shard(const fs::path& p, FileHashes& hashes) {
  TokenShard s = TokenShard::open(p);
  Description d = {{"kind", "token shard"}, {"path", s.name()}};
  d["tokens"] = s.tokens(), d["documents"] = s.documents(), d["bytes_per_token"] = size_of(s.type());
  if (s.vocabulary()) d["vocabulary"] = hex64(*s.vocabulary());
  if (s.mask()) d["targets"] = s.targets(0, s.tokens());
  Description files = Description::array();
  ShardFiles f = shard_files(p);
  for (const fs::path& file : {f.bin, f.idx.value_or(fs::path())})
    if (!file.empty())
      files.push_back(
          {{"file", file.string()}, {"bytes", int64_t(fs::file_size(file))}, {"xxh3", hashes.of(file)}});
  d["files"] = files;
  return d;
}

// A tokenizer beside the shards that it made, in order of name.
static Description describe_data(const fs::path& p) {
  Description d = {{"kind", "data folder"}, {"path", p.string()}};
  if (fs::exists(p / "tokenizer.json")) d["tokenizer"] = describe_tokenizer(p / "tokenizer.json");
  std::vector<fs::path> shards;
  for (const auto& e : fs::directory_iterator(p))
    if (e.is_regular_file() && e.path().extension() == ".bin") shards.push_back(e.path());
  std::sort(shards.begin(), shards.end());
  d["shards"] = Description::array();
  for (const fs::path& bin : shards) {
    const TokenShard s = TokenShard::open(bin);
    d["shards"].push_back({{"path", s.name()},
                           {"tokens", s.tokens()},
                           {"documents", s.documents()},
                           {"bytes_per_token", size_of(s.type())}});
    Description& shard = d["shards"].back();
    if (s.vocabulary()) shard["vocabulary"] = hex64(*s.vocabulary());
    if (d.contains("tokenizer"))  // null: the shard does not say
      shard["of_this_tokenizer"] =
          s.vocabulary() ? Description(shard["vocabulary"] == d["tokenizer"]["vocabulary"]) : Description();
  }
  return d;
}
static bool is_data(const fs::path& p) {
  if (fs::exists(p / "tokenizer.json")) return true;
  for (const auto& e : fs::directory_iterator(p))
    if (e.is_regular_file() && e.path().extension() == ".bin") return true;
  return false;
}

bool is_cluster_file(const fs::path& p) {
  if (p.extension() != ".toml" || !fs::is_regular_file(p)) return false;
  return kind_of_spec(parse_toml(read_small(p, kMostTomlBytes), p.string())) == SpecKind::cluster;
}

constexpr std::string_view kReads =
    "inspect reads a run folder, checkpoint, Hugging Face folder, data folder, .safetensors, tokenizer.json, "
    "trace.json, metrics.jsonl, .toml or token shard (.bin, .idx, or their name without);";

Description describe(const fs::path& p, FileHashes hashes) {
  std::string name = p.filename().string();
  if (fs::exists(p / kManifestName)) return describe_checkpoint(p);
  if (fs::is_directory(p)) {
    if (fs::exists(p / "config.json")) return describe_hf_folder(p, hashes);
    if (fs::exists(p / "plan.toml") || fs::is_directory(p / "checkpoints")) return describe_run(p);
    if (is_data(p)) return describe_data(p);
    bad_request(
        "{} is no run folder, checkpoint, Hugging Face or data folder: it has no plan.toml, {}, config.json, "
        "tokenizer.json or token shard",
        p.string(), kManifestName);
  }
  if (p.extension() == ".safetensors") return describe_safetensors(p, hashes);
  if (p.extension() == ".toml") return describe_toml(p);
  if (p.extension() == ".jsonl") return describe_metrics(p);
  if (name == kManifestName) return describe_checkpoint(p.parent_path().empty() ? "." : p.parent_path());
  if (name == "config.json")
    return describe_hf_folder(p.parent_path().empty() ? "." : p.parent_path(), hashes);
  if (p.extension() == ".json") {
    const std::string text = read_small(p, kMostText), head = text.substr(0, 4096);
    if (const size_t at = text.find_first_not_of(" \t\r\n"); at != std::string::npos && text[at] == '[')
      bad_request("{}: a list; {} `trireme score` reads lists of measured runs", p.string(), kReads);
    return head.find("traceEvents") != std::string::npos || head.find("made_by") != std::string::npos
               ? describe_trace(p)
               : describe_tokenizer(p);
  }
  if (name.find(".tfevents.") != std::string::npos)
    return {{"kind", "TensorBoard event file"},
            {"path", p.string()},
            {"bytes", int64_t(fs::file_size(p))},
            {"shown_by", "tensorboard --logdir " + p.parent_path().string()}};
  if (!fs::exists(p) && !fs::exists(p.string() + ".bin"))
    bad_request(
        "{} is not there: give a run folder, checkpoint, Hugging Face folder, .safetensors, tokenizer.json, "
        "trace.json, .toml or token shard",
        p.string());
  if (fs::is_regular_file(p) && p.extension() != ".bin" && p.extension() != ".idx" &&
      !fs::exists(p.string() + ".bin"))
    bad_request("{}: {} by its name it is none of these", p.string(), kReads);
  return describe_shard(p, hashes);
}

}  // namespace trireme::cli
