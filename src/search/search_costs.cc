#include "search/search_costs.h"

#include "forecast/run_costs.h"
#include "spec/rank_kinds.h"

namespace trireme {

SearchCosts costs_of(const SearchRequest& q, const SearchLayout& l, double step_s) {
  SearchCosts c{.devices = l.gpus,
                .watts = run_watts(q.site, l.gpus),
                .step_s = step_s,
                .step_tokens = step_tokens(q, l)};
  if (q.saved_bytes > 0) c.checkpoint = checkpoint_plan(checkpoint_case_of(q, l.gpus, step_s));
  const RooflineCase served{
      .name = q.name, .device = q.device, .model = q.model, .figures = q.figures, .tp = l.tp};
  c.serving = serving_of(served, double(q.seq), 0);
  c.kinds = q.kinds ? kinds_text(q.site, degrees_of(l)) : kinds_text(used_kinds(q.site, l.gpus));
  return c;
}

std::vector<std::pair<std::string, std::string>> cost_lines(const SearchRequest& q, const SearchCosts& c) {
  std::vector<std::pair<std::string, std::string>> lines;
  if (!q.price_note.empty()) lines.emplace_back("price", q.price_note);
  if (c.watts > 0) lines.emplace_back("energy", energy_text(q.site, c.devices, c.step_s, c.step_tokens));
  if (c.checkpoint) lines.emplace_back("checkpoint", checkpoint_text(*c.checkpoint));
  if (c.serving) lines.emplace_back("serving", serving_text(*c.serving));
  if (!c.kinds.empty()) lines.emplace_back("kinds", c.kinds);
  return lines;
}

void add_costs(nlohmann::ordered_json& j, const SearchRequest& q, const SearchCosts& c) {
  if (q.price > 0) j["price_per_hour"] = price_of(q, c.devices);
  if (q.price > 0 && !q.currency.empty()) j["currency"] = q.currency;
  if (c.watts > 0) j["watts"] = c.watts;
  if (c.checkpoint) j["checkpoint"] = json_of(*c.checkpoint);
  if (c.serving)
    j["serving"] = {{"tp", c.serving->tp},
                    {"texts", c.serving->batch},
                    {"prompt", c.serving->prompt},
                    {"first_token_s", c.serving->first_token_s},
                    {"tokens_per_s_per_gpu", c.serving->per_device()}};
  if (!c.kinds.empty()) j["kinds"] = c.kinds;
}

}  // namespace trireme
