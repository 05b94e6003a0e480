// Rows of measured runs that tests read: a whole one, and those that are shipped.
#pragma once
#include <string>
#include <vector>

#include "base/file.h"
#include "base/json.h"
#include "published/score_fit.h"
#include "source_dir.h"

namespace trireme::test {

using TestJson = nlohmann::json;

// A run that is whole: 40 layers of hidden 5120 on 2 x 8 A100, tp 4, pp 2, dp 2.
inline TestJson whole_row() {
  return {{"id", "r1"},
          {"source", "vTrain, a test"},
          {"kind", "measured"},
          {"precision", "fp16"},
          {"model",
           {{"layers", 40},
            {"hidden", 5120},
            {"heads", 40},
            {"kv_heads", 40},
            {"ffn", 20480},
            {"seq", 2048},
            {"vocab", 51200}}},
          {"cluster", {{"gpu", "A100-SXM-80GB"}, {"count", 16}}},
          {"layout",
           {{"tp", 4},
            {"pp", 2},
            {"dp", 2},
            {"interleave", 1},
            {"micro_batch", 2},
            {"global_batch", 96},
            {"recompute", "full"}}},
          {"result", {{"step_time_s", 9.5}}}};
}

inline MeasuredRow read_one(const TestJson& row) {
  return read_rows(TestJson::array({row}).dump(), "rows.json", shipped_catalog()).at(0);
}

// The shipped rows whose ids have `part`, as they are read.
inline std::vector<MeasuredRow> shipped_rows(const std::string& part) {
  static const std::vector<MeasuredRow> all =
      read_rows(read_text(source_dir() / "data/published_runs.json"), "runs", shipped_catalog());
  std::vector<MeasuredRow> some;
  for (const MeasuredRow& r : all)
    if (r.id.find(part) != std::string::npos && r.skipped.empty()) some.push_back(r);
  return some;
}

inline TestJson row_of(std::string source, std::string gpu, int64_t gpus) {
  TestJson row = whole_row();
  row["source"] = source, row["precision"] = "bf16", row["cluster"] = {{"gpu", gpu}, {"count", gpus}};
  return row;
}

}  // namespace trireme::test
