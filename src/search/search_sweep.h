// The best layout against the number of devices, and the largest model that fits on so many.
#pragma once
#include <string>
#include <vector>

#include "search/confirm.h"
#include "search/search.h"

namespace trireme {

struct SweepRow {
  int64_t gpus = 0;
  bool any = false;  // something fits; then
  Priced best;
  std::optional<Confirmed> confirmed;  // best, booked and simulated; none: in closed form alone
  double mfu = 0;
  Goodput goodput;
  double speedup = 0;  // over the row before, half the devices (by loss: until the loss); 0: it has none
  std::string eats;    // the toll whose device-seconds a token grew most since
  double eaten = 0;    // share of this row's device-seconds a token
};
struct Sweep {
  std::vector<SweepRow> rows;
  // Devices at which one more doubling stops paying, being less than 1.5 times as fast: 0 = none of these.
  int64_t enough = 0;
  int64_t looked_at = 0, dropped = 0;  // layouts that were confirmed, and of them those that did not fit
  double confirm_s = 0;
};
inline constexpr double kPays = 1.5;
// Each of request.gpus, ascending, by itself; `how`: its best confirmed, as search_and_confirm() does it.
Sweep sweep(const SearchRequest&, const ConfirmRequest* how = nullptr);
std::string sweep_text(const SearchRequest&, const Sweep&);
std::string sweep_json(const SearchRequest&, const Sweep&);
// Tokens a second, whole and if each doubling doubled it, with the devices that are enough marked.
std::string sweep_svg(const SearchRequest&, const Sweep&);
// Degrees of the best layout against tokens of a step a device.
std::string mix_svg(const SearchRequest&, const Sweep&);

struct LargestRow {
  std::string technique;
  bool any = false;  // a model of the family fits; else
  std::string why;   // what keeps them all out
  ModelSpec model;
  double parameters = 0;
  SearchLayout layout;
  StepMemory memory;
};
// The largest model of the request's family (layers and width in proportion) that fits with each technique
// alone, and with all together: of all numbers of layers, for larger ones may divide where smaller do not.
// Layouts divide as a run's must. request.gpus: one number; the batch is request.globals[0], never another.
std::vector<LargestRow> largest(const SearchRequest&);
std::string largest_text(const SearchRequest&, const std::vector<LargestRow>&);
std::string largest_json(const SearchRequest&, const std::vector<LargestRow>&);

// The family's member with so many layers: width, heads and feed-forward in proportion, heads of the same
// size and in multiples of eight where the family's are.
ModelSpec scaled_model(const ModelSpec&, int64_t layers, int64_t seq);

// Parameters whose weights, gradients and optimizer state alone fill the memory of a device, tp ranks
// dividing them and dp ranks sharing by ZeRO: Rajbhandari et al. 2020, tables 1 and 2.
double most_parameters_by_states(double memory, int zero, int64_t dp, int64_t tp);

}  // namespace trireme
