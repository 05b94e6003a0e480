// Chosen steps, as a key says them: "3-5", "7", "1,100-102"; "" = none.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace trireme {

class StepSet {
 public:
  StepSet() = default;
  // What is wrong with the text, "" if nothing; then `out` holds it.
  static std::string parse(std::string_view text, StepSet& out);

  bool contains(int64_t step) const;
  bool empty() const { return ranges_.empty(); }
  int64_t first() const;  // of a set that is not empty

 private:
  std::vector<std::pair<int64_t, int64_t>> ranges_;  // both ends are in
};

}  // namespace trireme
