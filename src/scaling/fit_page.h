// A fit as one page that a browser shows without a network and without JavaScript.
#pragma once
#include <string>
#include <vector>

#include "scaling/pictures.h"

namespace trireme {

// HTML with the pictures, and the text of the fit as `scale fit` prints it. Any text in it is safe: names and
// paths come from files.
std::string fit_page(const std::string& title, const std::string& text, const std::vector<Picture>&);

}  // namespace trireme
