#include "trace/span_text.h"

#include <fmt/format.h>

#include <map>
#include <sstream>

#include "base/error.h"

namespace trireme {
namespace {

constexpr std::array<std::string_view Span::*, 6> kTexts = {&Span::name, &Span::layer, &Span::action,
                                                            &Span::lane, &Span::group, &Span::algorithm};

}  // namespace

std::string to_text(std::span<const Span> spans) {
  std::map<std::string_view, size_t> number;
  std::vector<std::string_view> texts;
  for (const Span& s : spans)
    for (auto text : kTexts)
      if (number.try_emplace(s.*text, texts.size()).second) texts.push_back(s.*text);
  std::string out = fmt::format("{} {}\n", texts.size(), spans.size());
  for (std::string_view t : texts) out += fmt::format("{} {}\n", t.size(), t);
  for (const Span& s : spans) {
    auto put = std::back_inserter(out);
    fmt::format_to(put, "{} {} {} {} {} {} {} {} ", int(s.kind), s.rank, s.microbatch, s.step, s.begin_ns,
                   s.end_ns, s.met_ns, s.wire_bytes);
    fmt::format_to(put, "{} {} {}", s.cost.flops, s.cost.bytes_read, s.cost.bytes_written);
    for (int64_t b : s.memory) fmt::format_to(put, " {}", b);
    for (auto text : kTexts) fmt::format_to(put, " {}", number.at(s.*text));
    out += '\n';
  }
  return out;
}

void add_text(OwnedSpans& to, std::string_view text) {
  std::istringstream in{std::string(text)};
  size_t count = 0, spans = 0;
  in >> count >> spans;
  std::vector<std::string_view> texts;
  for (size_t i = 0; i < count && in; i++) {
    size_t size = 0;
    in >> size;
    in.get();
    std::string& t = to.texts.emplace_back(size, '\0');
    in.read(t.data(), std::streamsize(size));
    texts.push_back(t);
  }
  for (size_t i = 0; i < spans && in; i++) {
    Span s;
    int kind = 0;
    in >> kind >> s.rank >> s.microbatch >> s.step >> s.begin_ns >> s.end_ns >> s.met_ns >> s.wire_bytes;
    in >> s.cost.flops >> s.cost.bytes_read >> s.cost.bytes_written;
    s.kind = SpanKind(kind);
    for (int64_t& b : s.memory) in >> b;
    for (auto field : kTexts) {
      size_t n = 0;
      in >> n;
      if (n < texts.size()) s.*field = texts[n];
    }
    to.spans.push_back(s);
  }
  require(bool(in), "spans of another rank are whole");
}

}  // namespace trireme
