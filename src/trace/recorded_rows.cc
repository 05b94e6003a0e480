#include "trace/recorded_rows.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <numeric>

#include "base/error.h"
#include "base/file.h"
#include "base/json.h"
#include "base/json_depth.h"
#include "base/printable.h"

namespace trireme {
namespace {

constexpr int kVersion = 1;
constexpr int64_t kMost = std::numeric_limits<int32_t>::max();  // rows are numbered so
constexpr int64_t kMostRanks = int64_t(1) << 20;

// One line of a file, with its name and number for whoever finds it wrong.
class Line {
 public:
  Line(std::string_view text, std::string_view file, int64_t number) : file_(file), number_(number) {
    if (json_depth(text) > kMostJsonDepth) wrong("is nested too deep");
    j_ = nlohmann::json::parse(text, nullptr, false);
    if (!j_.is_object()) wrong("is no JSON object");
  }
  [[noreturn]] void wrong(std::string_view what) const {
    bad_request("{}:{} {}; right is a routing.jsonl as train.record_routing writes it", printable(file_),
                number_, what);
  }
  int64_t whole(std::string_view key, int64_t low, int64_t high) const {
    const auto it = j_.find(key);
    if (it == j_.end()) wrong(fmt::format("has no \"{}\"", key));
    if (!it->is_number_integer() || (it->is_number_unsigned() && it->get<uint64_t>() > uint64_t(high)) ||
        it->get<int64_t>() < low || it->get<int64_t>() > high)
      wrong(fmt::format("has a \"{}\" that is no whole number from {} to {}", key, low, high));
    return it->get<int64_t>();
  }
  std::string text(std::string_view key) const {
    const auto it = j_.find(key);
    if (it == j_.end() || !it->is_string()) wrong(fmt::format("has no text \"{}\"", key));
    return it->get<std::string>();
  }
  // So many from 0, of a sum that is at most `all`.
  std::vector<int32_t> rows(int64_t experts, int64_t all) const {
    const auto it = j_.find("rows");
    if (it == j_.end() || !it->is_array() || int64_t(it->size()) != experts)
      wrong(fmt::format("has no \"rows\" of {} experts", experts));
    std::vector<int32_t> rows;
    int64_t left = all;
    for (const auto& n : *it) {
      if (!n.is_number_unsigned() || n.get<uint64_t>() > uint64_t(left))
        wrong(fmt::format("has \"rows\" that are not counts of at most {} in all", all));
      rows.push_back(n.get<int32_t>());
      left -= rows.back();
    }
    return rows;
  }

