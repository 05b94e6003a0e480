// Problems of a run as lines of a message: which key a line names, with which value, and which values would
// do.
#pragma once
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "spec/run_spec.h"

namespace trireme {

// A Problem's text (run_spec.h) continues "KEY: VALUE" of keys.front(), as "does not divide ..." or ": ...",
// so that the printed value always belongs to the printed key.
std::string text_of(const RunSpec&, const Problem&);  // "KEY: VALUE fault; what is right"

// load_run() that also reports unsupported_of() (spec/supported.h), and the nearest layout that works.
RunSpec load_runnable(const fs::path&, std::span<const std::string> sets = {});

// One line of a message, after "FILE:LINE: KEY: ".
struct Complaint {
  std::string key;
  std::string text;  // value, fault, what is right
};

struct ComplaintSource {
  const RunSpec& asked;  // before finish(): sizes that follow from others are 0
  const RunSpec& run;    // after
  std::function<std::vector<Problem>(const RunSpec& finished)> check;
  // The user's text of a key's value; none: the key was not given.
  std::function<std::optional<std::string>(const std::string& key)> given;
  std::function<bool(const std::string& key)> given_by_set = nullptr;  // by --set; null: none was
};

// One line per key. A problem is reported at the first of its keys that --set gave, else at the first that
// was given, else at the front key. The remedy of a line: values of its key, nearest first, with which no
// problem of the line is left and no other appears, found by trying them. If none of the tried values does,
// the line ends with the problem's own remedy.
std::vector<Complaint> complaints_of(const ComplaintSource&, const std::vector<Problem>&);

}  // namespace trireme
