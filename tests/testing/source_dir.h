// Where this tree is, for the tests that read files of it. A function, so that no test's own code differs
// between two clones: a compiler cache then serves both.
#pragma once
#include <filesystem>

namespace trireme::test {

std::filesystem::path source_dir();

}  // namespace trireme::test