 private:
  std::string_view file_;
  int64_t number_;
  nlohmann::json j_;
};

RoutingShape shape_of(const Line& line) {
  if (line.text("recorded") != "routing") line.wrong("is not of a recorded routing");
  line.whole("version", kVersion, kVersion);
  RoutingShape s;
  for (const RoutingShape::Key& k : RoutingShape::keys()) s.*k.value = line.whole(k.name, 1, kMost);
  s.order = line.text("order");
  double ranks = 1;
  for (const int64_t n : {s.dp, s.tp, s.pp, s.cp}) ranks *= double(n);
  if (ranks > double(kMostRanks)) line.wrong(fmt::format("has more than {} ranks", kMostRanks));
  if (double(s.micro) * double(s.seq_len) * double(s.choices) > double(kMost))
    line.wrong(fmt::format("has more than {} rows a rank and microbatch", kMost));
  if (s.experts % s.ep != 0) line.wrong("has experts that ep does not divide");
  if (s.micro * s.dp > s.global || s.global % (s.micro * s.dp) != 0)
    line.wrong("has a global batch that dp * micro does not divide");
  return s;
}

}  // namespace

const std::array<RoutingShape::Key, RoutingShape::kKeys>& RoutingShape::keys() {
  static constexpr std::array<Key, kKeys> kAll = {{{"dp", &RoutingShape::dp},
                                                   {"tp", &RoutingShape::tp},
                                                   {"pp", &RoutingShape::pp},
                                                   {"cp", &RoutingShape::cp},
                                                   {"ep", &RoutingShape::ep},
                                                   {"layers", &RoutingShape::layers},
                                                   {"experts", &RoutingShape::experts},
                                                   {"experts_per_token", &RoutingShape::choices},
                                                   {"micro", &RoutingShape::micro},
                                                   {"global", &RoutingShape::global},
                                                   {"seq_len", &RoutingShape::seq_len}}};
  return kAll;
}

std::span<const int32_t> StepRows::of(int rank, int64_t block, int64_t microbatch) const {
  const auto it = rows_.find({block, microbatch, rank});
  return it == rows_.end() ? std::span<const int32_t>() : it->second;
}

bool StepRows::add(int rank, int64_t block, int64_t microbatch, std::vector<int32_t> rows) {
  return rows_.emplace(Place{block, microbatch, rank}, std::move(rows)).second;
}

double StepRows::fullest(std::span<const std::vector<int>> groups) const {
  double sum = 0, n = 0;
  for (const std::vector<int>& group : groups)
    for (const auto& [place, first] : rows_) {
      if (place.rank != group.front()) continue;
      std::vector<int64_t> owned(group.size());
      const size_t each = first.size() / group.size();
      for (const int rank : group) {
        const std::span<const int32_t> rows = of(rank, place.block, place.microbatch);
        for (size_t e = 0; e < rows.size() && each > 0; e++)
          owned[std::min(e / each, owned.size() - 1)] += rows[e];
      }
      const int64_t all = std::accumulate(owned.begin(), owned.end(), int64_t{0});
      if (all == 0) continue;
      sum += double(*std::max_element(owned.begin(), owned.end())) * double(owned.size()) / double(all), n++;
    }
  return n > 0 ? sum / n : 1;
}

std::string to_json_line(const RoutingShape& s) {
  nlohmann::ordered_json j = {{"recorded", "routing"}, {"version", kVersion}};
  for (const RoutingShape::Key& k : RoutingShape::keys()) j[std::string(k.name)] = s.*k.value;
  j["order"] = s.order;
  return j.dump();
}

std::string recorded_line(int64_t step, int rank, int64_t block, int64_t microbatch,
                          std::span<const int64_t> rows) {
  return fmt::format("{{\"step\":{},\"rank\":{},\"block\":{},\"microbatch\":{},\"rows\":[{}]}}", step, rank,
                     block, microbatch, fmt::join(rows, ","));
}

RecordedRows parse_recorded_rows(std::string_view text, std::string_view file) {
  RecordedRows out;
  std::map<int64_t, std::shared_ptr<StepRows>> steps;
  int64_t number = 0;
  for (size_t end = text.find('\n'); end != text.npos; end = text.find('\n')) {
    const Line line(text.substr(0, end), file, ++number);
    text.remove_prefix(end + 1);
    if (number == 1) {
      out.shape = shape_of(line);
      continue;
    }
    const RoutingShape& s = out.shape;
    const int64_t step = line.whole("step", 1, int64_t(1) << 53), rank = line.whole("rank", 0, s.world() - 1),
                  block = line.whole("block", 0, s.layers - 1),
                  microbatch = line.whole("microbatch", 0, s.microbatches() - 1);
    std::shared_ptr<StepRows>& of = steps[step];
    if (!of) of = std::make_shared<StepRows>();
    if (!of->add(int(rank), block, microbatch, line.rows(s.experts, s.rows())))
      line.wrong("says again what a line before says");
  }
  if (number == 0)
    bad_request("{} is empty; right is a routing.jsonl as train.record_routing writes it", file);
  out.steps.insert(steps.begin(), steps.end());
  return out;
}

RecordedRows read_recorded_rows(const std::filesystem::path& path) {
  const MappedFile file(path);
  const std::span<const std::byte> bytes = file.bytes();
  if (int64_t(bytes.size()) > kMostRecordedBytes)
    bad_request("{} has {} bytes; a recorded routing has at most {}", path.string(), bytes.size(),
                kMostRecordedBytes);
  return parse_recorded_rows({reinterpret_cast<const char*>(bytes.data()), bytes.size()}, path.string());
}

}  // namespace trireme
