#include "scaling/points.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <map>
#include <optional>
#include <span>

#include "base/error.h"
#include "base/printable.h"
#include "checkpoint/json.h"

namespace trireme {
namespace {

constexpr size_t kMostBytes = size_t{256} << 20;
constexpr size_t kMostRows = 200'000;

enum class Column : uint8_t { n, d, c, loss, lr, batch, k, task_loss, pass, run, seed, ignored };

struct ColumnRule {
  Column column;
  std::array<std::string_view, 5> names;  // the first is the one of messages
  double low = 0;
  double high = 0;
  bool from_low = false;  // `low` itself is allowed
};
constexpr ColumnRule kColumns[] = {
    {Column::n, {"N", "params", "parameters", "model_size", "size"}, 1, 1e18, true},
    {Column::d, {"D", "tokens", "training_tokens", "", ""}, 1, 1e20, true},
    {Column::c, {"C", "flops", "training_flop", "training_flops", "compute"}, 1, 1e38, true},
    {Column::loss, {"loss", "eval_loss", "valid_loss", "", ""}, 0, 1e4, false},
    {Column::lr, {"lr", "learning_rate", "", "", ""}, 0, 1e6, false},
    {Column::batch, {"batch", "batch_tokens", "", "", ""}, 0, 1e12, false},
    {Column::k, {"k", "samples", "", "", ""}, 1, 1e12, true},
    {Column::task_loss, {"task_loss", "nll", "", "", ""}, 0, 1e4, false},
    {Column::pass, {"pass", "pass_at_k", "accuracy", "acc", ""}, 0, 1, true},
    {Column::run, {"run", "id", "name", "", ""}},
    {Column::seed, {"seed", "", "", "", ""}},
};

// "Training FLOP" -> "training_flop".
std::string plain_name(std::string_view text) {
  std::string name;
  for (const char c : text) {
    if (c == ' ' || c == '-')
      name += '_';
    else if (c != '\r')
      name += char(c >= 'A' && c <= 'Z' ? c - 'A' + 'a' : c);
  }
  return name;
}

const ColumnRule* rule_of(std::string_view header) {
  const std::string name = plain_name(header);
  for (const ColumnRule& r : kColumns)
    for (const std::string_view n : r.names)
      if (!n.empty() && name == plain_name(n)) return &r;
  return nullptr;
}

// The text of one cell.
struct Cell {
  const ColumnRule* rule = nullptr;
  std::string text;
};

class TableReader {
 public:
  explicit TableReader(const std::string& file) { table_.file = file; }

  void row(size_t number, std::span<const Cell> cells) {
    if (table_.points.size() >= kMostRows)
      bad_request("{}: more than {} rows; expected at most that many", printable(table_.file), kMostRows);
    LossPoint p;
    std::string run;
    for (const Cell& c : cells) {
      if (c.rule->column == Column::run || c.rule->column == Column::seed) {
        if (c.rule->column == Column::run) run = c.text;
        continue;
      }
      if (c.text.empty()) continue;
      *field_of(p, c.rule->column) = number_of(number, c);
    }
    complete(number, p);
    // Runs without a name: each row is one, but rows that differ in k alone have one model.
    if (run.empty())
      run = p.samples > 0 ? fmt::format("{} {}", p.parameters, p.tokens) : fmt::format("\n{}", number);
    p.run = runs_.emplace(run, int(runs_.size())).first->second;
    table_.points.push_back(p);
  }
  void ignore(std::string_view name) { table_.ignored.push_back(printable(name)); }
  LossTable take() {
    if (table_.points.empty())
      bad_request("{}: no rows; expected a header and at least one row", printable(table_.file));
    table_.runs = int(runs_.size());
    return std::move(table_);
  }

 private:
  static double* field_of(LossPoint& p, Column c) {
    switch (c) {
      case Column::n:
        return &p.parameters;
      case Column::d:
        return &p.tokens;
      case Column::c:
        return &p.flops;
      case Column::loss:
        return &p.loss;
      case Column::lr:
        return &p.lr;
      case Column::batch:
        return &p.batch;
      case Column::k:
        return &p.samples;
      case Column::task_loss:
        return &p.task_loss;
      default:
        return &p.pass;
    }
  }

  double number_of(size_t row, const Cell& c) const {
    const ColumnRule& r = *c.rule;
    double v = 0;
    const char* end = c.text.data() + c.text.size();
    const auto read = std::from_chars(c.text.data(), end, v);
    const bool ok = read.ec == std::errc() && read.ptr == end && std::isfinite(v) && v <= r.high &&
                    (r.from_low ? v >= r.low : v > r.low);
    if (!ok)
      bad_request("{}: row {}: {} = {}: expected a number {} {:g} and at most {:g}", printable(table_.file),
                  row, r.names[0], printable(c.text), r.from_low ? ">=" : ">", r.low, r.high);
    return v;
  }

  void complete(size_t row, LossPoint& p) const {
    const auto refuse = [&](std::string_view what, std::string_view right) {
      bad_request("{}: row {}: {}; expected {}", printable(table_.file), row, what, right);
    };
    const int known = int(p.parameters > 0) + int(p.tokens > 0) + int(p.flops > 0);
    if (known < 2)
      refuse(known == 0 ? "no N, D or C" : "only one of N, D and C",
             "two of the columns N (parameters), D (tokens) and C (FLOPs)");
    if (p.flops == 0) p.flops = 6 * p.parameters * p.tokens;
    if (p.tokens == 0) p.tokens = p.flops / (6 * p.parameters);
    if (p.parameters == 0) p.parameters = p.flops / (6 * p.tokens);
    if (p.loss == 0 && p.task_loss == 0 && p.pass < 0) refuse("no loss", "a column loss, task_loss or pass");
    if ((p.task_loss > 0 || p.pass >= 0) && p.samples == 0)
      refuse("task_loss or pass without k", "a column k");
  }

