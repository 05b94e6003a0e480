#include "spec/notes.h"

#include <fmt/format.h>

#include "spec/run_schedule.h"
#include "spec/toml.h"

namespace trireme {
namespace {

void note_foreign_parts(const ModelSpec& m, std::vector<std::string>& out) {
  const ModelSpec own = ModelSpec::of(m.arch);
  std::string keys;
  auto foreign = [&](std::string_view key, const std::string& is, const std::string& others) {
    keys += fmt::format("{}model.{} = {} where {} has {}", keys.empty() ? "" : ", ", key, shown(is), m.arch,
                        shown(others));
  };
  if (m.norm != own.norm) foreign("norm", m.norm, own.norm);
  if ((m.activation == "swiglu") != (own.activation == "swiglu"))
    foreign("activation", m.activation, own.activation);
  if (m.positions != own.positions) foreign("positions", m.positions, own.positions);
  if (!keys.empty())
    out.push_back(
        keys + ": it trains, but cannot be exported as a Hugging Face model; remove the lines unless meant");
}

void note_learning_rate(const RunSpec& run, std::vector<std::string>& out) {
  const OptimizerSpec& o = run.optimizer;
  if (o.lr == 0)
    out.push_back("optimizer.lr = 0: the weights stay as they are");
  else if (o.warmup > run.train.steps)
    out.push_back(fmt::format(
        "optimizer.warmup = {} of train.steps = {}: the learning rate ends at {:.3g} and never reaches lr = "
        "{}",
        o.warmup, run.train.steps, o.lr * double(run.train.steps) / double(o.warmup), toml_number(o.lr)));
}

void note_sharding(const LayoutSpec& l, std::vector<std::string>& out) {
  if (l.zero == 0 || effective_zero(l) > 0) return;
  out.push_back(
      replicas_of(l) == 1
          ? fmt::format("layout.zero = {} shards over dp x cp, which is 1: each rank holds all of its "
                        "state",
                        l.zero)
          : fmt::format("layout.zero = {} with layout.shard_group = 1: each rank holds all of its state",
                        l.zero));
}

}  // namespace

std::vector<std::string> notes_of(const RunSpec& run) {
  std::vector<std::string> out;
  note_foreign_parts(run.model, out);
  note_learning_rate(run, out);
  note_sharding(run.layout, out);
  return out;
}

}  // namespace trireme
