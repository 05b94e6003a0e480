#include "text/regex_split.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <fmt/format.h>
#include <pcre2.h>

#include <algorithm>
#include <array>
#include <map>
#include <utility>

#include "base/error.h"
#include "text/json_fields.h"
#include "text/regex_parse.h"
#include "text/unicode.h"

namespace trireme {
namespace {

std::string message_of(int code) {
  std::array<PCRE2_UCHAR, 256> text{};
  pcre2_get_error_message(code, text.data(), text.size());
  return reinterpret_cast<const char*>(text.data());
}

// Kinds of characters: for each code point its kind, and for each set the kinds that it consists of.
struct Kinds {
  std::vector<uint8_t> of_code;
  std::vector<std::vector<bool>> of_set;  // [set][kind]
};

// Returns false if there are more than 256 kinds.
bool divide_into_kinds(const std::vector<CharSet>& sets, Kinds& kinds) {
  std::vector<uint32_t> starts = {0};
  for (const CharSet& set : sets)
    for (CodeRange r : set.ranges()) {
      starts.push_back(r.first);
      starts.push_back(r.last + 1);
    }
  std::sort(starts.begin(), starts.end());
  starts.erase(std::unique(starts.begin(), starts.end()), starts.end());
  if (starts.back() == 0x110000) starts.pop_back();
  // Which sets have the code points from each start to the next.
  std::vector<std::vector<bool>> members(starts.size(), std::vector<bool>(sets.size()));
  for (size_t s = 0; s < sets.size(); s++)
    for (CodeRange r : sets[s].ranges())
      for (auto at = std::lower_bound(starts.begin(), starts.end(), r.first);
           at != starts.end() && *at <= r.last; ++at)
        members[size_t(at - starts.begin())][s] = true;
  std::map<std::vector<bool>, size_t> numbers;
  kinds.of_code.resize(0x110000);
  for (size_t i = 0; i < starts.size(); i++) {
    const size_t kind = numbers.try_emplace(members[i], numbers.size()).first->second;
    if (kind > 255) return false;
    const size_t end = i + 1 < starts.size() ? starts[i + 1] : 0x110000;
    std::fill(kinds.of_code.begin() + ptrdiff_t(starts[i]), kinds.of_code.begin() + ptrdiff_t(end),
              uint8_t(kind));
  }
  kinds.of_set.assign(sets.size(), std::vector<bool>(numbers.size()));
  for (const auto& [of_sets, kind] : numbers)
    for (size_t s = 0; s < sets.size(); s++) kinds.of_set[s][kind] = of_sets[s];
  return true;
}

// The pattern on kinds, as PCRE2 spells it.
class Writer {
 public:
  explicit Writer(const Kinds& kinds) : kinds_(kinds) {}
  std::string write(const RegexNode& root) {
    add(root);
    return std::move(out_);
  }

 private:
  using Kind = RegexNode::Kind;

  void add_children(const RegexNode& n, std::string_view open, std::string_view between) {
    out_ += open;
    for (size_t i = 0; i < n.children.size(); i++) {
      if (i > 0) out_ += between;
      add(n.children[i]);
    }
    out_ += ')';
  }
  void add_set(const std::vector<bool>& has) {
    std::string members;
    for (size_t k = 0; k < has.size(); k++)
      if (has[k]) members += fmt::format("\\x{:02X}", k);
    out_ += members.empty() ? "(?!)" : '[' + members + ']';
  }
  void add_repeat(const RegexNode& n) {
    add_children(n, "(?:", "");
    out_ += n.most < 0 ? fmt::format("{{{},}}", n.least) : fmt::format("{{{},{}}}", n.least, n.most);
    if (n.mode != RegexNode::Mode::greedy) out_ += n.mode == RegexNode::Mode::lazy ? '?' : '+';
  }
  void add(const RegexNode& n) {
    switch (n.kind) {
      case Kind::chars:
        return add_set(kinds_.of_set[n.set]);
      case Kind::sequence:
        return add_children(n, "(?:", "");
      case Kind::alternatives:
        return add_children(n, "(?:", "|");
      case Kind::repeat:
        return add_repeat(n);
      case Kind::atomic:
        return add_children(n, "(?>", "");
      case Kind::look:
        return add_children(n, n.behind ? n.negative ? "(?<!" : "(?<=" : n.negative ? "(?!" : "(?=", "");
      case Kind::text_begin:
        out_ += "\\A";
        return;
      case Kind::text_end:
        out_ += "\\z";
        return;
      case Kind::search_begin:
        out_ += "\\G";
    }
  }

