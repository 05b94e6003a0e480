// trireme convert RUN.toml --to FOLDER: a checkpoint (or model.from) as a Hugging Face folder.
#include "cli/convert.h"

#include "checkpoint/convert.h"
#include "checkpoint/hf.h"
#include "cli/source.h"
#include "tensor/dtype.h"

namespace trireme::cli {

void export_model(const LoadedModel& m, const fs::path& folder, DType dtype, const fs::path& tokenizer) {
  HfOptions o{.dtype = dtype, .bos = {}, .eos = {}, .pad = {}, .copy = {}};
  fs::path config;
  if (!tokenizer.empty()) {
    Tokenizer t = Tokenizer::load(tokenizer);
    if (auto end = t.find_end_of_text()) o.bos = o.eos = *end;
    o.copy.push_back(tokenizer);
    config = tokenizer.parent_path() / "tokenizer_config.json";
    if (fs::exists(config)) o.copy.push_back(config);
  }
  std::vector<float> host;
  auto get = [&](std::string_view name, const Tensor& dst) {
    const Param* p = m.runner->params().find(name);
    require(p != nullptr, "the export asks for a parameter that the model lacks");
    host.resize(size_t(p->numel()));
    m.runner->read_param(*p, "", host);
    convert_elements(name, dst.dtype, dst.data, DType::f32, host.data(), int64_t(host.size()));
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
  auto dtype = std::make_shared<std::string>("f32");
  request->add_to(*verb, false);
  verb->add_option("--to", *to, "folder to write; replaced if it is an export, else refused")->required();
  verb->add_option("--dtype", *dtype, "of the tensors")
      ->capture_default_str()
      ->check(CLI::IsMember({"f32", "bf16", "f16"}));
  verb->callback([request, to, dtype] {
    RunSpec run = request->load();
    // Master copies are f32: read them unrounded, whatever the run computes in.
    run.precision.compute = run.precision.grads = "f32";
    LoadedModel m = load_model(run);
    fs::path tokenizer;
    if (!run.data.tokenizer.empty() || fs::exists(fs::path(run.train.dir) / "tokenizer.json") ||
        (!run.model.from.empty() && fs::exists(fs::path(run.model.from) / "tokenizer.json")))
      tokenizer = tokenizer_path(run);
    export_model(m, *to, dtype_from_name(*dtype), tokenizer);
    fmt::print("{} written to {} as {}\n", m.where, *to, *dtype);
  });
}

}  // namespace trireme::cli
