#include "cli/search_here.h"

#include <array>

#include "base/json.h"
#include "search/auto_layout.h"
#include "spec/supported.h"
#include "spec/toml.h"

namespace trireme::cli {
namespace {

// Options that only closed forms read.
constexpr std::array kOfClosedForms = {
    "--model",   "--parameters", "--layers",  "--hidden",   "--heads",       "--kv-heads",  "--ffn",
    "--vocab",   "--arch",       "--as",      "--by",       "--fewer",       "--why",       "--flip",
    "--loss",    "--best",       "--confirm", "--software", "--site",        "--constants", "--spares",
    "--restart", "--repair",     "--price",   "--svg",      "--memory-share"};

// The run file's keys that options stand for.
void give_options(RunRequest& request, const SearchOptions& o, const PlanSubject& s) {
  const auto set = [&](const char* key, const std::string& value) {
    request.sets.push_back(fmt::format("{}={}", key, value));
  };
  if (!s.cluster.empty())
    set("cluster.file", toml_string(fs::absolute(s.cluster).lexically_normal().string()));
  if (s.seq > 0) set("data.seq_len", std::to_string(s.seq));
  if (o.global > 0) set("batch.global", std::to_string(o.global));
}

nlohmann::ordered_json json_of(const TriedLayout& t) {
  return {{"layout", t.text},       {"step_s", t.step_s},      {"roof_s", t.roof_s},
          {"expected", t.expected}, {"device_bytes", t.bytes}, {"fits", t.fits}};
}

std::string answer_json(const AutoChoice& c) {
  nlohmann::ordered_json j;
  j["best"] = json_of(c.tried[c.best]);
  j["best"]["toml"] = save_changed(c.tried[c.best].asked);
  for (const TriedLayout& t : c.tried) j["candidates"].push_back(json_of(t));
  return j.dump(2) + "\n";
}

}  // namespace

bool searches_cpu(const RunRequest& request, const PlanSubject& subject) {
  if (request.file.empty()) return false;
  const RunSpec run = load_run(request.file, request.sets);
  if (run.train.device != "cpu" || run.train.comm != "thread") return false;
  const std::string& file = subject.cluster.empty() ? run.cluster.file : subject.cluster;
  if (file.empty()) return true;
  if (is_device_name(file)) return false;
  const ClusterSpec c = named_cluster(file);
  return !has_own_devices(c) && c.nodes == 1 && (c.threads > 0 || c.peak.bf16 == 0);
}

void search_cpu(const CLI::App& verb, const SearchOptions& o, const PlanSubject& subject,
                RunRequest request) {
  refuse_given(verb, kOfClosedForms, "a CPU's layouts are booked, not priced in closed form; leave it out");
  AutoWish wish{.layout = true, .ranks = subject.gpus};
  for (const std::string& text : o.require) {
    if (text.starts_with("precision="))
      request.sets.push_back(text.ends_with("=fp8") ? "precision.fp8=current"
                                                    : "precision.compute=" + toml_string(text.substr(10)));
    else if (text.starts_with("seq_len="))
      request.sets.push_back("data." + text);
    else
      wish.require.push_back(parse_requirement(text));
  }
  refuse_contradiction(wish.require);
  give_options(request, o, subject);
  RunSpec run = request.as_asked();
  if (wish.ranks == 0) wish.ranks = run.world();
  RunSpec divided = run;  // as many ranks, for their share of the cores
  run.layout = LayoutSpec();
  divided.layout = LayoutSpec();
  divided.layout.dp = wish.ranks;
  run.batch.micro = 1;
  const ClusterSpec cluster = cluster_of(divided);
  const AutoChoice c =
      choose_layout(run, wish, cluster, rank_threads_of(divided), {.native_bf16 = cluster.peak.bf16 > 0});
  if (!o.out.empty()) write_text_atomic(o.out, save_changed(c.tried[c.best].asked));
  if (o.json) return print_text("{}", answer_json(c));
  std::string text =
      fmt::format("{} on {} ranks of {}, {} sequences of {} tokens per step: the best by step time\n",
                  run.model.arch, wish.ranks, cluster.name, run.batch.global, run.data.seq_len);
  text += answer_text(c, cluster, o.all);
  text += o.out.empty() ? "  run file    --out FILE writes it\n" : fmt::format("run file: {}\n", o.out);
  print_text("{}", text);
}

}  // namespace trireme::cli
