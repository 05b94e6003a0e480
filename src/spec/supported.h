// What of each key's values this version runs: for those who read `trireme config`.
#pragma once
#include <map>
#include <string>
#include <vector>

#include "spec/run_spec.h"

namespace trireme {

// What refuse_unsupported() refuses, a problem for each key, with what works. The one list of limits.
std::vector<Problem> unsupported_of(const RunSpec&);

// The first problem of the run, or what this version does not run of it; "": this program trains it.
std::string why_not_run(const RunSpec&);

// "layout.tp" -> "1 only", "layout.schedule" -> "1f1b or gpipe": keys of which some value is refused, with
// the values that are not. Found by asking unsupported_of() of each value, so it says what is refused and
// cannot drift from it. A value counts as refused where it is so beside every layout that was asked: alone,
// and with each axis at 2.
std::map<std::string, std::string> limits_of_version();

}  // namespace trireme
