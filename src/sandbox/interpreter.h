// The Python interpreter of a sandbox, and the files that it needs.
#pragma once
#include <string>
#include <vector>

namespace trireme {

struct Interpreter {
  std::string executable;            // no symbolic link
  std::string version;               // such as "3.11.2"
  std::vector<std::string> visible;  // folders and files, absolute, sorted; none is within another
};

// Asks `python` (a name in PATH, or a path) for its library folders. It runs outside of any sandbox.
// Throws Error if it cannot be started or does not answer.
Interpreter find_interpreter(const std::string& python = "python3");

}  // namespace trireme
