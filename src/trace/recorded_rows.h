// Rows that each rank had for each expert, of chosen steps of a run (train.record_routing): all that bytes,
// FLOPs and wire of a step with divided experts depend on beside shapes. routing.jsonl of the run folder: a
// line that says of what layout, then one for each step, rank, block and microbatch.
//
//   {"recorded": "routing", "version": 1, "dp": 2, ..., "order": "pp dp cp tp", ...}
//   {"step": 3, "rank": 1, "block": 0, "microbatch": 0, "rows": [130, 126, 121, 135]}
#pragma once
#include <array>
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace trireme {

// What rows of ranks are of: those of another layout are others.
struct RoutingShape {
  int64_t dp = 1, tp = 1, pp = 1, cp = 1, ep = 1;
  int64_t layers = 1, experts = 1, choices = 1;  // choices: of a token
  int64_t micro = 1, global = 1, seq_len = 1;
  std::string order;  // layout.order
  bool operator==(const RoutingShape&) const = default;

  struct Key {
    std::string_view name;
    int64_t RoutingShape::*value;
  };
  static constexpr size_t kKeys = 11;
  static const std::array<Key, kKeys>& keys();
  int64_t world() const { return dp * tp * pp * cp; }
  int64_t microbatches() const { return global / (dp * micro); }
  int64_t rows() const { return micro * seq_len / (tp * cp) * choices; }  // of a rank, at most
};

// Of one step, by rank of the world, block and microbatch: rows for each expert.
class StepRows {
 public:
  // Empty where that rank has not run that block's microbatch.
  std::span<const int32_t> of(int rank, int64_t block, int64_t microbatch) const;
  // False where they are there already.
  bool add(int rank, int64_t block, int64_t microbatch, std::vector<int32_t> rows);
  // Rows for the fullest rank's experts where `ep` neighbours on the list of groups divide them, over the
  // mean; the mean over blocks and microbatches of each group.
  double fullest(std::span<const std::vector<int>> groups) const;
  bool empty() const { return rows_.empty(); }

 private:
  struct Place {
    int64_t block, microbatch;
    int rank;
    auto operator<=>(const Place&) const = default;
  };
  std::map<Place, std::vector<int32_t>> rows_;
};

struct RecordedRows {
  RoutingShape shape;
  std::map<int64_t, std::shared_ptr<const StepRows>> steps;
};
inline constexpr int64_t kMostRecordedBytes = int64_t(256) << 20;  // of a file

// The file's lines.
std::string to_json_line(const RoutingShape&);
std::string recorded_line(int64_t step, int rank, int64_t block, int64_t microbatch,
                          std::span<const int64_t> rows);
// Errors (request) name `file`, the line and what is wrong with it. A last line without its end, as a run
// that was killed leaves it, is passed over.
RecordedRows parse_recorded_rows(std::string_view text, std::string_view file);
RecordedRows read_recorded_rows(const std::filesystem::path&);

}  // namespace trireme
