#include "text/normalizer.h"

#include <algorithm>

#include "text/normal_form.h"

namespace trireme {
namespace {

std::string replaced(std::string_view text, std::string_view from, std::string_view to) {
  std::string out;
  size_t begin = 0;
  for (size_t at; (at = text.find(from, begin)) != std::string_view::npos; begin = at + from.size()) {
    out.append(text, begin, at - begin);
    out += to;
  }
  out.append(text, begin);
  return out;
}

}  // namespace

bool Normalizer::has_prepend() const {
  return std::any_of(steps_.begin(), steps_.end(), [](const Step& s) { return s.kind == Kind::prepend; });
}

bool Normalizer::divisible(bool byte_level) const {
  return std::all_of(steps_.begin(), steps_.end(), [&](const Step& s) {
    return s.kind != Kind::replace || (!byte_level && s.from == " " && s.to == kMetaspace);
  });
}

bool Normalizer::removes(std::string_view text) const {
  return !steps_.empty() && steps_.back().kind == Kind::replace && steps_.back().from == text &&
         steps_.back().to.find(text) == std::string::npos;
}

std::string_view Normalizer::apply(std::string_view text, bool continues, std::string& buffer) const {
  std::string next;
  for (const Step& s : steps_) {
    if (text.empty()) break;
    if (s.kind == Kind::nfc) {
      if (surely_nfc(text)) continue;
      next.clear();
      append_nfc(next, text);
    } else if (s.kind == Kind::prepend) {
      if (continues) continue;
      next = s.from + std::string(text);
    } else {
      if (text.find(s.from) == std::string_view::npos) continue;
      next = replaced(text, s.from, s.to);
    }
    buffer.swap(next);  // text may lie in what `next` now holds: it is read no more
    text = buffer;
  }
  return text;
}

}  // namespace trireme
