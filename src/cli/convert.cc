// trireme convert RUN.toml --to FOLDER: a checkpoint (or model.from) as a Hugging Face folder.
#include "cli/convert.h"

#include <cstring>

#include "base/say.h"
#include "checkpoint/convert.h"
#include "checkpoint/hf.h"
#include "cli/source.h"
#include "cli/used_keys.h"
#include "spec/hf_config.h"
#include "tensor/dtype.h"
#include "train/adapter_files.h"
#include "train/checkpointing.h"

namespace trireme::cli {
namespace {

constexpr char kTemplate[] = "chat_template.jinja";

bool same_tokenizer(const fs::path& a, const fs::path& b) {
  return fs::exists(a) && fs::exists(b) &&
         Tokenizer::load(a).fingerprint() == Tokenizer::load(b).fingerprint();
}

// The files beside the weights, and the ids that config.json names: all that model.from has, unless the run
// has a tokenizer of its own; then that, with the end-of-text token that it knows.
void add_tokenizer(HfOptions& o, const RunSpec& run) {
  const fs::path own = run.data.tokenizer, from = run.model.from;
  const bool of_folder =
      !from.empty() &&
      (own.empty() || fs::weakly_canonical(own).parent_path() == fs::weakly_canonical(from) ||
       same_tokenizer(own, from / "tokenizer.json"));
  if (of_folder) {
    o.copy = hf_companions(from);
    HfIds ids = hf_token_ids(from / "config.json");
    o.bos = ids.bos, o.eos = ids.eos, o.pad = ids.pad;
    // The template that the run was tuned with stands in for the model's.
    const fs::path own_template = own.empty() ? fs::path() : own.parent_path() / kTemplate;
    if (!fs::exists(own_template)) return;
    std::erase_if(o.copy, [](const fs::path& f) { return f.filename() == kTemplate; });
    o.copy.push_back(own_template);
    return;
  }
  const std::optional<fs::path> found = find_tokenizer(run);
  if (!found) {
    say("note: no tokenizer is written: {}; name one with --set data.tokenizer=FILE\n",
        no_tokenizer_text(run));
    return;
  }
  const fs::path& tokenizer = *found;
  Tokenizer t = Tokenizer::load(tokenizer);
  if (auto end = t.find_end_of_text()) o.bos = *end, o.eos = {*end};
  o.copy.push_back(tokenizer);
  for (const char* name : {kTemplate, "special_tokens_map.json"})
    if (const fs::path beside = tokenizer.parent_path() / name; fs::exists(beside)) o.copy.push_back(beside);
  fs::path config = tokenizer.parent_path() / "tokenizer_config.json";
  if (fs::exists(config))
    o.copy.push_back(config);
  else
    o.tokenizer_config = t.config_json(run.model.max_positions);
}

// Counts the values that are not finite. The export holds them unchanged; the note names their tensors.
class NonfiniteNote {
 public:
  void look(std::string_view name, const Tensor& t) {
    int64_t bad = 0;
    if (t.dtype == DType::f32) bad = count<uint32_t>(t, 0x7f800000);
    if (t.dtype == DType::bf16) bad = count<uint16_t>(t, 0x7f80);
    if (t.dtype == DType::f16) bad = count<uint16_t>(t, 0x7c00);
    if (bad == 0 || ++tensors_ > kMost) return;
    named_ += fmt::format("{}{} of {} values of {}", named_.empty() ? "" : ", ", bad, t.numel(), name);
  }
  ~NonfiniteNote() {
    if (tensors_ > 0)
      say("note: values that are not finite, written unchanged: {}{}\n", named_,
          tensors_ > kMost ? fmt::format(", and of {} more tensors", tensors_ - kMost) : "");
  }

