#include "checkpoint/named.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <cmath>

#include "checkpoint/store.h"

namespace trireme {
namespace {

fs::path root_of(const fs::path& run) {
  return run / "checkpoints";
}

std::string steps_text(const fs::path& run) {
  std::vector<int64_t> steps;
  for (const fs::path& folder : checkpoints_in(root_of(run)))
    steps.insert(steps.begin(), *step_of_folder_name(folder.filename().string()));
  return steps.empty() ? "it has none" : fmt::format("it has steps {}", fmt::join(steps, ", "));
}

fs::path step_folder(const std::string& text, const fs::path& run, std::string_view which) {
  int64_t step = -1;
  if (which == "best") {
    const std::optional<int64_t> best = best_step(root_of(run));
    if (!best)
      bad_request("{}: no checkpoint has a held-out loss: give train.eval_every, or name a step; {}", text,
                  steps_text(run));
    step = *best;
  } else {
    const auto end = std::from_chars(which.data(), which.data() + which.size(), step);
    if (end.ptr != which.data() + which.size() || step < 0)
      bad_request("{}: expected a step, \"best\" or \"newest\" after @; {}", text, steps_text(run));
  }
  const fs::path folder = root_of(run) / step_folder_name(step);
  if (!fs::exists(folder)) bad_request("{}: holds no checkpoint of step {}; {}", text, step, steps_text(run));
  return folder;
}

}  // namespace

std::optional<NamedCheckpoint> checkpoint_named(const std::string& text) {
  fs::path given = text;
  if (!given.has_filename()) given = given.parent_path();  // "runs/demo/"
  if (fs::exists(given / kManifestName))
    return NamedCheckpoint{fs::weakly_canonical(given).parent_path().parent_path(), given};
  if (fs::is_directory(given)) return NamedCheckpoint{given, {}};
  const size_t at = text.rfind('@');
  if (at == std::string::npos || at == 0) return {};
  const fs::path run = text.substr(0, at);
  if (!fs::is_directory(run)) return {};
  const std::string which = text.substr(at + 1);
  if (which == "newest") return NamedCheckpoint{run, {}};
  return NamedCheckpoint{run, step_folder(text, run, which)};
}

std::optional<double> eval_loss_of(const Manifest& m) {
  if (!m.state.is_object() || !m.state.contains("eval_loss") || !m.state["eval_loss"].is_number()) return {};
  const double loss = m.state["eval_loss"];
  return std::isfinite(loss) ? std::optional(loss) : std::nullopt;
}

std::optional<int64_t> best_step(const fs::path& root) {
  std::optional<int64_t> best;
  double least = 0;
  for (const fs::path& folder : checkpoints_in(root)) {
    const fs::path file = folder / kManifestName;
    if (!is_there(file)) continue;
    try {
      const Manifest m = parse_manifest(read_text(file), file.string());
      const std::optional<double> loss = eval_loss_of(m);
      if (!loss || (best && *loss > least)) continue;
      least = *loss;
      best = m.step;
    } catch (const Error&) {
      // Damaged: find_newest() reports it.
    }
  }
  return best;
}

}  // namespace trireme
