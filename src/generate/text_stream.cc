#include "generate/text_stream.h"

#include <algorithm>

#include "base/error.h"

namespace trireme {
namespace {

// Bytes of a UTF-8 character at the end of text that is not whole yet: 0 to 3.
size_t open_character(std::string_view text) {
  for (size_t n = 1; n <= std::min<size_t>(3, text.size()); n++) {
    auto byte = uint8_t(text[text.size() - n]);
    if ((byte & 0xC0) == 0x80) continue;  // a continuation: its first byte lies further back
    size_t whole = byte >= 0xF0 && byte <= 0xF4  ? 4
                   : byte >= 0xE0 && byte < 0xF0 ? 3
                   : byte >= 0xC2 && byte < 0xE0 ? 2
                                                 : 1;
    return whole > n ? n : 0;
  }
  return 0;
}

}  // namespace

TextStream::TextStream(std::vector<std::string> stops) : stops_(std::move(stops)) {
  for (const std::string& s : stops_)
    if (s.empty()) bad_request("a stop string is empty: it would end every text before it begins");
}

// Byte by byte from `from` on: does a stop string end here?
bool TextStream::find_stop(size_t from) {
  for (size_t end = from + 1; end <= text_.size(); end++) {
    size_t longest = 0;
    for (const std::string& s : stops_)
      if (std::string_view(text_).substr(0, end).ends_with(s)) longest = std::max(longest, s.size());
    if (longest == 0) continue;
    text_.resize(end - longest);
    return true;
  }
  return false;
}

// Up to the longest end of the text that begins a stop string, and up to an open character.
size_t TextStream::may_show() const {
  std::string_view text = text_;
  size_t end = text.size();
  for (const std::string& s : stops_)
    for (size_t n = std::min(s.size() - 1, text.size() - shown_); n > 0; n--)
      if (text.ends_with(std::string_view(s).substr(0, n))) {
        end = std::min(end, text.size() - n);
        break;
      }
  return std::max(shown_, end - open_character(text.substr(shown_, end - shown_)));
}

std::string_view TextStream::show(size_t end) {
  std::string_view part = std::string_view(text_).substr(shown_, end - shown_);
  shown_ = end;
  return part;
}

std::string_view TextStream::push(std::string_view bytes) {
  if (stopped_) return {};
  size_t before = text_.size();
  text_ += bytes;
  stopped_ = find_stop(before);
  return show(stopped_ ? text_.size() : may_show());
}

std::string_view TextStream::finish() {
  return show(text_.size());
}

}  // namespace trireme