  LossTable table_;
  std::map<std::string, int> runs_;
};

// The fields of a line; quotes as in RFC 4180, within one line.
std::vector<std::string> fields_of(std::string_view line, char separator) {
  std::vector<std::string> fields(1);
  bool quoted = false;
  for (size_t i = 0; i < line.size(); i++) {
    if (line[i] == '"') {
      if (quoted && i + 1 < line.size() && line[i + 1] == '"')
        fields.back() += line[i++];
      else
        quoted = !quoted;
    } else if (line[i] == separator && !quoted) {
      fields.emplace_back();
    } else {
      fields.back() += line[i];
    }
  }
  for (std::string& f : fields) {
    const size_t from = f.find_first_not_of(" \t\r");
    const size_t to = f.find_last_not_of(" \t\r");
    f = from == std::string::npos ? "" : f.substr(from, to - from + 1);
  }
  return fields;
}

void read_csv(std::string_view text, TableReader& table, const std::string& file) {
  std::vector<const ColumnRule*> columns;
  size_t number = 0;
  char separator = ',';
  for (size_t at = 0; at < text.size();) {
    const size_t end = std::min(text.find('\n', at), text.size());
    const std::string_view line = text.substr(at, end - at);
    at = end + 1;
    number++;
    if (line.find_first_not_of(" \t\r") == std::string_view::npos || line[0] == '#') continue;
    if (columns.empty()) {
      separator = line.find(',') != line.npos ? ',' : line.find(';') != line.npos ? ';' : '\t';
      bool any = false;
      for (const std::string& name : fields_of(line, separator)) {
        columns.push_back(rule_of(name));
        any = any || columns.back();
        if (!columns.back()) table.ignore(name);
        if (columns.back() && std::count(columns.begin(), columns.end(), columns.back()) > 1)
          bad_request("{}: row {}: two columns {}; expected one", printable(file), number,
                      columns.back()->names[0]);
      }
      if (!any)
        bad_request("{}: row {}: {}: not a header; expected columns such as N,D,loss ({})", printable(file),
                    number, printable(line), loss_columns());
      continue;
    }
    std::vector<std::string> fields = fields_of(line, separator);
    if (fields.size() != columns.size())
      bad_request("{}: row {}: {} fields; expected {} as in the header", printable(file), number,
                  fields.size(), columns.size());
    std::vector<Cell> cells;
    for (size_t i = 0; i < fields.size(); i++)
      if (columns[i]) cells.push_back({columns[i], std::move(fields[i])});
    table.row(number, cells);
  }
}

void read_json(std::string_view text, TableReader& table, const std::string& file) {
  const nlohmann::json j = parse_json(text, file, kMostBytes);
  const bool inside = j.is_object() && j.contains("rows");
  const nlohmann::json& rows = inside ? j["rows"] : j;
  if (!rows.is_array())
    bad_request("{}: no list of rows; expected [{{\"N\": ..., \"D\": ..., \"loss\": ...}}, ...]",
                printable(file));
  std::map<std::string, bool> ignored;
  for (size_t i = 0; i < rows.size(); i++) {
    if (!rows[i].is_object())
      bad_request("{}: row {}: {}: expected an object", printable(file), i + 1, printable(rows[i].dump()));
    std::vector<Cell> cells;
    for (const auto& [key, value] : rows[i].items()) {
      const ColumnRule* rule = rule_of(key);
      if (!rule) {
        if (ignored.emplace(key, true).second) table.ignore(key);
        continue;
      }
      for (const Cell& c : cells)
        if (c.rule == rule)
          bad_request("{}: row {}: {} twice; expected it once", printable(file), i + 1, rule->names[0]);
      if (!value.is_null())
        cells.push_back({rule, value.is_string() ? value.get<std::string>() : value.dump()});
    }
    table.row(i + 1, cells);
  }
}

}  // namespace

std::string loss_columns() {
  std::vector<std::string_view> names;
  for (const ColumnRule& r : kColumns) names.push_back(r.names[0]);
  return fmt::format("{}", fmt::join(names, ", "));
}

LossTable read_loss_table(std::string_view text, const std::string& file) {
  if (text.size() > kMostBytes) bad_request("{}: more than 256 MiB; expected a table", printable(file));
  if (text.starts_with("\xEF\xBB\xBF")) text.remove_prefix(3);
  TableReader table(file);
  const size_t first = text.find_first_not_of(" \t\r\n");
  const bool json = first != text.npos && (text[first] == '[' || text[first] == '{');
  json ? read_json(text, table, file) : read_csv(text, table, file);
  return table.take();
}

void drop_worst(LossTable& table, int64_t n) {
  if (n <= 0) return;
  std::vector<double> losses;
  for (const LossPoint& p : table.points) losses.push_back(p.loss);
  if (size_t(n) >= losses.size())
    bad_request("--drop-worst = {}: the table has {} rows; expected fewer", n, losses.size());
  std::nth_element(losses.begin(), losses.end() - n, losses.end());
  const double limit = losses[losses.size() - size_t(n)];
  std::erase_if(table.points, [&](const LossPoint& p) { return p.loss >= limit; });
}

}  // namespace trireme
