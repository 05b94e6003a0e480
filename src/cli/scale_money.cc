#include "cli/scale_money.h"

#include <algorithm>
#include <cmath>

#include "base/progress.h"
#include "cli/search.h"
#include "estimate/serving.h"
#include "scaling/ladder.h"
#include "spec/parameters.h"
#include "spec/size_rule.h"

namespace trireme::cli {
namespace {

constexpr size_t kMostSizes = 9;

// Some of the family, evenly in the logarithm of their sizes.
std::vector<LadderSize> some_of(const std::vector<LadderSize>& family) {
  std::vector<LadderSize> some;
  const double low = std::log(family.front().parameters);
  const double high = std::log(family.back().parameters);
  for (size_t i = 0; i < kMostSizes; i++) {
    const double wanted = low + (high - low) * double(i) / double(kMostSizes - 1);
    const auto best =
        std::min_element(family.begin(), family.end(), [&](const LadderSize& a, const LadderSize& b) {
          return std::abs(std::log(a.parameters) - wanted) < std::abs(std::log(b.parameters) - wanted);
        });
    if (some.empty() || best->parameters > some.back().parameters) some.push_back(*best);
  }
  return some;
}

bool price_serving(const RooflineCase& c, const Life& life, PricedSize& s) {
  const std::optional<Serving> served = serving_of(c, life.prompt, life.answer);
  if (!served) return false;
  s.serving = served->tp;
  s.decode_s = 1 / served->per_device();
  s.prefill_s = 1 / served->prefill_per_device();
  return true;
}

// A power of two of sequences near the rule's, that the devices divide.
int64_t batch_of(const ModelSpec& m, int64_t seq, int64_t gpus) {
  const double sequences = batch_tokens_by_rule(tokens_by_rule(m)) / double(seq);
  const double wanted = std::exp2(std::round(std::log2(std::max(1.0, sequences))));
  return int64_t(std::ceil(wanted / double(gpus))) * gpus;
}

bool price_training(SearchRequest q, const ModelSpec& m, PricedSize& s) {
  q.model = m;
  q.globals = {batch_of(m, q.seq, q.gpus.front())};
  const SearchResult r = search(q);
  if (r.best.empty()) return false;
  s.train_s = r.best.front().token_s * double(q.gpus.front());
  s.layout = text_of(r.best.front().layout);
  return true;
}

}  // namespace

void MoneyOptions::add_to(CLI::App& verb) {
  verb.add_option("--cluster", subject.cluster,
                  "prices training and serving on these devices: a cluster file, or one by name: H100");
  verb.add_option("--gpus", subject.gpus, "with --cluster: devices that train")
      ->check(number_between(1, 1 << 20));
  verb.add_option(
      "--model", subject.model,
      "with --cluster: model whose family is priced, as of `trireme search` (default: llama3-8B)");
  verb.add_option("--seq", subject.seq, "with --cluster: tokens of a sequence in training (default: 4096)")
      ->check(number_between(1, 1e9));
  verb.add_option("--price", price, "with --cluster: dollars per device-hour (default: the cluster file's)")
      ->check(number_between(0, 1e6));
  verb.add_option("--dollars", dollars, "with --cluster: dollars for training and serving together");
  verb.add_option("--problems", problems, "with --cluster: problems over the model's life")
      ->check(number_between(1, 1e18))
      ->capture_default_str();
  verb.add_option("--prompt", prompt, "with --cluster: tokens of a problem's prompt")
      ->check(number_between(0, 1e7))
      ->capture_default_str();
  verb.add_option("--answer", answer, "with --cluster: tokens of an answer")
      ->check(number_between(1, 1e7))
      ->capture_default_str();
}

PricedFamily priced_family(const MoneyOptions& o) {
  PlanSubject s = o.subject;
  if (s.model.empty()) s.model = "llama3-8B";
  if (s.seq == 0) s.seq = 4096;
  if (s.gpus == 0) s.gpus = 8;
  SearchOptions options;
  options.global = s.gpus;
  options.price = o.price;
  std::optional<RunSpec> none;
  const SearchRequest q = search_request(options, s, none);
  PricedFamily f;
  f.base = q.model;
  f.name = q.name;
  f.device = q.device;
  f.gpus = s.gpus;
  f.market.dollars_per_hour = q.price;
  f.market.life = {o.problems, o.prompt, o.answer};
  if (q.price <= 0) bad_request("--price: {} states no price; give dollars per device-hour", s.cluster);
  const std::vector<LadderSize> sizes = some_of(ladder_family(q.model, s.seq, 3 * q.model.layers));
  Progress bar("price sizes", int64_t(sizes.size()));
  for (const LadderSize& size : sizes) {
    PricedSize p{size.parameters};
    RooflineCase c{.name = q.name, .device = q.device, .model = size.model, .figures = q.figures};
    if (price_training(q, size.model, p) && price_serving(c, f.market.life, p)) f.market.sizes.push_back(p);
    bar.update(&size - sizes.data() + 1, human_count(size.parameters));
  }
  bar.finish();
  if (f.market.sizes.size() < 2)
    bad_request(
        "--gpus = {}: {} of {} sizes of {} fit onto them and can be served; expected more devices, or a "
        "smaller --model",
        s.gpus, f.market.sizes.size(), sizes.size(), f.name);
  return f;
}

std::string price_text(const PricedFamily& f, const Choice& c) {
  const double train = f.market.train_dollars(c.parameters, c.tokens);
  const double serve = f.market.serve_dollars(c.parameters, c.samples);
  const double hours = train / f.market.dollars_per_hour / double(f.gpus);
  std::string s = fmt::format("  {} on {} x {}: {} and {} $ of training, {} $ of serving {} problems\n",
                              f.name, f.gpus, f.device, human_seconds(3600 * hours), human_count(train),
                              human_count(serve), human_count(f.market.life.problems));
  const std::vector<PricedSize>& sizes = f.market.sizes;
  const auto near =
      std::min_element(sizes.begin(), sizes.end(), [&](const PricedSize& a, const PricedSize& b) {
        return std::abs(std::log(a.parameters / c.parameters)) <
               std::abs(std::log(b.parameters / c.parameters));
      });
  s += fmt::format("    as {} parameters in {}; served on {}\n", human_count(near->parameters), near->layout,
                   near->serving);
  if (c.parameters < sizes.front().parameters || c.parameters > sizes.back().parameters)
    s += fmt::format("    beyond the priced sizes, {} to {} parameters\n",
                     human_count(sizes.front().parameters), human_count(sizes.back().parameters));
  if (f.base.moe())
    s += fmt::format("    a parameter of an expert sees {} of {} tokens ({} of {} experts per token)\n",
                     human_count(c.tokens * double(f.base.experts_per_token) / double(f.base.experts)),
                     human_count(c.tokens), f.base.experts_per_token, f.base.experts);
  return s;
}

std::string bargain_text(const PricedFamily& f, const Bargain& b, const char* value) {
  return fmt::format("{} parameters, {} tokens, {:.3g} samples; {} {:.4g}; {} $\n{}",
                     human_count(b.choice.parameters), human_count(b.choice.tokens), b.choice.samples, value,
                     b.choice.value, human_count(b.total()), price_text(f, b.choice));
}

}  // namespace trireme::cli
