#include "tasks/python_regex.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include "base/error.h"

namespace trireme {

struct PythonRegex::Code {
  std::string where;
  pcre2_code* code = nullptr;
  ~Code() { pcre2_code_free(code); }
};

namespace {

// The matches of an expression in a text, from left to right, as re.finditer gives them.
class Matches {
 public:
  Matches(const pcre2_code* code, const std::string& text, const std::string& where)
      : code_(code), text_(text), where_(where), data_(pcre2_match_data_create_from_pattern(code, nullptr)) {}
  ~Matches() { pcre2_match_data_free(data_); }
  Matches(const Matches&) = delete;

  bool next() {
    if (at_ > text_.size()) return false;
    const int found =
        pcre2_match(code_, reinterpret_cast<PCRE2_SPTR>(text_.data()), text_.size(), at_, 0, data_, nullptr);
    if (found == PCRE2_ERROR_NOMATCH) return false;
    if (found < 0)
      bad_request("{}: the regular expression takes too long on a text of {} bytes", where_, text_.size());
    at_ = end() > begin() ? end() : end() + 1;
    return true;
  }
  size_t begin() const { return ends()[0]; }
  size_t end() const { return ends()[1]; }
  uint32_t groups() const { return pcre2_get_ovector_count(data_); }  // the whole match is group 0
  std::string group(uint32_t g) const {
    const size_t from = ends()[2 * g];
    return from == PCRE2_UNSET ? "" : text_.substr(from, ends()[2 * g + 1] - from);
  }

 private:
  const PCRE2_SIZE* ends() const { return pcre2_get_ovector_pointer(data_); }
  const pcre2_code* code_;
  const std::string& text_;
  const std::string& where_;
  pcre2_match_data* data_;
  size_t at_ = 0;
};

}  // namespace

PythonRegex::PythonRegex(const std::string& pattern, const std::string& where)
    : code_(std::make_unique<Code>()) {
  int error = 0;
  PCRE2_SIZE at = 0;
  code_->where = where;
  code_->code = pcre2_compile(reinterpret_cast<PCRE2_SPTR>(pattern.data()), pattern.size(),
                              PCRE2_UTF | PCRE2_UCP | PCRE2_MATCH_INVALID_UTF, &error, &at, nullptr);
  if (code_->code != nullptr) return;
  PCRE2_UCHAR why[200];
  pcre2_get_error_message(error, why, sizeof why);
  bad_request("{}: regular expression {:?}, byte {}: {}", where, pattern, at,
              reinterpret_cast<const char*>(why));
}

PythonRegex::~PythonRegex() = default;
PythonRegex::PythonRegex(PythonRegex&&) noexcept = default;

std::vector<std::vector<std::string>> PythonRegex::find_all(const std::string& text) const {
  std::vector<std::vector<std::string>> all;
  for (Matches m(code_->code, text, code_->where); m.next();) {
    std::vector<std::string>& one = all.emplace_back();
    for (uint32_t g = m.groups() > 1 ? 1 : 0; g < m.groups(); g++) one.push_back(m.group(g));
  }
  return all;
}

std::string PythonRegex::remove_all(const std::string& text) const {
  std::string kept;
  size_t from = 0;
  for (Matches m(code_->code, text, code_->where); m.next(); from = m.end())
    kept.append(text, from, m.begin() - from);
  return kept.append(text, from);
}

}  // namespace trireme
