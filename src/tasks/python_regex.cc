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

struct MatchData {
  explicit MatchData(const pcre2_code* code) : data(pcre2_match_data_create_from_pattern(code, nullptr)) {}
  ~MatchData() { pcre2_match_data_free(data); }
  MatchData(const MatchData&) = delete;
  pcre2_match_data* data;
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
  const MatchData match(code_->code);
  const PCRE2_SIZE* ends = pcre2_get_ovector_pointer(match.data);
  const uint32_t groups = pcre2_get_ovector_count(match.data);
  for (size_t at = 0; at <= text.size();) {
    const int found = pcre2_match(code_->code, reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(), at, 0,
                                  match.data, nullptr);
    if (found == PCRE2_ERROR_NOMATCH) break;
    if (found < 0)
      bad_request("{}: the regular expression takes too long on a text of {} bytes", code_->where,
                  text.size());
    std::vector<std::string>& one = all.emplace_back();
    for (uint32_t g = groups > 1 ? 1 : 0; g < groups; g++)
      one.push_back(ends[2 * g] == PCRE2_UNSET ? ""
                                               : text.substr(ends[2 * g], ends[2 * g + 1] - ends[2 * g]));
    at = ends[1] > ends[0] ? ends[1] : ends[1] + 1;
  }
  return all;
}

std::string PythonRegex::remove_all(const std::string& text) const {
  std::string kept;
  const MatchData match(code_->code);
  const PCRE2_SIZE* ends = pcre2_get_ovector_pointer(match.data);
  size_t from = 0;
  for (size_t at = 0; at <= text.size();) {
    const int found = pcre2_match(code_->code, reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(), at, 0,
                                  match.data, nullptr);
    if (found == PCRE2_ERROR_NOMATCH) break;
    if (found < 0)
      bad_request("{}: the regular expression takes too long on a text of {} bytes", code_->where,
                  text.size());
    kept.append(text, from, ends[0] - from);
    from = ends[1];
    at = ends[1] > ends[0] ? ends[1] : ends[1] + 1;
  }
  return kept.append(text, from);
}

}  // namespace trireme