  const Kinds& kinds_;
  std::string out_;
};

// What one thread needs to match; kept from call to call.
struct Scratch {
  pcre2_match_context* context = pcre2_match_context_create(nullptr);
  pcre2_jit_stack* stack = pcre2_jit_stack_create(size_t(32) << 10, size_t(8) << 20, nullptr);
  pcre2_match_data* data = pcre2_match_data_create(1, nullptr);
  std::string kinds;  // one per character
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
  std::vector<uint8_t> kind_of;  // by code point
  ~Compiled() { pcre2_code_free(code); }
};

RegexSplit::RegexSplit(std::string pattern, std::string_view what)
    : pattern_(std::move(pattern)), compiled_(std::make_unique<Compiled>()) {
  constexpr size_t kLongest = 4096;
  if (pattern_.empty() || pattern_.size() > kLongest || !is_utf8(pattern_))
    bad_request("{}: a pattern has 1 to {} bytes of UTF-8; this has {}", what, kLongest, pattern_.size());
  const ParsedRegex parsed = parse_regex(pattern_, what);
  Kinds kinds;
  if (!divide_into_kinds(parsed.sets, kinds))
    bad_request("{} = {}: it tells more than 256 kinds of characters apart, which is not supported", what,
                in_quotes(pattern_));
  const std::string of_kinds = Writer(kinds).write(parsed.root);
  compiled_->kind_of = std::move(kinds.of_code);
  int error = 0;
  PCRE2_SIZE at = 0;
  compiled_->code = pcre2_compile(PCRE2_SPTR(of_kinds.data()), of_kinds.size(), 0, &error, &at, nullptr);
  if (!compiled_->code) bad_request("{} = {}: {}", what, in_quotes(pattern_), message_of(error));
  pcre2_jit_compile(compiled_->code, PCRE2_JIT_COMPLETE);  // where there is no JIT, matching is interpreted
}

RegexSplit::~RegexSplit() = default;

void RegexSplit::pieces(std::string_view text, std::vector<size_t>& ends) const {
  thread_local Scratch scratch;
  ends.clear();
  std::string& kinds = scratch.kinds;
  kinds.clear();
  for (size_t at = 0; at < text.size();) {
    const CodePoint c = code_point_at(text, at);
    kinds += char(compiled_->kind_of[c.valid ? c.code : 0xFFFD]);
    at += c.bytes;
  }
  size_t chars = 0, bytes = 0;  // before the end of a piece
  auto end_piece = [&](size_t end) {
    for (; chars < end; chars++) bytes += code_point_at(text, bytes).bytes;
    ends.push_back(bytes);
  };
  // As the library searches: a match that is empty counts unless the last match ends there. Then the search
  // goes on after the next character.
  size_t piece = 0;                 // where the next piece begins
  size_t last_end = size_t(0) - 1;  // end of the last match
  for (size_t at = 0; at <= kinds.size();) {
    const int n = pcre2_match(compiled_->code, PCRE2_SPTR(kinds.data()), kinds.size(), at, 0, scratch.data,
                              scratch.context);
    if (n == PCRE2_ERROR_NOMATCH) break;
    if (n < 0)
      bad_request(
          "the tokenizer's split pattern gave up at character {} of a text of {} bytes ({}): the text "
          "repeats too "
          "much for it",
          at, text.size(), message_of(n));
    const PCRE2_SIZE* span = pcre2_get_ovector_pointer(scratch.data);
    const size_t begin = span[0], end = span[1];
    if (begin == end && end == last_end) {
      at++;
      continue;
    }
    if (begin > piece) end_piece(begin);
    if (end > begin) end_piece(end);
    piece = at = last_end = end;
  }
  if (piece < kinds.size()) end_piece(kinds.size());
}

}  // namespace trireme
