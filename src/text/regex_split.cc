#include "text/regex_split.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <array>
#include <utility>

#include "base/error.h"
#include "text/unicode.h"

namespace trireme {
namespace {

std::string message_of(int code) {
  std::array<PCRE2_UCHAR, 256> text{};
  pcre2_get_error_message(code, text.data(), text.size());
  return reinterpret_cast<const char*>(text.data());
}

// Oniguruma reads [a[bc]] as a class in a class and && as an intersection, PCRE2 as characters.
const char* means_another_thing(std::string_view pattern) {
  bool inside = false;
  for (size_t i = 0; i < pattern.size(); i++) {
    char c = pattern[i];
    if (c == '\\') {
      i++;
    } else if (!inside && c == '[') {
      inside = true;
      if (i + 1 < pattern.size() && pattern[i + 1] == '^') i++;
      if (i + 1 < pattern.size() && pattern[i + 1] == ']') i++;  // a ] that comes first is a character
    } else if (inside && c == ']') {
      inside = false;
    } else if (inside && c == '[') {
      return "a class inside a class";
    } else if (inside && c == '&' && pattern.substr(i).starts_with("&&")) {
      return "an intersection of classes";
    }
  }
  return nullptr;
}

// What one thread needs to match; kept from call to call.
struct Scratch {
  pcre2_match_context* context = pcre2_match_context_create(nullptr);
  pcre2_jit_stack* stack = pcre2_jit_stack_create(size_t(32) << 10, size_t(8) << 20, nullptr);
  pcre2_match_data* data = pcre2_match_data_create(1, nullptr);
  Scratch() {
    pcre2_set_match_limit(context, RegexSplit::kMatchLimit);
    pcre2_set_heap_limit(context, 256 << 10);  // KiB
    pcre2_jit_stack_assign(context, nullptr, stack);
  }
  ~Scratch() {
    pcre2_match_data_free(data);
    pcre2_jit_stack_free(stack);
    pcre2_match_context_free(context);
  }
  Scratch(const Scratch&) = delete;
};

}  // namespace

struct RegexSplit::Compiled {
  pcre2_code* code = nullptr;
  ~Compiled() { pcre2_code_free(code); }
};

RegexSplit::RegexSplit(std::string pattern, std::string_view what)
    : pattern_(std::move(pattern)), compiled_(std::make_unique<Compiled>()) {
  constexpr size_t kLongest = 4096;
  if (pattern_.empty() || pattern_.size() > kLongest || !is_utf8(pattern_))
    bad_request("{}: a pattern has 1 to {} bytes of UTF-8; this has {}", what, kLongest, pattern_.size());
  if (const char* why = means_another_thing(pattern_)) bad_request("{}: {} is not supported", what, why);
  int error = 0;
  PCRE2_SIZE at = 0;
  // As in Oniguruma's Ruby syntax, ^ and $ are those of lines.
  compiled_->code =
      pcre2_compile(PCRE2_SPTR(pattern_.data()), pattern_.size(),
                    PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE | PCRE2_NEVER_BACKSLASH_C, &error, &at, nullptr);
  if (!compiled_->code)
    bad_request("{}: the pattern is wrong at byte {}: {}", what, size_t(at), message_of(error));
  pcre2_jit_compile(compiled_->code, PCRE2_JIT_COMPLETE);  // where there is no JIT, matching is interpreted
}

RegexSplit::~RegexSplit() = default;

void RegexSplit::match_all(std::string_view text, std::vector<size_t>& ends) const {
  thread_local Scratch scratch;
  size_t begin = 0;
  for (size_t at = 0; at < text.size();) {
    int n = pcre2_match(compiled_->code, PCRE2_SPTR(text.data()), text.size(), at, PCRE2_NO_UTF_CHECK,
                        scratch.data, scratch.context);
    if (n == PCRE2_ERROR_NOMATCH) break;
    if (n < 0)
      bad_request(
          "the tokenizer's split pattern gave up at byte {} of a text of {} bytes ({}): the text repeats too "
          "much for it",
          at, text.size(), message_of(n));
    const PCRE2_SIZE* span = pcre2_get_ovector_pointer(scratch.data);
    if (span[1] <= span[0]) {  // nothing, or a \K: go on behind the next character
      at = std::max(at, size_t(span[0]));
      if (at < text.size()) at += code_point_at(text, at).bytes;
      continue;
    }
    if (span[0] > begin) ends.push_back(span[0]);
    ends.push_back(span[1]);
    begin = at = span[1];
  }
  if (begin < text.size()) ends.push_back(text.size());
}

void RegexSplit::pieces(std::string_view text, std::vector<size_t>& ends) const {
  ends.clear();
  if (is_utf8(text)) return match_all(text, ends);
  std::string replaced;
  std::vector<size_t> place;  // in text, of each byte of `replaced`
  for (size_t at = 0; at < text.size();) {
    CodePoint c = code_point_at(text, at);
    size_t before = replaced.size();
    if (c.valid)
      replaced.append(text, at, c.bytes);
    else
      append_utf8(replaced, 0xFFFD);
    for (size_t k = 0; before + k < replaced.size(); k++) place.push_back(c.valid ? at + k : at);
    at += c.bytes;
  }
  place.push_back(text.size());
  match_all(replaced, ends);
  for (size_t& end : ends) end = place[end];
}

}  // namespace trireme
