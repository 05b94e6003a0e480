#include "trace/metrics.h"

#include <fmt/format.h>

#include <cerrno>
#include <cstring>
#include <fstream>

#include "base/error.h"

#include "base/json.h"
#include "base/json_depth.h"

namespace trireme {
namespace {

nlohmann::ordered_json buckets(const BucketBytes& b) {
  nlohmann::ordered_json j;
  for (size_t i = 0; i < kBuckets; i++) j[std::string(kBucketNames[i])] = b[i];
  return j;
}

}  // namespace

std::string to_json_line(const StepMetrics& m) {
  nlohmann::ordered_json j;
  j["step"] = m.step;
  j["loss"] = m.loss;
  j["grad_norm"] = m.grad_norm;
  j["lr"] = m.lr;
  j["tokens"] = m.tokens;
  j["step_s"] = m.step_s;
  j["tokens_per_s"] = m.tokens_per_s;
  j["mfu"] = m.mfu;
  j["hfu"] = m.hfu;
  j["peak_bytes"] = buckets(m.peak);
  j["peak_bytes"]["total"] = m.peak_total;
  j["at_peak_bytes"] = buckets(m.at_peak);
  j["data_s"] = m.data_s;
  j["time"] = {{"forward", m.forward_s},
               {"backward", m.backward_s},
               {"norm", m.norm_s},
               {"update", m.update_s},
               {"other", m.other_s}};
  if (m.comm_s) j["comm_s"] = *m.comm_s;
  for (const auto& [kind, bytes] : m.comm_bytes) j["comm_bytes"][kind] = bytes;
  if (m.aux_loss) j["aux_loss"] = *m.aux_loss;
  if (m.z_loss) j["z_loss"] = *m.z_loss;
  if (!m.expert_load.empty()) j["expert_load"] = m.expert_load, j["dropped"] = m.dropped;
  if (!m.ep_load.empty()) j["ep_load"] = m.ep_load;
  if (m.loss_scale) j["loss_scale"] = *m.loss_scale;
  if (m.loss_scale || m.skipped) j["skipped"] = m.skipped;
  // Lists in the order of the run file: a shard may be named twice.
  for (const auto& [shard, n] : m.sequences) j["sequences"].push_back({{"shard", shard}, {"drawn", n}});
  if (m.eval_loss) j["eval_loss"] = *m.eval_loss;
  for (const auto& [shard, loss] : m.eval_losses)
    j["eval_losses"].push_back({{"shard", shard}, {"loss", loss}});
  for (const auto& [name, score] : m.tasks) j["tasks"][name] = score;
  if (m.noise_measured) j["noise_scale"] = nullptr;
  if (m.noise_scale) j["noise_scale"] = *m.noise_scale;
  if (m.checkpoint_stall_s) j["checkpoint_stall_s"] = *m.checkpoint_stall_s;
  if (m.checkpoint_write_s) j["checkpoint_write_s"] = *m.checkpoint_write_s;
  return j.dump();
}

std::vector<std::pair<std::string, double>> scalars_of(const StepMetrics& m) {
  std::vector<std::pair<std::string, double>> s = {{"loss/train", m.loss},
                                                   {"optimizer/grad_norm", m.grad_norm},
                                                   {"optimizer/lr", m.lr},
                                                   {"speed/step_s", m.step_s},
                                                   {"speed/mfu", m.mfu},
                                                   {"speed/tokens_per_s", m.tokens_per_s},
                                                   {"seconds/data", m.data_s},
                                                   {"seconds/forward", m.forward_s},
                                                   {"seconds/norm", m.norm_s},
                                                   {"seconds/backward", m.backward_s},
                                                   {"seconds/update", m.update_s},
                                                   {"seconds/other", m.other_s},
                                                   {"memory/total", double(m.peak_total)}};
  for (size_t i = 0; i < kBuckets; i++)
    s.emplace_back("memory/" + std::string(kBucketNames[i]), double(m.peak[i]));
  if (m.comm_s) s.emplace_back("seconds/comm", *m.comm_s);
  for (const auto& [kind, bytes] : m.comm_bytes) s.emplace_back("wire/" + kind, double(bytes));
  if (m.aux_loss) s.emplace_back("loss/aux", *m.aux_loss);
  if (m.z_loss) s.emplace_back("loss/z", *m.z_loss);
  for (size_t l = 0; l < m.expert_load.size(); l++) {
    s.emplace_back("experts/load." + std::to_string(l), m.expert_load[l]);
    s.emplace_back("experts/dropped." + std::to_string(l), m.dropped[l]);
  }
  for (size_t l = 0; l < m.ep_load.size(); l++)
    s.emplace_back("experts/rank_load." + std::to_string(l), m.ep_load[l]);
  if (m.eval_loss) s.emplace_back("loss/eval", *m.eval_loss);
  for (const auto& [name, score] : m.tasks) s.emplace_back("tasks/" + name, score);
  if (m.loss_scale) s.emplace_back("optimizer/loss_scale", *m.loss_scale);
  if (m.noise_scale) s.emplace_back("optimizer/noise_scale", *m.noise_scale);
  if (m.checkpoint_stall_s) s.emplace_back("seconds/checkpoint_stall", *m.checkpoint_stall_s);
  if (m.checkpoint_write_s) s.emplace_back("seconds/checkpoint_write", *m.checkpoint_write_s);
  return s;
}

void keep_lines_up_to(const fs::path& path, int64_t last_step) {
  if (!fs::exists(path)) return;
  std::string text = read_text(path);
  std::string kept;
  bool dropped = false;
  for (size_t at = 0; at < text.size();) {
    size_t end = text.find('\n', at);
    std::string line = text.substr(at, end == std::string::npos ? end : end - at);
    at = end == std::string::npos ? text.size() : end + 1;
    const nlohmann::json j = shallow_json(line);
    bool keep = end != std::string::npos && j.is_object() && j.contains("step") &&
                j["step"].is_number_integer() && j["step"].get<int64_t>() <= last_step;
    if (keep)
      kept += line + '\n';
    else
      dropped = true;
  }
  if (dropped) write_text_atomic(path, kept);
}

MetricsFile::MetricsFile(fs::path path, int64_t last_step) : path_(std::move(path)) {
  keep_lines_up_to(path_, last_step);
}

void MetricsFile::write(const StepMetrics& m) {
  append_line(path_, to_json_line(m));
  written_ = true;
}

// One write of some bytes over the line's closing brace.
void MetricsFile::add_last_save(std::optional<double> stall_s, std::optional<double> write_s) {
  std::string more;
  if (stall_s) more += fmt::format(",\"last_checkpoint_stall_s\":{}", *stall_s);
  if (write_s) more += fmt::format(",\"last_checkpoint_write_s\":{}", *write_s);
  if (more.empty() || !written_) return;
  std::fstream file(path_, std::ios::in | std::ios::out | std::ios::binary);
  file.seekp(-2, std::ios::end);
  file << more + "}\n" << std::flush;
  if (!file) system_failed_in_run(errno, "cannot write {}: {}", path_.string(), std::strerror(errno));
}

}  // namespace trireme
