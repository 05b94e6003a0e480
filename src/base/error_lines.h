// Several faults reported by one Error, such as all problems of a run file: one line each.
#pragma once
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/visible.h"

namespace trireme {

// what() holds the lines, joined by line ends. Each line is escaped, so that a name in it adds no line. In
// any other Error a line end belongs to a name or a value; the place that prints the error escapes it.
struct ErrorLines : Error {
  explicit ErrorLines(std::vector<std::string> all, Fault fault = Fault::request)
      : Error(joined(all), fault), lines(std::move(all)) {}
  std::vector<std::string> lines;

 private:
  static std::string joined(std::vector<std::string>& lines) {
    std::string text;
    for (std::string& line : lines) {
      line = visible(line);
      text += (text.empty() ? "" : "\n") + line;
    }
    return text;
  }
};

}  // namespace trireme
