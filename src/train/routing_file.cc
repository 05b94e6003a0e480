#include "train/routing_file.h"

#include <fmt/format.h>

#include "base/counted.h"
#include "spec/known_routing.h"

namespace trireme {
namespace {

// This rank's lines of the step.
std::string lines_of_step(const RunSpec& run, const StageRunner& runner, int rank, int64_t step) {
  std::string lines;
  for (int64_t block = 0; block < run.model.layers; block++)
    for (const auto& [first, m] : runner.passes().routing().microbatches(block))
      if (!m.routing.rows.empty())
        lines += recorded_line(step, rank, block, first / (run.layout.dp * run.batch.micro), m.routing.rows) +
                 "\n";
  return lines;
}

}  // namespace

RoutingFile::RoutingFile(const RunSpec& run, int64_t done, bool writes) : run_(run), writes_(writes) {
  if (std::string why = StepSet::parse(run.train.record_routing, steps_); !why.empty())
    bad_request("train.record_routing: {}", why);
  path_ = fs::path(run.train.dir) / "routing.jsonl";
  if (done > 0 && fs::exists(path_)) path_.replace_filename(fmt::format("routing-from-{}.jsonl", done + 1));
}

void RoutingFile::write(const StageRunner& runner, Communicator& control, int64_t step) {
  const std::vector<std::string> texts =
      gather_texts(control, lines_of_step(run_, runner, control.rank(), step));
  if (!writes_) return;
  std::string all = begun_ ? "" : to_json_line(routing_shape_of(run_)) + "\n";
  for (const std::string& text : texts) all += text;
  if (bytes_ + int64_t(all.size()) > kMostRecordedBytes) {
    left_out_++;
    return;
  }
  if (!begun_) write_text_atomic(path_, "");
  all.pop_back();  // append_line() ends it
  append_line(path_, all);
  begun_ = true, recorded_++, bytes_ += int64_t(all.size()) + 1;
}

std::string RoutingFile::written() const {
  if (recorded_ + left_out_ == 0) return "";
  return fmt::format(
      "recorded the routing of {} into {}{}; `trireme plan RUN --routing FILE` books it",
      counted(recorded_, "step"), path_.string(),
      left_out_ > 0 ? fmt::format(" ({} more would not fit {} bytes)", left_out_, kMostRecordedBytes) : "");
}

}  // namespace trireme
