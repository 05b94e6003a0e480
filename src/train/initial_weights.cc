#include "checkpoint/hf.h"
#include "train/adapter_files.h"
#include "train/trainer.h"

namespace trireme {

void base_weights(StageRunner& runner) {
  const RunSpec& run = runner.run();
  const auto in_file = [&](const Param& p) { return !run.model.from.empty() && p.decl.adapter_scale == 0; };
  runner.init_weights(in_file);
  if (run.model.from.empty()) return;
  HfFolder folder(run.model.from, run.model);
  std::vector<float> host;
  for (const Param* held : runner.params().held()) {
    const Param& p = *held;
    const Range own = runner.memory().owned(p);
    if (own.size() == 0 || !in_file(p)) continue;
    host.resize(size_t(own.size()));
    folder.read(p.decl.name, p.box, own, Tensor(host.data(), {own.size()}, DType::f32));
    runner.memory().write_param(p, "", host);
  }
  runner.weights_from_master();
}

void initial_weights(StageRunner& runner, const RunSpec& run) {
  base_weights(runner);
  if (run.lora.adapter.empty()) return;
  read_adapter(runner, run.lora.adapter);
  runner.weights_from_master();
}

}  // namespace trireme
