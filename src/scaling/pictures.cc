#include "scaling/pictures.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "base/progress.h"
#include "search/search_chart.h"

namespace trireme {
namespace {

constexpr size_t kMostSeries = 8;  // with names below the picture
constexpr int kCurve = 60;         // points of a drawn law

Chart loss_chart(std::string title, std::string x) {
  return {std::move(title), {std::move(x), true}, {"loss (nats per token)", false, false}, {}};
}

Picture isoflop_picture(const std::vector<IsoFlop>& budgets) {
  Chart c = loss_chart("Runs of equal FLOPs, and parabolas", "parameters");
  const size_t every = (budgets.size() + kMostSeries - 1) / kMostSeries;
  for (size_t i = 0; i < budgets.size(); i += every) {
    const IsoFlop& f = budgets[i];
    ChartSeries runs{fmt::format("{:.2g}", f.flops), {}, false};
    for (const LossPoint& p : f.points) runs.points.push_back({p.parameters, p.loss});
    if (f.has_minimum) runs.points.push_back({f.best(), f.loss_at(f.best()), human_count(f.best()), true});
    c.series.push_back(std::move(runs));
  }
  // Lines last, so that series and colors agree: the same order again.
  std::vector<ChartSeries> lines;
  for (size_t i = 0; i < budgets.size(); i += every) {
    const IsoFlop& f = budgets[i];
    ChartSeries line{"", {}, true, false};
    const double low = std::log(f.points.front().parameters);
    const double high = std::log(f.points.back().parameters);
    for (int j = 0; j <= kCurve && f.c2 != 0; j++) {
      const double n = std::exp(low + (high - low) * j / kCurve);
      line.points.push_back({n, f.loss_at(n)});
    }
    lines.push_back(std::move(line));
  }
  while (c.series.size() < kMostSeries)
    c.series.push_back({"", {}, true, false});  // colors repeat after eight
  for (ChartSeries& l : lines) c.series.push_back(std::move(l));
  return {"isoflop.svg", svg_of(c)};
}

Picture envelope_picture(const FitReport& r, const std::vector<LossPoint>& points) {
  Chart c = loss_chart("Loss of each size, and where sizes between others are the best", "training FLOPs");
  std::map<double, std::vector<const LossPoint*>> sizes;
  for (const LossPoint& p : points)
    if (p.loss > 0) sizes[p.parameters].push_back(&p);
  for (auto& [n, of] : sizes) {
    if (of.size() < 2) continue;
    std::sort(of.begin(), of.end(), [](auto* a, auto* b) { return a->flops < b->flops; });
    ChartSeries s{c.series.size() < kMostSeries - 1 ? human_count(n) : "", {}, true, false};
    for (const LossPoint* p : of) s.points.push_back({p->flops, p->loss});
    c.series.push_back(std::move(s));
  }
  ChartSeries front{"envelope", {}, false};
  for (const FrontierPoint& p : r.envelope.points)
    front.points.push_back({p.flops, p.loss, human_count(p.parameters)});
  c.series.push_back(std::move(front));
  return {"envelope.svg", svg_of(c)};
}

Picture forecast_picture(const FitReport& r, const std::vector<ForecastAt>& forecasts) {
  const ParametricFit& f = *r.parametric;
  Chart c = loss_chart(fmt::format("Loss against compute, {:.0f} % interval of a run", 100 * f.level),
                       "training FLOPs");
  double high = 4 * r.range.flops.high;
  for (const ForecastAt& at : forecasts) high = std::max(high, at.flops);
  ChartSeries band{"interval", {}, true, false, {}};
  ChartSeries best{"law at the best size", {}, true, false};
  for (int i = 0; i <= kCurve; i++) {
    const double flops = r.range.flops.low * std::pow(high / r.range.flops.low, double(i) / kCurve);
    const Allocation a = chinchilla_optimum(f.law, flops);
    const Interval in = f.loss_of_run(a.parameters, a.tokens);
    band.points.push_back({flops, in.high});
    band.lower.push_back({flops, in.low});
    best.points.push_back({flops, f.law.loss(a.parameters, a.tokens)});
  }
  ChartSeries runs{"runs", {}, false};
  for (const LossPoint& p : r.finals) runs.points.push_back({p.flops, p.loss});
  ChartSeries told{"", {}, false};
  for (const ForecastAt& at : forecasts) {
    const Allocation a = allocation_of(at, f.law);
    const double loss = f.law.loss(a.parameters, a.tokens);
    told.points.push_back(
        {at.flops, loss, fmt::format("{:.3f} at {} parameters", loss, human_count(a.parameters)), true});
  }
  for (ChartSeries* s : {&band, &best, &runs, &told}) c.series.push_back(std::move(*s));
  return {"forecast.svg", svg_of(c)};
}

}  // namespace

std::vector<Picture> fit_pictures(const FitReport& r, const std::vector<LossPoint>& points,
                                  const std::vector<ForecastAt>& forecasts) {
  std::vector<Picture> all;
  if (!r.budgets.empty()) all.push_back(isoflop_picture(r.budgets));
  if (r.envelope.none.empty()) all.push_back(envelope_picture(r, points));
  if (r.parametric) all.push_back(forecast_picture(r, forecasts));
  return all;
}

Picture optimum_picture(const std::vector<std::pair<double, Choice>>& by_inference) {
  Chart c{"The best model against the inference budget",
          {"inference FLOPs per token served", true},
          {"", true},
          {}};
  ChartSeries n{"parameters", {}, true, false};
  ChartSeries ratio{"tokens per parameter", {}, true, false};
  ChartSeries k{"samples", {}, true, false};
  for (const auto& [inference, choice] : by_inference) {
    n.points.push_back({inference, choice.parameters});
    ratio.points.push_back({inference, choice.tokens / choice.parameters});
    k.points.push_back({inference, choice.samples});
  }
  for (ChartSeries* s : {&n, &ratio, &k}) c.series.push_back(std::move(*s));
  return {"optimum.svg", svg_of(c)};
}

std::string fit_sketch(const FitReport& r) {
  if (!r.parametric || r.finals.empty()) return "";
  constexpr int kRows = 14;
  constexpr int kColumns = 64;
  const double x0 = std::log(r.range.flops.low);
  const double x1 = std::log(4 * r.range.flops.high);
  double y0 = INFINITY;
  double y1 = 0;
  const auto best = [&](double flops) {
    const Allocation a = chinchilla_optimum(r.parametric->law, flops);
    return r.parametric->law.loss(a.parameters, a.tokens);
  };
  for (const LossPoint& p : r.finals) {
    y0 = std::min(y0, p.loss);
    y1 = std::max(y1, p.loss);
  }
  y0 = std::min(y0, best(std::exp(x1)));
  std::vector<std::string> rows(kRows, std::string(kColumns, ' '));
  const auto put = [&](double flops, double loss, char mark) {
    const double column = (std::log(flops) - x0) / (x1 - x0) * (kColumns - 1);
    const double row = (y1 - loss) / std::max(1e-12, y1 - y0) * (kRows - 1);
    if (row < -0.5 || row > kRows - 0.5) return;
    rows[size_t(std::lround(row))][size_t(std::clamp(std::lround(column), 0L, long(kColumns - 1)))] = mark;
  };
  for (int i = 0; i < kColumns; i++) {
    const double flops = std::exp(x0 + (x1 - x0) * i / (kColumns - 1));
    put(flops, best(flops), '*');
  }
  for (const LossPoint& p : r.finals) put(p.flops, p.loss, 'o');
  std::string s = "loss (o runs, * the law's best size)\n";
  for (int i = 0; i < kRows; i++)
    s += fmt::format("{:7.3f} |{}\n", y1 - (y1 - y0) * i / (kRows - 1),
                     rows[size_t(i)].substr(0, rows[size_t(i)].find_last_not_of(' ') + 1));
  return s + fmt::format("{:>9}{}\n{:>9}{:<32.2g}{:>32.2g} training FLOPs\n", "+", std::string(kColumns, '-'),
                         "", std::exp(x0), std::exp(x1));
}

}  // namespace trireme
