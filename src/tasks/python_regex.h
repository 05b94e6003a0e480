// Regular expressions as Python's re module applies them to texts, by PCRE2.
#pragma once
#include <memory>
#include <string>
#include <vector>

namespace trireme {

class PythonRegex {
 public:
  // bad_request begins with `where` if the pattern is not valid.
  PythonRegex(const std::string& pattern, const std::string& where);
  ~PythonRegex();
  PythonRegex(PythonRegex&&) noexcept;

  // re.findall: for each match the whole of it if the pattern has no group, else its groups.
  std::vector<std::vector<std::string>> find_all(const std::string& text) const;
  std::string remove_all(const std::string& text) const;  // re.sub(pattern, "", text)

 private:
  struct Code;
  std::unique_ptr<Code> code_;
};

}  // namespace trireme
