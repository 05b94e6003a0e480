// trireme inspect PATH: what a file or folder is, and what is in it.
#include "cli/describe.h"

namespace trireme::cli {

void add_inspect(CLI::App& app) {
  CLI::App* verb = app.add_subcommand(
      "inspect",
      "what a file or folder is and what is in it: run folder, checkpoint, trace, Hugging Face "
      "folder, safetensors, tokenizer, token shard, run or cluster file\n"
      "example: trireme inspect runs/demo/trace.json");
  auto path = std::make_shared<std::string>();
  auto json = std::make_shared<bool>(false);
  verb->add_option("PATH", *path, "file or folder")->required();
  verb->add_flag("--json", *json, "prints JSON");
  verb->callback([path, json] {
    Description d = describe(*path);
    if (*json)
      fmt::print("{}\n", d.dump(2, ' ', false, Description::error_handler_t::replace));
    else
      fmt::print("{}", as_text(d));
  });
}

}  // namespace trireme::cli
