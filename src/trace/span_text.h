// Spans as text, so that one rank can write what all have recorded.
#pragma once
#include <deque>
#include <string>
#include <string_view>
#include <vector>

#include "trace/span.h"

namespace trireme {

// Texts once, then a line a span. For ranks of one run of one version: not a file format.
std::string to_text(std::span<const Span>);

// Spans with the texts that they point into.
struct OwnedSpans {
  std::vector<Span> spans;
  std::deque<std::string> texts;
  int64_t dropped = 0;  // that found no room where they were recorded
  OwnedSpans() = default;
  OwnedSpans(OwnedSpans&&) = default;
  OwnedSpans& operator=(OwnedSpans&&) = default;
};
// Appends those of a to_text().
void add_text(OwnedSpans&, std::string_view);

}  // namespace trireme
