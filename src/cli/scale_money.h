// Prices of a family of models on a cluster, for `scale optimum`.
#pragma once
#include "cli/plan_subject.h"
#include "scaling/money.h"

namespace trireme::cli {

struct MoneyOptions {
  PlanSubject subject;  // --model, --cluster, --gpus, --seq
  double price = 0;     // dollars per device-hour; 0 = the cluster file's
  double problems = 1e9, prompt = 500, answer = 500;
  std::string dollars;
  void add_to(CLI::App& verb);
  bool wanted() const { return !subject.cluster.empty(); }
};

struct PricedFamily {
  Market market;
  std::string name, device;
  int64_t gpus = 0;
  ModelSpec base;
};
// Shows its progress.
// Throws Error (request) if fewer than two sizes fit onto the devices, or no price is known.
PricedFamily priced_family(const MoneyOptions&);

// Days and dollars of a choice; of experts the tokens that their parameters see.
std::string price_text(const PricedFamily&, const Choice&);
std::string bargain_text(const PricedFamily&, const Bargain&, const char* value);

}  // namespace trireme::cli
