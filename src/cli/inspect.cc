// trireme inspect PATH: what is in a checkpoint, a token shard or a safetensors file.
#include "cli/cli.h"
#include "data/token_shard.h"
#include "train/checkpointing.h"

namespace trireme::cli {
namespace {

void show_checkpoint(const Checkpoint& c) {
  const Manifest& m = c.manifest();
  fmt::print("checkpoint {}\n  step {}, {} sequences and {} tokens consumed, seed {}, saved {}\n  run {}\n",
             c.folder().string(), m.step, m.samples, m.tokens, m.seed, m.saved_at, hex64(m.spec_hash));
  for (const CheckpointFile& f : m.files)
    fmt::print("  file {}  {}\n", f.name, human_bytes(int64_t(fs::file_size(c.folder() / f.name))));
  for (const std::string& name : c.names()) {
    const Checkpoint::Stored* s = c.find(name);
    fmt::print("  {:<44} {:<6} {}\n", name, name_of(s->dtype), to_string(s->global));
  }
}

void show_safetensors(const fs::path& path) {
  SafetensorsFile f(path);
  fmt::print("safetensors {}: {} tensors\n", path.string(), f.header().entries.size());
  for (const auto& [key, value] : f.header().metadata) fmt::print("  metadata {} = {}\n", key, value);
  for (const SafetensorsEntry& e : f.header().entries)
    fmt::print("  {:<52} {:<6} {}\n", e.name, e.stored_type, to_string(e.shape));
}

void show_shard(const fs::path& path) {
  TokenShard s = TokenShard::open(path);
  fmt::print("token shard {}: {} tokens in {} document(s), {} bytes each\n", s.name(), s.tokens(),
             s.documents(), size_of(s.type()));
}

}  // namespace

void add_inspect(CLI::App& app) {
  CLI::App* verb =
      app.add_subcommand("inspect",
                         "shows what is in a checkpoint (or a run folder's newest), a safetensors file "
                         "or a token shard\nexample: trireme inspect runs/demo");
  auto path = std::make_shared<std::string>();
  verb->add_option("PATH", *path, "run folder, checkpoint, .safetensors file or token shard")->required();
  verb->callback([path] {
    fs::path p = *path;
    if (fs::exists(p / kManifestName)) return show_checkpoint(Checkpoint::open(p));
    if (fs::is_directory(p / "checkpoints")) {
      Found found = find_newest(checkpoint_root(p));
      for (const std::string& d : found.damaged) fmt::print("damaged: {}\n", d);
      if (!found.newest) bad_request("{} holds no complete checkpoint", p.string());
      return show_checkpoint(*found.newest);
    }
    if (p.extension() == ".safetensors") return show_safetensors(p);
    if (fs::is_directory(p) || !(fs::exists(p) || fs::exists(p.string() + ".bin")))
      bad_request("{} is no run folder, checkpoint, safetensors file or token shard", p.string());
    show_shard(p);
  });
}

}  // namespace trireme::cli
