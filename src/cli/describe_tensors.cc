// Files of tensors: checkpoints, safetensors, Hugging Face folders.
#include <numeric>

#include "checkpoint/safetensors.h"
#include "cli/describe.h"
#include "cost/flops.h"
#include "spec/hf_config.h"
#include "train/checkpointing.h"

namespace trireme::cli {
namespace {

Description dims(const Shape& s) {
  Description d = Description::array();
  for (int i = 0; i < s.rank; i++) d.push_back(s[i]);
  return d;
}

}  // namespace

Description describe_checkpoint(const fs::path& p) {
  Checkpoint c = Checkpoint::open(p);  // every byte is held against the manifest's hashes
  const Manifest& m = c.manifest();
  Description d = {{"kind", "checkpoint"}, {"path", p.string()}};
  d["step"] = m.step, d["sequences"] = m.samples, d["tokens"] = m.tokens, d["seed"] = m.seed;
  d["saved_at"] = m.saved_at, d["run"] = hex64(m.spec_hash);
  Description files = Description::array(), tensors = Description::array();
  int64_t numbers = 0;
  for (const CheckpointFile& f : m.files)
    files.push_back({{"file", f.name}, {"bytes", f.digest.bytes}, {"xxh3", hex64(f.digest.xxh3)}});
  for (const std::string& name : c.names()) {
    const Checkpoint::Stored* s = c.find(name);
    tensors.push_back({{"tensor", name}, {"dtype", name_of(s->dtype)}, {"shape", dims(s->global)}});
    numbers += s->global.numel();
  }
  d["numbers"] = numbers, d["files"] = files, d["tensors"] = tensors;
  return d;
}

Description describe_safetensors(const fs::path& p, FileHashes& hashes) {
  SafetensorsFile f(p);
  Description d = {{"kind", "safetensors"}, {"path", p.string()}, {"bytes", int64_t(fs::file_size(p))}};
  Description tensors = Description::array(), metadata = Description::object();
  int64_t numbers = 0;
  for (const SafetensorsEntry& e : f.header().entries) {
    tensors.push_back(
        {{"tensor", e.name}, {"dtype", e.stored_type}, {"shape", dims(e.shape)}, {"bytes", e.end - e.begin}});
    numbers += e.shape.numel();
  }
  for (const auto& [key, value] : f.header().metadata) metadata[key] = value;
  d["xxh3"] = hashes.of(p);
  d["count"] = tensors.size(), d["numbers"] = numbers;
  if (!metadata.empty()) d["metadata"] = metadata;
  d["tensors"] = tensors;
  return d;
}

Description describe_hf_folder(const fs::path& p, FileHashes& hashes) {
  std::vector<std::string> notes;
  ModelSpec m = model_from_hf(p / "config.json", &notes);
  Description d = {{"kind", "Hugging Face folder"}, {"path", p.string()}};
  d["model"] = m.arch, d["parameters"] = parameters(m), d["layers"] = m.layers, d["hidden"] = m.hidden;
  d["heads"] = m.heads, d["kv_heads"] = m.kv_heads, d["ffn"] = m.ffn, d["vocab"] = m.vocab;
  d["max_positions"] = m.max_positions, d["tied"] = m.tied;
  d["tokenizer"] = fs::exists(p / "tokenizer.json");
  if (!notes.empty()) d["notes"] = notes;
  Description files = Description::array();
  std::vector<fs::path> paths;
  for (const auto& e : fs::directory_iterator(p))
    if (e.is_regular_file()) paths.push_back(e.path());
  std::sort(paths.begin(), paths.end());
  for (const fs::path& file : paths) {
    Description f = {{"file", file.filename().string()}, {"bytes", int64_t(fs::file_size(file))}};
    if (file.extension() == ".safetensors") {
      SafetensorsFile t(file);
      f["tensors"] = t.header().entries.size();
      if (!t.header().entries.empty()) f["dtype"] = t.header().entries.front().stored_type;
      f["xxh3"] = hashes.of(file);
    }
    files.push_back(f);
  }
  d["files"] = files;
  return d;
}

}  // namespace trireme::cli
