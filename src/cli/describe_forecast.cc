// What a run's first start forecast, beside what its metrics say.
#include "base/timed.h"
#include "cli/describe.h"

namespace trireme::cli {
namespace {

constexpr size_t kMostLines = 1000;  // the newest
constexpr size_t kFirst = 2;         // steps that touch memory for the first time and make plans do not count

// Of the newest lines that are whole, oldest first.
std::vector<Description> newest_metrics(const fs::path& file) {
  const std::string text = read_text(file);
  std::vector<Description> lines;
  for (size_t end = text.rfind('\n'); end != std::string::npos && lines.size() < kMostLines;) {
    const size_t before = end == 0 ? std::string::npos : text.rfind('\n', end - 1);
    const size_t begin = before == std::string::npos ? 0 : before + 1;
    Description j = Description::parse(text.substr(begin, end - begin), nullptr, false);
    if (j.is_object()) lines.push_back(std::move(j));
    end = before;
  }
  std::reverse(lines.begin(), lines.end());
  return lines;
}

std::optional<double> number_at(const Description& d, std::initializer_list<const char*> keys) {
  const Description* at = &d;
  for (const char* key : keys) {
    if (!at->is_object() || !at->contains(key)) return std::nullopt;
    at = &(*at)[key];
  }
  return at->is_number() ? std::optional(at->get<double>()) : std::nullopt;
}

// A row of what both sides know. difference: forecast / measured - 1.
void add_row(Description& rows, const std::string& what, std::optional<double> forecast,
             std::optional<double> measured, bool whole) {
  if (!forecast || !measured) return;
  const auto shown = [&](double v) { return whole ? Description(int64_t(v)) : Description(v); };
  Description row = {{"what", what}, {"forecast", shown(*forecast)}, {"measured", shown(*measured)}};
  row["difference"] = *forecast == *measured ? Description("none")
                      : *measured == 0
                          ? Description("-")
                          : Description(fmt::format("{:+.1f} %", 100 * (*forecast / *measured - 1)));
  rows.push_back(row);
}

void add_bytes(Description& rows, const std::string& of, const Description& forecast,
               const Description& measured) {
  if (!forecast.is_object() || !measured.is_object()) return;
  std::vector<std::string> names;
  for (const Description* side : {&forecast, &measured})
    for (const auto& [name, bytes] : side->items())
      if (std::find(names.begin(), names.end(), name) == names.end()) names.push_back(name);
  for (const std::string& name : names) {
    const auto bytes = [&](const Description& d) {
      if (!d.contains(name)) return std::optional(0.0);
      return d[name].is_object() ? number_at(d[name], {"bytes"}) : number_at(d, {name.c_str()});
    };
    const auto f = bytes(forecast), m = bytes(measured);
    if (f.value_or(0) > 0 || m.value_or(0) > 0) add_row(rows, of + " " + name, f, m, true);
  }
}

}  // namespace

Description forecast_and_measured(const fs::path& run) {
  Description rows = Description::array();
  if (!fs::exists(run / "forecast.json") || !fs::exists(run / "metrics.jsonl")) return rows;
  const Description told = Description::parse(read_text(run / "forecast.json"), nullptr, false);
  if (!told.is_object() || !told.contains("best") || !told["best"].is_object()) return rows;
  const Description& forecast = told["best"];
  std::vector<Description> lines = newest_metrics(run / "metrics.jsonl");
  // With batch.ramp the forecast describes a step of the last stage.
  if (forecast.contains("run") && forecast["run"].is_object() && forecast["run"].contains("stages"))
    std::erase_if(lines, [&](const Description& line) {
      return number_at(line, {"tokens"}) != number_at(forecast, {"tokens"});
    });
  std::vector<double> ms;
  for (size_t i = 0; i < lines.size(); i++)
    if (const auto s = number_at(lines[i], {"step_s"}); s && (i >= kFirst || lines.size() <= kFirst))
      ms.push_back(1e3 * *s);
  if (ms.empty()) return rows;
  const bool expected = forecast.value("expected", Description(false)) == Description(true);
  if (const auto s = number_at(forecast, {"step_s"}))
    add_row(rows,
            fmt::format("ms a step ({}; median of {} step{})", expected ? "expected" : "at the roof",
                        ms.size(), ms.size() == 1 ? "" : "s"),
            1e3 * *s, median(ms), false);
  Description memory, peaks = lines.back().value("peak_bytes", Description());
  if (forecast.contains("memory") && forecast["memory"].is_object())
    for (const auto& [bucket, bytes] : forecast["memory"].items())
      if (peaks.is_object() && peaks.contains(bucket)) memory[bucket] = bytes;
  add_bytes(rows, "bytes,", memory, peaks);
  if (forecast.contains("wire"))
    add_bytes(rows, "wire bytes,", forecast["wire"], lines.back().value("comm_bytes", Description::object()));
  return rows;
}

}  // namespace trireme::cli
