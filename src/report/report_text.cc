#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/progress.h"
#include "report/sections.h"

namespace trireme {
namespace {

using nlohmann::json;

constexpr int kColumns = 72;
constexpr size_t kMostTerms = 6, kMostAdvice = 3, kMostCombRows = 4;

std::string signed_amount(const json& v, const std::string& unit, bool with_sign = false) {
  if (!v.is_number()) return "-";
  const double d = v.get<double>();
  const std::string sign = d < 0 ? "-" : with_sign ? "+" : "";
  return sign + amount_text(std::abs(d), unit);
}

std::string terms_text(const json& terms, const std::string& unit) {
  std::vector<const json*> all;
  for (const json& t : terms)
    if (t["value"].is_number() && t["value"].get<double>() != 0) all.push_back(&t);
  std::stable_sort(all.begin(), all.end(), [](const json* a, const json* b) {
    return std::abs((*a)["value"].get<double>()) > std::abs((*b)["value"].get<double>());
  });
  std::string out;
  double others = 0;
  for (size_t i = kMostTerms; i < all.size(); i++) others += (*all[i])["value"].get<double>();
  for (size_t i = 0; i < all.size() && i < kMostTerms; i++)
    out += fmt::format("  {:>12}  {}\n", signed_amount((*all[i])["value"], unit, true),
                       (*all[i])["name"].get<std::string>());
  if (all.size() > kMostTerms)
    out += fmt::format("  {:>12}  other terms\n", signed_amount(json(others), unit, true));
  return out;
}

std::string advice_text(const json& advice) {
  std::string out = "what to change\n";
  if (advice.empty()) return out + "  no diagnosis applies\n";
  for (size_t i = 0; i < advice.size() && i < kMostAdvice; i++) {
    const json& a = advice[i];
    out += fmt::format("  {} ({})\n", a["title"].get<std::string>(), a["number"].get<std::string>());
    const std::string gain = fmt::format("saves up to {:.0f} % of the step ({})",
                                         100 * a["gain_share"].get<double>(), a["sure"].get<std::string>());
    if (a["key"].is_string())
      out += fmt::format("    {} = {} -> {} {}\n", a["key"].get<std::string>(), a["from"].get<std::string>(),
                         a["to"].get<std::string>(), gain);
    else
      out += fmt::format("    {}; {}\n", a["to"].get<std::string>(), gain);
    if (i == 0 && a["command"].is_string()) out += fmt::format("    {}\n", a["command"].get<std::string>());
  }
  if (advice.size() > kMostAdvice)
    out += fmt::format("  and {} more, in the page\n", advice.size() - kMostAdvice);
  return out;
}

std::string_view toll_words(std::string_view toll) {
  if (toll == "state shelf") return "weights, gradients, optimizer";
  if (toll == "scratchpad") return "activations";
  if (toll == "cable") return "communication that compute waits for";
  if (toll == "bubble") return "pipeline stages wait for one another";
  if (toll == "last inch") return "ops that the memory's bandwidth bounds";
  return "";
}

std::string comb_part(const TraceFacts& t) {
  if (!t.any()) return fmt::format("time per rank: {}\n", t.why_not);
  Comb few;
  few.makespan = t.comb.makespan;
  for (size_t i = 0; i < t.comb.rows.size() && i < kMostCombRows; i++) few.rows.push_back(t.comb.rows[i]);
  std::string out = fmt::format("time per rank, {} traced steps, {}\n", t.steps.size(),
                                human_seconds(double(t.comb.makespan) * 1e-9));
  out += comb_text(few, kColumns);
  const UseTimes totals = t.totals();
  const double all = double(t.comb.makespan) * double(t.comb.rows.size());
  std::vector<size_t> uses;
  for (size_t u = 0; u < kUses; u++)
    if (double(totals[u]) / all >= 0.0005) uses.push_back(u);
  std::stable_sort(uses.begin(), uses.end(), [&](size_t a, size_t b) { return totals[a] > totals[b]; });
  std::string line = " ";
  for (size_t u : uses)
    line += fmt::format(" {}{} {:.1f} %{}", shown_name(Use(u), totals),
                        is_work(Use(u)) ? "" : fmt::format(" ({})", letter_of(Use(u))),
                        100 * double(totals[u]) / all, u == uses.back() ? "" : ",");
  return out + line + "\n";
}

}  // namespace

std::string report_text(const ReportInput& in, const json& r) {
  std::string out = fmt::format("{} ({})\n", r["folder"].get<std::string>(), r["state"].get<std::string>());
  for (const json& h : r["headline"]) {
    const std::string note = h["note"].get<std::string>();
    out += fmt::format("  {:<10} {}{}\n", h["label"].get<std::string>(), h["value"].get<std::string>(),
                       note.empty() ? "" : " (" + note + ")");
  }
  out += advice_text(r["advice"]);
  const json& step = r["step_time"];
  if (step["measured"].is_number() && step["forecast"].is_number()) {
    out += fmt::format("step time: forecast {}, measured {}\n", signed_amount(step["forecast"], "s"),
                       signed_amount(step["measured"], "s"));
    out += terms_text(step["terms"], "s");
  }
  out += "tolls           forecast     measured\n";
  for (const json& t : r["tolls"]) {
    const std::string unit = t["unit"].get<std::string>();
    out += fmt::format("  {:<12} {:>11} {:>12}  {}\n", t["toll"].get<std::string>(),
                       signed_amount(t["forecast"], unit), signed_amount(t["measured"], unit),
                       toll_words(t["toll"].get<std::string>()));
  }
  out += comb_part(in.trace);
  for (const json& note : r["notes"]) out += fmt::format("note: {}\n", note.get<std::string>());
  return out;
}

}  // namespace trireme
