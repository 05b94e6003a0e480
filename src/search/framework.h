// Training frameworks as data: the layouts that each supports, and the names of its launch flags.
#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "search/search.h"

namespace trireme {

struct Framework {
  std::string_view name;
  std::string_view software;  // in data/score_constants.json: its measured constants; "" = none
  std::string_view source;    // page that lists the flags
  std::vector<Requirement> require;
};
std::vector<std::string> framework_names();
// Requires: the name is one of framework_names().
const Framework& framework_named(std::string_view name);

// Gives all layouts the framework's stages: as many layers for each. If the framework has no flags for the
// layers of each stage, requires a pp that divides the layers. Requires: the model and the run are set.
void require_stages(const Framework&, SearchRequest&);

// Throws bad_request if the framework lacks the request's recipe of 8-bit products, or flags for f16.
void refuse_types(const Framework&, const SearchRequest&);

// The flags that start this layout in the framework, wrapped at 100 columns. Model, data and optimizer flags
// are left out.
std::string launch_text(const Framework&, const SearchRequest&, const SearchLayout&);

}  // namespace trireme