 private:
  static constexpr int64_t kMost = 3;
  // An exponent of ones alone is infinity or NaN.
  template <class Bits>
  static int64_t count(const Tensor& t, Bits exponent) {
    int64_t n = 0;
    for (int64_t i = 0; i < t.numel(); i++) {
      Bits bits;
      std::memcpy(&bits, t.data + i * int64_t(sizeof bits), sizeof bits);
      n += (bits & exponent) == exponent;
    }
    return n;
  }
  std::string named_;
  int64_t tensors_ = 0;
};

// model.from itself, where no checkpoint stands in its place: tensor for tensor, with nothing computed.
void copy_folder(const RunSpec& run, const fs::path& to, const std::string& dtype) {
  HfFolder folder(run.model.from, run.model);
  HfOptions o;
  add_tokenizer(o, run);
  o.dtype = dtype == "auto" ? folder.dtype() : dtype_from_name(dtype);
  if (dtype == "auto") o.dtype_of = [&](std::string_view name) { return folder.dtype(name); };
  if (to.has_parent_path()) make_folders(to.parent_path());
  NonfiniteNote note;
  export_hf(
      to, run.model,
      [&](std::string_view name, const Tensor& dst) {
        folder.read(name, dst);
        note.look(name, dst);
      },
      o);
}

bool has_checkpoints(const fs::path& run_dir) {
  fs::path root = checkpoint_root(run_dir);
  return fs::exists(root) && !fs::is_empty(root);
}

}  // namespace

void export_model(const LoadedModel& m, const fs::path& folder, DType dtype) {
  HfOptions o{.dtype = dtype};
  add_tokenizer(o, m.run);
  std::vector<float> host;
  NonfiniteNote note;
  auto get = [&](std::string_view name, const Tensor& dst) {
    const Param* p = m.runner->params().find(name);
    require(p != nullptr, "the export asks for a parameter that the model lacks");
    host.resize(size_t(p->numel()));
    m.runner->memory().read_param(*p, "", host);
    merge_adapter(*m.runner, *p, host);
    convert_elements(name, dst.dtype, dst.data, DType::f32, host.data(), p->numel());
    note.look(name, dst);
  };
  if (folder.has_parent_path()) make_folders(folder.parent_path());
  export_hf(folder, m.run.model, get, o);
}

void add_convert(CLI::App& app) {
  CLI::App* verb =
      app.add_subcommand("convert",
                         "writes the newest checkpoint of a run, or model.from, as a Hugging Face "
                         "folder\nexample: trireme convert runs/demo/run.toml --to runs/demo/hf");
  auto request = std::make_shared<RunRequest>();
  auto to = std::make_shared<std::string>();
  auto dtype = std::make_shared<std::string>("auto");
  add_used_run(*verb, *request, false);
  verb->add_option("--to", *to, "folder to write; replaced if it is an export, else refused")->required();
  verb->add_option("--dtype", *dtype,
                   "of the tensors; auto: a checkpoint's f32, or what each tensor of model.from is stored in")
      ->capture_default_str()
      ->check(CLI::IsMember({"auto", "f32", "bf16", "f16"}));
  auto adapter = std::make_shared<bool>(false);
  verb->add_flag(
      "--adapter", *adapter,
      "writes the adapter alone, as adapter_config.json and adapter_model.safetensors (PEFT); default: "
      "merged into the base model");
  verb->callback([request, to, dtype, adapter] {
    check_set_keys("convert", *request);
    UsedRun used = load_used(*request);
    RunSpec& run = used.run;
    std::error_code none;
    if (!run.model.from.empty() && fs::equivalent(*to, run.model.from, none))
      bad_request("--to {}: is model.from, the model that the run begins with; give another folder", *to);
    if (*adapter && !run.lora.active())
      bad_request("--adapter: lora.rank = 0: the run trains all weights, and has no adapter");
    if (!run.lora.active() && !run.model.from.empty() && used.checkpoint.empty() &&
        !has_checkpoints(run.train.dir)) {
      copy_folder(run, *to, *dtype);
      print_text("{} written to {} as {}\n", run.model.from, *to, *dtype == "auto" ? "stored" : *dtype);
      return;
    }
    // Master copies are f32: read them unrounded, whatever the run computes in.
    run.precision.compute = run.precision.grads = "f32";
    LoadedModel m = load_model(run, 0, used.checkpoint);
    if (*adapter) {
      write_adapter(*m.runner, *to);
      print_text("the adapter of {} written to {} in PEFT's format\n", m.where, *to);
      return;
    }
    const std::string type = *dtype == "auto" ? "f32" : *dtype;
    export_model(m, *to, dtype_from_name(type));
    print_text("{} written to {} as {}\n", m.where, *to, type);
  });
}

}  // namespace trireme::cli
