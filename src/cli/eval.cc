// trireme eval RUN.toml: loss and perplexity on a token shard.
#include <cmath>
#include <nlohmann/json.hpp>

#include "cli/source.h"
#include "data/loader.h"

namespace trireme::cli {

void add_eval(CLI::App& app) {
  CLI::App* verb =
      app.add_subcommand("eval",
                         "loss and perplexity on a token shard, of the newest checkpoint or of "
                         "model.from\nexample: trireme eval configs/run/demo.toml --data data/valid");
  auto request = std::make_shared<RunRequest>();
  auto data = std::make_shared<std::string>();
  request->add_to(*verb);
  verb->add_option("--data", *data, "token shard; default: data.valid of the run file");
  verb->callback([request, data] {
    RunSpec run = request->load();
    fs::path shard = data->empty() ? fs::path(run.data.valid) : fs::path(*data);
    check_shard(shard, run.model.vocab);
    LoadedModel m = load_model(run);
    EvalResult r = evaluate_shard(*m.runner, run, shard);
    if (request->json)
      fmt::print("{}\n", nlohmann::ordered_json{{"loss", r.loss},
                                                {"perplexity", std::exp(r.loss)},
                                                {"tokens", r.tokens},
                                                {"step", m.step},
                                                {"model", m.where}}
                             .dump(2));
    else
      fmt::print("{}: loss {:.4f} nats per token, perplexity {:.2f}, over {} predicted tokens of {}\n",
                 m.where, r.loss, std::exp(r.loss), r.tokens, shard.string());
  });
}

}  // namespace trireme::cli
