// The identity of a run: its data by content, settings that decide the loss; and changes that are allowed.
#include <gtest/gtest.h>

#include <chrono>
#include <cstring>
#include <fstream>
#include <functional>
#include <limits>

#include "base/error.h"
#include "base/interrupt.h"
#include "base/json.h"
#include "data/shard_writer.h"
#include "device/device.h"
#include "tiny_run.h"
#include "train/checkpointing.h"
#include "train/resume.h"

namespace trireme::test {
namespace {

std::string refusal(const std::function<void()>& f, Fault fault = Fault::request) {
  try {
    f();
  } catch (const Error& e) {
    EXPECT_EQ(e.fault, fault) << e.what();
    EXPECT_EQ(std::string(e.what()).find('\n'), std::string::npos) << e.what();
    return e.what();
  }
  ADD_FAILURE() << "nothing was refused";
  return "";
}

void expect_has(const std::string& text, std::initializer_list<std::string> parts) {
  for (const std::string& p : parts) EXPECT_NE(text.find(p), std::string::npos) << p << " not in: " << text;
}

std::string notes_of(const RunSpec& run) {
  std::string notes;
  TrainHooks hooks;
  hooks.note = [&](const std::string& line) { notes += line + "\n"; };
  EXPECT_EQ(train_here(run, hooks).ending, Ending::done);
  return notes;
}

// Two shards of training data, both with indexes; one held out. Steps 3 and 6 are saved.
RunSpec mixed_run(const fs::path& folder, int64_t steps = 6) {
  RunSpec r = tiny_run(folder, steps);
  if (!fs::exists(folder / "data/more.bin"))
    for (const char* end : {".bin", ".idx"})
      fs::copy_file(folder / (std::string("data/valid") + end), folder / (std::string("data/more") + end));
  r.data.train.list.push_back((folder / "data/more").string());
  r.data.weights = {2, 1};
  r.optimizer.schedule = "constant";
  return r;
}

void forget_newest(const RunSpec& run) {
  fs::remove_all(find_newest(checkpoint_root(run.train.dir)).newest->folder());
}

// Rewrites a shard without our record, as other programs do, with one part changed.
struct Rewritten {
  const char* name;  // a shard in data/
  const char* file;  // the file that differs
  std::function<void(std::string& bin, std::string& idx)> change;
};

void rewrite(const fs::path& shard, const std::function<void(std::string&, std::string&)>& change) {
  std::string bin = read_text(shard.string() + ".bin");
  std::string idx = read_text(shard.string() + ".idx");
  idx.resize(idx.size() - 24);
  change(bin, idx);
  put_file(shard.string() + ".bin", bin);
  put_file(shard.string() + ".idx", idx);
}

// Each shard of a mixture and each file: replaced, reversed, cut, appended, one token changed, other borders
// of documents. The refusal names the file, before anything is trained or removed.
TEST(Identity, OtherDataIsRefusedByTheNameOfItsFile) {
  TempFolder tmp;
  const RunSpec run = mixed_run(tmp.path());
  for (const char* name : {"train", "more", "valid"}) rewrite(tmp / "data" / name, [](auto&, auto&) {});
  train_here(run);
  forget_newest(run);
  const Files run_files = files_in(run.train.dir);
  const Files data = files_in(tmp / "data");
  auto swap_first_lengths = [](std::string&, std::string& idx) {
    // Documents of other lengths, sequences of the same bytes: lengths are i32 from byte 34 on.
    int32_t lengths[2];
    std::memcpy(lengths, idx.data() + 34, sizeof lengths);
    lengths[0]++, lengths[1]--;
    std::memcpy(idx.data() + 34, lengths, sizeof lengths);
    uint64_t sequences;
    std::memcpy(&sequences, idx.data() + 18, sizeof sequences);
    int64_t second = 2 * lengths[0];
    std::memcpy(idx.data() + 34 + 4 * sequences + 8, &second, sizeof second);
  };
  const Rewritten all[] = {
      {"train", "train.bin", [](std::string& bin, auto&) { bin[100] = char(bin[100] ^ 1); }},
      {"train", "train.bin", [](std::string& bin, auto&) { std::swap(bin[0], bin[2]); }},
      {"train", "train.idx", swap_first_lengths},
      {"more", "more.bin", [](std::string& bin, auto&) { bin[bin.size() - 2] ^= 1; }},
      {"more", "more.idx", swap_first_lengths},
      {"valid", "valid.bin", [](std::string& bin, auto&) { bin[0] ^= 1; }},
  };
  for (const Rewritten& r : all) {
    SCOPED_TRACE(r.file);
    std::string bin = data.at(std::string(r.name) + ".bin");
    std::string idx = data.at(std::string(r.name) + ".idx");
    r.change(bin, idx);
    put_file(tmp / "data" / (std::string(r.name) + ".bin"), bin);
    put_file(tmp / "data" / (std::string(r.name) + ".idx"), idx);
    expect_has(refusal([&] { train_here(run); }),
               {r.file, "the same size, other content", "step-00000003", "data."});
    for (const char* end : {".bin", ".idx"})
      put_file(tmp / "data" / (r.name + std::string(end)), data.at(r.name + std::string(end)));
  }
  EXPECT_EQ(damage(run_files, files_in(run.train.dir)), "");
  EXPECT_EQ(train_here(run).last_step, 6);
}

// Raw shards: shorter, longer, and the same bytes in another file under another name.
TEST(Identity, ARawShardIsItsBytes) {
  TempFolder tmp;
  RunSpec run = tiny_run(tmp.path(), 4);
  const fs::path raw = tmp / "raw.bin";
  put_file(raw, read_text(tmp / "data/train.bin"));
  run.data.train = raw.string();
  const std::string good = read_text(raw);
  train_here(run);
  forget_newest(run);
  for (const std::string& other :
       {good.substr(0, good.size() - 2), good + good, good + std::string("\1\0", 2)}) {
    put_file(raw, other);
    expect_has(refusal([&] { train_here(run); }),
               {"data.train", fmt::format("raw.bin: {} bytes -> {} bytes", good.size(), other.size())});
  }
  fs::create_directories(tmp / "moved");
  put_file(tmp / "moved/other.bin", good);
  fs::remove(raw);
  run.data.train = (tmp / "moved/other.bin").string();
  EXPECT_EQ(train_here(run).last_step, 4);
  run.data.train.list.push_back((tmp / "data/train").string());
  expect_has(refusal([&] { train_here(run); }), {"data.train", "1 shard", "2"});
}

// A folder that moved is the same run: the result is the uninterrupted run's.
TEST(Identity, AMovedFolderIsTheSameRun) {
  TempFolder tmp, whole;
  RunSpec run = mixed_run(tmp.path());
  train_here(run);
  train_here(mixed_run(whole.path()));
  forget_newest(run);
  fs::rename(tmp / "data", tmp / "elsewhere");
  for (Texts* t : {&run.data.train, &run.data.valid})
    for (std::string& name : t->list) name = (tmp / "elsewhere" / fs::path(name).filename()).string();
  train_here(run);
  expect_same(outcome_of(tmp / "run"), outcome_of(whole / "run"));
}

// Held-out data under another name may differ, and the run says so.
TEST(Identity, OtherHeldOutDataIsNoted) {
  TempFolder tmp;
  RunSpec run = mixed_run(tmp.path());
  train_here(run);
  forget_newest(run);
  run.data.valid = (tmp / "data/train").string();
  expect_has(notes_of(run), {"data.valid", "other held-out data than before"});
}

// A shard with our record that was damaged after `tokenize` is refused at the first start.
TEST(Identity, ARecordedShardIsHeldAgainstItsRecord) {
  TempFolder tmp;
  const RunSpec run = mixed_run(tmp.path());
  flip_byte(tmp / "data/more.bin", 9);
  expect_has(refusal([&] { train_here(run); }),
             {"more.bin", "differs from the content that tokenize recorded"});
  EXPECT_FALSE(fs::exists(tmp / "run"));
}

// Checkpoints of releases that did not record the content: names decide, as they did.
TEST(Identity, WithoutARecordNamesDecide) {
  TempFolder tmp;
  RunSpec run = tiny_run(tmp.path(), 4);
  train_here(run);
  const Checkpoint c = Checkpoint::open(find_newest(checkpoint_root(run.train.dir)).newest->folder());
  Manifest older = c.manifest();
  older.state.erase("data"), older.state.erase("replicas_agreed");
  write_text_atomic(c.folder() / "manifest.json", to_text(older));
  EXPECT_EQ(train_here(run).last_step, 4);
  const std::string before = run.data.train.first();
  run.data.train = run.data.valid;
  expect_has(refusal([&] { train_here(run); }), {"data.train: " + before + " -> " + run.data.valid.first()});
}

// Data that changes while the run reads it: the run ends, and what the changed data moved is not saved.
TEST(Identity, DataThatChangesDuringARunEndsIt) {
  for (bool longer_ago : {false, true}) {
    TempFolder tmp;
    RunSpec run = tiny_run(tmp.path(), 9);
    run.data.prefetch = 0;
    TrainHooks hooks;
    hooks.step = [&](const StepMetrics& m) {
      if (m.step != 4) return;
      const fs::path bin = tmp / "data/train.bin";
      if (longer_ago) fs::last_write_time(bin, fs::last_write_time(bin) - std::chrono::hours(1));
      std::fstream f(bin, std::ios::in | std::ios::out | std::ios::binary);
      f.seekp(40).put('\5').put('\0');
      f.seekp(42).put('\6').put('\0');
    };
    expect_has(refusal([&] { train_here(run, hooks); }, Fault::run),
               {"data.train", "train.bin", "changed while the run reads it"});
    EXPECT_EQ(find_newest(checkpoint_root(run.train.dir)).newest->manifest().step, 3);
    expect_has(refusal([&] { train_here(run); }), {"train.bin"});
  }
}

TEST(Identity, HeldOutDataThatChangesDuringARunEndsIt) {
  TempFolder tmp;
  RunSpec run = tiny_run(tmp.path(), 9);
  TrainHooks hooks;
  hooks.step = [&](const StepMetrics& m) {
    if (m.step != 5) return;
    rewrite(tmp / "data/valid", [](std::string& bin, auto&) { bin[0] ^= 1; });
  };
  expect_has(refusal([&] { train_here(run, hooks); }, Fault::run), {"data.valid", "valid", "changed"});
}

struct More {
  const char* schedule;
  int64_t first, then;
  bool same;  // the learning rates of the first steps
};

// More steps, where the learning rates of the steps done are those of the longer run: it is that run.
TEST(Identity, StepsMayChangeWhileTheLearningRatesStay) {
  for (const More& more : {More{"constant", 4, 8, true}, {"wsd", 27, 60, false}, {"cosine", 4, 8, false}}) {
    SCOPED_TRACE(more.schedule);
    TempFolder tmp, whole;
    auto spec = [&](const fs::path& folder, int64_t steps) {
      RunSpec r = tiny_run(folder, steps);
      r.optimizer.schedule = more.schedule;
      r.train.eval_every = 0;
      r.data.valid = "";
      r.train.checkpoint_every.count = 0;
      return r;
    };
    train_here(spec(tmp.path(), more.first));
    if (!more.same) {
      expect_has(refusal([&] { train_here(spec(tmp.path(), more.then)); }),
                 {fmt::format("train.steps: {} -> {}", more.first, more.then), "moments", "train.branch",
                  "depend on train.steps"});
      continue;
    }
    expect_has(notes_of(spec(tmp.path(), more.then)), {"train.steps: 4 -> 8", "4 steps done are the same"});
    train_here(spec(whole.path(), more.then));
    Outcome got = outcome_of(tmp / "run"), want = outcome_of(whole / "run");
    got.checkpoints = want.checkpoints;
    expect_same(got, want);
    expect_has(refusal([&] { train_here(spec(tmp.path(), 5)); }), {"train.steps = 5", "8 steps already"});
  }
}

// Before its decay wsd is constant: a run that is stopped there may become longer.
TEST(Identity, AStoppedWsdRunMayBecomeLonger) {
  TempFolder tmp, whole;
  auto spec = [&](const fs::path& folder, int64_t steps) {
    RunSpec r = tiny_run(folder, steps);
    r.optimizer.schedule = "wsd";
    r.data.valid = "";
    r.train.checkpoint_every.count = 0;
    r.train.eval_every = 0;
    return r;
  };
  TrainHooks hooks;
  hooks.step = [](const StepMetrics& m) {
    if (m.step == 5) request_interrupt();
  };
  EXPECT_EQ(train_here(spec(tmp.path(), 8), hooks).last_step, 5);
  clear_interrupt();
  train_here(spec(tmp.path(), 12));
  train_here(spec(whole.path(), 12));
  Outcome got = outcome_of(tmp / "run"), want = outcome_of(whole / "run");
  got.checkpoints = want.checkpoints;
  expect_same(got, want);
}

// The auxiliary loss is a function of a microbatch: with another one the checkpoint is another run's.
TEST(Identity, WhatAUnitOfExpertsSpansStays) {
  TempFolder tmp;
  auto spec = [&](int64_t micro) {
    RunSpec r = tiny_run(tmp.path(), 3);
    r.model = ModelSpec::of("mixtral");
    r.model.vocab = 61;
    r.model.layers = 1;
    r.model.hidden = 36;
    r.model.heads = 3;
    r.model.kv_heads = 1;
    r.model.ffn = 52;
    r.model.experts = 4;
    r.moe.aux_loss = 0.5;
    r.moe.unit = "microbatch";
    r.batch.micro = micro;
    r.model.finish(r.data.seq_len);
    return r;
  };
  train_here(spec(2));
  expect_has(refusal([&] { train_here(spec(1)); }),
             {"moe.unit: \"microbatch\" of batch.micro = 2 -> \"microbatch\" of batch.micro = 1"});
}

// An update that damages the weights: the run ends with an error that names what is not finite, and the
// checkpoint of that step does not exist. With data that is held out or without, at the end or between.
TEST(Identity, DamagedWeightsAreNotSaved) {
  for (bool async : {false, true})
    for (const char* held_out : {"", "valid"})
      for (int64_t steps : {1, 4}) {
        SCOPED_TRACE(fmt::format("async {}, held out '{}', {} steps", async, held_out, steps));
        TempFolder tmp;
        RunSpec run = tiny_run(tmp.path(), steps);
        run.optimizer.lr = 1e12;
        run.optimizer.warmup = 0;
        run.optimizer.schedule = "constant";
        run.data.valid = *held_out ? (tmp / "data/valid").string() : "";
        run.train.async_save = async;
        run.train.checkpoint_every.count = 1;
        const std::string told = refusal([&] { train_here(run); }, Fault::run);
        expect_has(told, {"step 1", "not finite", "layer"});
        EXPECT_FALSE(find_newest(checkpoint_root(run.train.dir)).newest);
        EXPECT_EQ(names_in(checkpoint_root(run.train.dir)), std::vector<std::string>());
      }
}

TEST(Identity, ATensorThatIsNotFiniteIsNamed) {
  for (float bad : {std::numeric_limits<float>::infinity(), -std::numeric_limits<float>::infinity(),
                    std::numeric_limits<float>::quiet_NaN()})
    for (size_t at : {0, 4}) {
      std::vector<float> x(5, std::numeric_limits<float>::max());
      const NamedTensor t{.name = "blocks.0.mlp.up.weight/exp_avg_sq",
                          .global = {5},
                          .box = whole({5}).box,
                          .range = {0, 5},
                          .host_data = Tensor(x.data(), {5}, DType::f32)};
      refuse_nonfinite(t, 7);
      x[at] = bad;
      expect_has(refusal([&] { refuse_nonfinite(t, 7); }, Fault::run),
                 {"step 7: 1 of 5 values of blocks.0.mlp.up.weight/exp_avg_sq"});
    }
}

// A backward pass multiplies weights: a finite loss does not show that its products are finite.
TEST(Identity, AWeightWhoseSquareIsNotFiniteIsNamed) {
  for (const char* name : {"w/master", "w/exp_avg"}) {
    std::vector<float> x(5, -1.8e19f);
    const NamedTensor t{.name = name,
                        .global = {5},
                        .box = whole({5}).box,
                        .range = {0, 5},
                        .host_data = Tensor(x.data(), {5}, DType::f32)};
    refuse_nonfinite(t, 7);
    x[4] = -1.9e19f;
    expect_has(refusal([&] { refuse_nonfinite(t, 7); }, Fault::run), {"step 7: 1 of 5 values of ", name});
  }
}

TEST(Identity, WeightsThatOnlyABackwardPassShowsAreNotSaved) {
  for (bool async : {false, true}) {
    TempFolder tmp;
    RunSpec run = tiny_run(tmp.path(), 1);
    run.optimizer.lr = 1e30;
    run.optimizer.warmup = 0;
    run.optimizer.schedule = "constant";
    run.data.valid = "";
    run.train.async_save = async;
    expect_has(refusal([&] { train_here(run); }, Fault::run), {"step 1", "not finite"});
    EXPECT_FALSE(find_newest(checkpoint_root(run.train.dir)).newest);
  }
}

// A file that cannot be read is not damaged: older checkpoints do not take its place. Address 0 of a process
// cannot be read: EIO.
TEST(Identity, ACheckpointThatCannotBeReadEndsTheRunAsEnvironment) {
  for (int64_t dp : {1, 3}) {
    TempFolder tmp;
    RunSpec run = tiny_run(tmp.path(), 6);
    run.layout.dp = dp;
    train_here(run);
    const fs::path manifest = find_newest(checkpoint_root(run.train.dir)).newest->folder() / kManifestName;
    fs::rename(manifest, tmp / "kept.json");
    fs::create_symlink("/proc/self/mem", manifest);
    expect_has(refusal([&] { train_here(run); }, Fault::environment), {manifest.string()});
    fs::remove(manifest);
    fs::rename(tmp / "kept.json", manifest);
    EXPECT_EQ(train_here(run).last_step, 6);
  }
}

// No save made a folder whose manifest is a pipe. The run starts at step 1, and deletes nothing.
TEST(Identity, FoldersThatNoSaveMadeAreSetAside) {
  TempFolder tmp;
  RunSpec run = tiny_run(tmp.path(), 3);
  run.train.checkpoint_every.count = 3;
  train_here(run);
  const fs::path root = checkpoint_root(run.train.dir);
  const fs::path folder = root / "step-00000003";
  const std::string weights = read_text(folder / "rank-00000.safetensors");
  const std::string metrics = read_text(tmp / "run/metrics.jsonl");
  fs::remove(folder / kManifestName);
  // Without a manifest the user decides.
  expect_has(refusal([&] { train_here(run); }), {"no checkpoint in", "step-00000003"});
  fs::create_directory(folder / kManifestName);
  const std::string notes = notes_of(run);
  expect_has(notes, {"passed over a damaged checkpoint", "step-00000003.damaged", "metrics.jsonl.damaged"});
  EXPECT_EQ(names_in(root), (std::vector<std::string>{"step-00000003", "step-00000003.damaged"}));
  EXPECT_EQ(read_text(root / "step-00000003.damaged/rank-00000.safetensors"), weights);
  EXPECT_EQ(read_text(folder / "rank-00000.safetensors"), weights);
  EXPECT_EQ(read_text(tmp / "run/metrics.jsonl.damaged"), metrics);
}

// A part that changed in memory between its hash and its file is not written.
TEST(Identity, WhatChangesInMemoryIsNotWritten) {
  TempFolder tmp;
  fs::create_directories(tmp / "x");
  std::vector<float> x(64, 0.5f);
  NamedTensor t{.name = "w/master",
                .global = {64},
                .box = whole({64}).box,
                .range = {0, 64},
                .host_data = Tensor(x.data(), {64}, DType::f32)};
  t.xxh3 = hash64(x.data(), 256);
  write_parts(tmp / "x", "good.safetensors", std::span(&t, 1));
  x[63] = 0.5000001f;
  expect_has(refusal([&] { write_parts(tmp / "x", "bad.safetensors", std::span(&t, 1)); }, Fault::run),
             {"w/master changed in memory"});
  EXPECT_FALSE(fs::exists(tmp / "x/bad.safetensors"));
}

int64_t bytes_read() {
  std::ifstream io("/proc/self/io");
  std::string key;
  int64_t bytes = -1;
  while (io >> key && key != "rchar:") {
  }
  io >> bytes;
  return bytes;
}

// A resume reads the newest checkpoint once for its hashes, whatever the number of ranks and of older ones.
TEST(Identity, AResumeReadsTheNewestCheckpointOnce) {
  TempFolder tmp;
  RunSpec run = tiny_run(tmp.path(), 6);
  run.model.vocab = 4096;
  run.model.hidden = 96, run.model.finish(run.data.seq_len);
  run.layout.dp = 3;
  run.layout.zero = 1;
  run.train.eval_every = 0;
  run.data.valid = "";
  run.train.checkpoint_every.count = 1;
  run.train.keep = 9;
  train_here(run);
  const fs::path newest = find_newest(checkpoint_root(run.train.dir), Verify::sizes).newest->folder();
  int64_t size = 0;
  for (const auto& e : fs::directory_iterator(newest)) size += int64_t(e.file_size());
  flip_byte(checkpoint_root(run.train.dir) / "step-00000002/rank-00001.safetensors", 5000);  // is not read
  const int64_t before = bytes_read();
  EXPECT_EQ(train_here(run).last_step, 6);
  const int64_t read = bytes_read() - before;
  EXPECT_GE(read, size - 10000);  // the manifest is mapped
  EXPECT_LT(read, size * 5 / 4) << size;

  // Each rank examines its part: damage in any file is found.
  for (int rank = 0; rank < 3; rank++) {
    const fs::path file = newest / fmt::format("rank-{:05}.safetensors", rank);
    const std::string good = read_text(file);
    flip_byte(file, size_t(good.size() - 100));
    std::string notes;
    TrainHooks hooks;
    hooks.note = [&](const std::string& line) { notes += line + "\n"; };
    int64_t start = -1;
    hooks.start = [&](int64_t done) { start = done, request_interrupt(); };
    train_here(run, hooks);
    clear_interrupt();
    EXPECT_EQ(start, 5);
    expect_has(notes, {"passed over a damaged checkpoint", file.filename().string(), "resumed from step 5"});
    put_file(file, good);
  }
}

}  // namespace
}  // namespace trireme::test
