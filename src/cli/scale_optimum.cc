// trireme scale optimum: sizes, tokens and samples for a budget.
#include <algorithm>
#include <cmath>

#include "base/file.h"
#include "base/json.h"
#include "cli/scale.h"
#include "cli/scale_money.h"
#include "scaling/optimum.h"
#include "scaling/pictures.h"

namespace trireme::cli {
namespace {

using Ordered = nlohmann::ordered_json;

struct OptimumRequest {
  std::string law = "besiroglu", flops, inference, served, pictures;
  bool json = false;
  MoneyOptions money;
};

Ordered choice_json(const Choice& c) {
  return {{"N", c.parameters}, {"D", c.tokens}, {"k", c.samples}, {"value", c.value}};
}

std::string choice_text(const Choice& c) {
  return fmt::format("{} parameters, {} tokens ({:.3g} per parameter), {:.3g} samples",
                     human_count(c.parameters), human_count(c.tokens), c.tokens / c.parameters, c.samples);
}

// One of T2's two approaches.
struct Approach {
  const char* name;
  const char* value;
  std::function<Choice(const Budgets&)> best;
  std::function<double(double n, double d, double k)> cost;  // least is best
  double sign = 1;                                           // `cost` / value
};

std::vector<Approach> approaches_of(const LawFile& law) {
  std::vector<Approach> all;
  if (law.task)
    all.push_back(
        {"T2 approach 1", "task loss", [&](const Budgets& b) { return best_by_loss(*law.task, b); }});
  if (law.pass)
    all.push_back({"T2 approach 2", "pass@k", [&](const Budgets& b) { return best_by_pass(*law.pass, b); },
                   [&](double n, double d, double k) { return -law.pass->pass(n, d, k); }, -1});
  return all;
}

std::string chinchilla_text(const LawFile& law, double flops, Ordered& j) {
  const ParametricFit& f = law.parametric;
  const Allocation a = chinchilla_optimum(f.law, flops);
  const double loss = f.law.loss(a.parameters, a.tokens);
  j["chinchilla"] = {{"N", a.parameters}, {"D", a.tokens}, {"loss", loss}};
  std::string s = fmt::format("Chinchilla: {} parameters", human_count(a.parameters));
  if (!f.resampled.empty()) {
    const Interval n = f.of([&](const ChinchillaLaw& l) { return chinchilla_optimum(l, flops).parameters; });
    const Interval run = f.loss_of_run(a.parameters, a.tokens);
    j["chinchilla"]["N_interval"] = {n.low, n.high};
    j["chinchilla"]["loss_interval"] = {run.low, run.high};
    s += fmt::format(" ({:.0f} %: {} to {})", 100 * f.level, human_count(n.low), human_count(n.high));
  }
  s += fmt::format(", {} tokens ({:.3g} per parameter), loss {:.4f}\n", human_count(a.tokens),
                   a.tokens / a.parameters, loss);
  if (law.range && (flops > 10 * law.range->flops.high || flops < 0.1 * law.range->flops.low))
    s += fmt::format("  beyond the fitted runs, which have {:.3g} to {:.3g} FLOPs\n", law.range->flops.low,
                     law.range->flops.high);
  return s;
}

std::string sampled_text(const Approach& a, const Budgets& b, Ordered& j) {
  const Choice c = a.best(b);
  j.push_back({{"approach", a.name}, {"choice", choice_json(c)}});
  return fmt::format("{}: {}; {} {:.4g}\n", a.name, choice_text(c), a.value, c.value);
}

std::string shares_text(const Approach& a, double total, double served, Ordered& j) {
  std::string s =
      fmt::format("{}, {:.3g} FLOPs in all, {} tokens served:\n  {:>16}{:>12}{:>12}{:>10}{:>12}\n", a.name,
                  total, human_count(served), "inference share", "parameters", "tokens", "samples", a.value);
  const std::vector<SharePoint> points = share_frontier(a.best, total, served, 9);
  for (const SharePoint& p : points) {
    j.push_back({{"approach", a.name}, {"share", p.share}, {"choice", choice_json(p.choice)}});
    s += fmt::format("  {:>14.0f} %{:>12}{:>12}{:>10.3g}{:>12.4g}\n", 100 * p.share,
                     human_count(p.choice.parameters), human_count(p.choice.tokens), p.choice.samples,
                     p.choice.value);
  }
  return s;
}

// Three factors of ten either side of the budget.
void draw(const Approach& a, const Budgets& b, const std::string& folder) {
  std::vector<std::pair<double, Choice>> points;
  for (int i = -30; i <= 30; i++) {
    const double inference = b.inference * std::pow(10, i / 10.0);
    if (std::min(b.train / 6, inference / 2) > 1e3)
      points.emplace_back(inference, a.best({b.train, inference}));
  }
  make_folders(folder);
  const Picture p = optimum_picture(points);
  write_text_atomic(fs::path(folder) / p.name, p.svg);
}

Ordered bargain_json(const Bargain& b) {
  return {{"choice", choice_json(b.choice)},
          {"train_dollars", b.train_dollars},
          {"serve_dollars", b.serve_dollars}};
}

// The best use of dollars by T2's approaches, or, without samples, by the law of loss.
std::string dollars_text(const LawFile& law, const std::vector<Approach>& approaches,
                         const PricedFamily& family, double dollars, Ordered& j) {
  std::string s;
  const auto add = [&](const char* name, const char* value, double sign, auto&& cost) {
    Bargain b = best_for_dollars(cost, family.market, dollars);
    b.choice.value *= sign;
    j[name] = bargain_json(b);
    s += fmt::format("{} for {} $: {}", name, human_count(dollars), bargain_text(family, b, value));
  };
  if (approaches.empty())
    add("best loss", "loss", 1, [&](double n, double d, double k) {
      return law.parametric.law.loss(n, d) * (1 + 1e-9 * std::log(k));  // a second sample is worth nothing
    });
  for (const Approach& a : approaches) add(a.name, a.value, a.sign, a.cost);
  return s;
}

std::string solved_text(const LawFile& law, const PricedFamily& family, Ordered& j) {
  const Bargain b =
      cheapest_solution([&](double n, double d, double k) { return law.pass->pass(n, d, k); }, family.market);
  const double each = b.total() / (family.market.life.problems * b.choice.value);
  j["cheapest_solution"] = bargain_json(b);
  j["cheapest_solution"]["dollars_per_solved"] = each;
  return fmt::format("fewest dollars per solved problem, {:.3g} $: {}", each,
                     bargain_text(family, b, "pass@k"));
}

Budgets budgets_of(const OptimumRequest& q) {
  if (!q.money.dollars.empty() && !q.money.wanted()) bad_request("--dollars: goes with --cluster; give both");
  if (q.flops.empty() && q.money.dollars.empty())
    bad_request("--flops or --dollars: expected one of the two");
  if (q.flops.empty() && (!q.inference.empty() || !q.served.empty()))
    bad_request("--inference and --served: go with --flops; give it too");
  return {q.flops.empty() ? 0 : positive("--flops", q.flops),
          q.inference.empty() ? 0 : positive("--inference", q.inference)};
}

void optimum(const OptimumRequest& q) {
  const Budgets b = budgets_of(q);
  const LawFile law = law_called(q.law);
  const std::vector<Approach> approaches = approaches_of(law);
  if (approaches.empty() && (b.inference > 0 || !q.served.empty()))
    bad_request("--{}: the law {} has no samples; expected one that `scale fit` made of rows with k",
                b.inference > 0 ? "inference" : "served", visible(q.law));
  if (!q.pictures.empty() && b.inference == 0) bad_request("--pictures: goes with --inference; give both");
  Ordered j = {{"C", b.train}};
  std::string s = b.train > 0 ? chinchilla_text(law, b.train, j) : "";
  std::optional<PricedFamily> family;
  if (q.money.wanted()) family = priced_family(q.money);
  if (family && b.train > 0) {
    const Allocation a = chinchilla_optimum(law.parametric.law, b.train);
    const Choice c{a.parameters, a.tokens, 1};
    s += price_text(*family, c);
    j["chinchilla"]["train_dollars"] = family->market.train_dollars(c.parameters, c.tokens);
    j["chinchilla"]["serve_dollars"] = family->market.serve_dollars(c.parameters, 1);
  }
  for (const Approach& a : approaches) {
    if (b.inference > 0) s += sampled_text(a, b, j["samples"]);
    if (b.inference > 0 && family) s += price_text(*family, a.best(b));
    if (!q.served.empty()) s += shares_text(a, b.train, positive("--served", q.served), j["shares"]);
  }
  if (law.task && b.inference > 0)
    s += fmt::format("  as training grows, approach 1 saturates at {} parameters\n",
                     human_count(saturated_size(*law.task, b.inference)));
  if (!q.money.dollars.empty())
    s += dollars_text(law, approaches, *family, positive("--dollars", q.money.dollars), j["dollars"]);
  if (family && law.pass) s += solved_text(law, *family, j);
  if (!q.pictures.empty()) draw(approaches.front(), b, q.pictures);
  print_text("{}", q.json ? j.dump(2) + "\n" : s);
}

}  // namespace

void add_scale_optimum(CLI::App& scale) {
  CLI::App* verb = scale.add_subcommand(
      "optimum",
      "the best size, tokens and samples for a budget: Chinchilla's closed form, and "
      "T2's two approaches where the law "
      "has samples\n"
      "example: trireme scale optimum --flops 5.8e23\n"
      "         trireme scale optimum --law law.json --flops 1e21 --inference 2e10\n"
      "         trireme scale optimum --dollars 1e6 --cluster H100 --gpus 64 --price 2.5");
  auto q = std::make_shared<OptimumRequest>();
  verb->add_option("--law", q->law,
                   "file of `scale fit --out`, or the published constants besiroglu or hoffmann")
      ->capture_default_str();
  verb->add_option("--flops", q->flops,
                   "FLOPs of training; with --served of training and inference together");
  verb->add_option("--inference", q->inference, "FLOPs per token served, of all its samples: 2 N k");
  verb->add_option("--served", q->served,
                   "tokens served over the model's life: prints the best choice for each share of inference");
  verb->add_option("--pictures", q->pictures,
                   "writes optimum.svg into this folder: the choice against the inference budget")
      ->type_name("FOLDER");
  q->money.add_to(*verb);
  verb->add_flag("--json", q->json, "prints JSON");
  verb->callback([q] { optimum(*q); });
}

}  // namespace trireme::cli
