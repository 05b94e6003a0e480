// Whose constants price a step, as options name them.
#pragma once
#include <memory>
#include <string>
#include <string_view>

#include "catalog/constants.h"
#include "cost/step_time.h"

namespace trireme {

// Whose measured constants price the step: names of data/score_constants.json; "" = what all have in common.
struct PricedBy {
  std::string device, software, site;
  // Constants of one's own (`trireme score --fit` and `--calibrate` write them) in the place of the shipped.
  std::shared_ptr<const ScoreConstants> own;
  std::string file;  // they are from; "" = the shipped
};
// By the constants of `text`, the content of `file`: where no site is named, by the one that the file has and
// the shipped have not. Errors (request): there are several; or nothing of it is the file's own.
void price_by_own(PricedBy&, std::string_view text, const std::string& file);
// "constants of mine.json: software nemo, site mine (the whole step x 1.07 of other sites')"; empty of the
// shipped ones with nothing named.
std::string text_of(const PricedBy&);
// What a step takes at the site relative to its parts (Fit::pace, Fit::jitter): for a step that is priced op
// by op, whose prices know nothing of a site. 1 where none is named.
double site_slowness(const PricedBy&, int64_t devices);
// Errors (request): a software or a site of which nothing was measured.
FitValues constants_of(const PricedBy&);
// Errors (request): no constants of this software; what: the option or the row's key.
void know_software(const ScoreConstants&, std::string_view what, const std::string& name);
// Of software whose waits follow from its order: no collective is exposed by a share.
FitValues ordered_constants(FitValues);
// The same with every kernel at the device's peak, no launches and no slow nodes: a step takes no less.
FitValues constants_at_the_roof(FitValues);

}  // namespace trireme
