#include "tiny_run.h"

#include <gtest/gtest.h>

#include "base/json.h"
#include "base/rng.h"
#include "data/shard_writer.h"
#include "device/device.h"
#include "runtime/booking.h"
#include "spec/cluster_spec.h"
#include "spec/run_schedule.h"
#include "text/tokenizer.h"
#include "train/checkpointing.h"
#include "train/launch.h"

namespace trireme::test {
namespace {

constexpr int64_t kVocab = 61;

// Documents of odd lengths in which the next token mostly follows from the one before.
void write_shard(const fs::path& name, uint64_t seed, int64_t documents) {
  ShardWriter writer(name, kVocab);
  std::vector<int32_t> ids;
  for (int64_t d = 0; d < documents; d++) {
    uint64_t key = rng_key(seed, uint64_t(d), "document");
    ids.assign(5 + below(key, 0, 60), 0);
    for (size_t i = 1; i < ids.size(); i++)
      ids[i] = below(key, i, 8) == 0 ? int32_t(below(key, 1000 + i, kVocab)) : (ids[i - 1] * 5 + 7) % kVocab;
    writer.add_document(ids);
  }
  writer.commit();
}

}  // namespace

RunSpec tiny_run(const fs::path& folder, int64_t steps) {
  fs::path data = folder / "data";
  if (!fs::exists(data / "valid.idx")) {
    make_folders(data);
    write_shard(data / "train", 1, 12);
    write_shard(data / "valid", 2, 5);
    ClusterSpec c;
    c.name = "a machine of this test", c.source = "made up", c.threads = 1;
    // What precision.compute = "auto" is must be the same for a run here and for a plan of this machine.
    c.peak = {.f32 = 1e9, .bf16 = make_device("cpu")->native(DType::bf16) ? 2e9 : 0};
    c.memory_bandwidth = 1e10, c.memory_bytes = int64_t(1) << 34;
    save_cluster(c, folder / "cluster.toml");
  }
  RunSpec r;
  r.model = ModelSpec::of("llama");
  r.model.vocab = kVocab, r.model.layers = 2, r.model.hidden = 36, r.model.heads = 3, r.model.kv_heads = 1;
  r.model.ffn = 52;
  r.data.train = (data / "train").string(), r.data.valid = (data / "valid").string(), r.data.seq_len = 13;
  r.batch = {.global = 6, .micro = 2};
  r.optimizer.lr = 1e-2, r.optimizer.warmup = 3;
  r.train.steps = steps, r.train.seed = 7, r.train.threads = 1;
  r.train.dir = (folder / "run").string();
  r.train.async_save = false;  // so that things happen in one order
  r.train.checkpoint_every.count = 3, r.train.keep = 2, r.train.eval_every = 2;
  r.cluster.file = (folder / "cluster.toml").string();
  r.model.finish(r.data.seq_len);
  return r;
}

fs::path tiny_run_file(const fs::path& folder, int64_t steps) {
  save_run(tiny_run(folder, steps), folder / "run.toml");
  return folder / "run.toml";
}

fs::path byte_tokenizer_file(const fs::path& folder) {
  Tokenizer::Parts parts;
  for (int b = 0; b < 256; b++) parts.tokens.push_back(std::string(1, char(b)));
  parts.added.push_back({.content = std::string(kEndOfText), .id = 256});
  Tokenizer(std::move(parts)).save(folder / "tokenizer.json");
  return folder / "tokenizer.json";
}

TrainSummary train_here(RunSpec run, const TrainHooks& hooks, TrainOptions options) {
  run = resolve(run, {.native_bf16 = make_device("cpu")->native(DType::bf16)});
  Schedule schedule = schedule_of(run);
  options.arena_bytes = book_training(run, schedule, int(run.train.threads)).arena_bytes;
  return train_on_threads(run, schedule, {.threads = int(run.train.threads)}, options, hooks);
}

std::vector<std::string> lines_of(std::string_view text) {
  std::vector<std::string> lines;
  while (!text.empty()) {
    size_t end = text.find('\n');
    lines.emplace_back(text.substr(0, end));
    text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
  }
  return lines;
}

Outcome outcome_of(const fs::path& run_dir) {
  Outcome o;
  fs::path root = checkpoint_root(run_dir);
  Found found = find_newest(root);
  for (const std::string& d : found.damaged) ADD_FAILURE() << d;
  for (const std::string& name : names_in(root))
    if (step_of_folder_name(name)) o.checkpoints.push_back(name);
  if (found.newest) {
    const Manifest& m = found.newest->manifest();
    o.step = m.step;
    o.numbers = fmt::format("step {} samples {} tokens {} seed {} state {}", m.step, m.samples, m.tokens,
                            m.seed, m.state.dump());
    for (const std::string& name : found.newest->names()) {
      Shape shape = found.newest->find(name)->global;
      std::string bytes(size_t(shape.numel()) * sizeof(float), '\0');
      found.newest->read(name, whole(shape).box, {0, shape.numel()},
                         Tensor(bytes.data(), {shape.numel()}, DType::f32));
      o.tensors[name] = std::move(bytes);
    }
  }
  fs::path metrics = run_dir / "metrics.jsonl";
  for (const std::string& line : lines_of(fs::exists(metrics) ? read_text(metrics) : "")) {
    nlohmann::json all = nlohmann::json::parse(line), kept;
    for (const char* key : {"step", "loss", "grad_norm", "lr", "tokens", "peak_bytes", "at_peak_bytes"})
      kept[key] = all.at(key);
    for (const char* key : {"eval_loss", "loss_scale", "skipped"})
      if (all.contains(key)) kept[key] = all[key];
    o.metrics.push_back(kept.dump());
  }
  for (const auto& e : fs::recursive_directory_iterator(run_dir))
    if (e.path().extension() == ".part") o.parts.push_back(e.path().string());
  return o;
}

void expect_same(const Outcome& got, const Outcome& want) {
  EXPECT_EQ(got.step, want.step);
  EXPECT_EQ(got.numbers, want.numbers);
  EXPECT_EQ(got.checkpoints, want.checkpoints);
  EXPECT_EQ(got.parts, want.parts);
  EXPECT_EQ(got.metrics, want.metrics);
  ASSERT_EQ(got.tensors.size(), want.tensors.size());
  for (const auto& [name, bytes] : want.tensors) {
    ASSERT_TRUE(got.tensors.count(name)) << name;
    EXPECT_TRUE(got.tensors.at(name) == bytes) << name << " differs";
  }
}

}  // namespace trireme::test
