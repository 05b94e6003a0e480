#pragma once
#include <string>
#include <string_view>

namespace trireme {

// "1 rank", "12 ranks"; many: where an s is not enough ("classes").
template <class Number>
std::string counted(Number n, std::string_view one, std::string_view many = {}) {
  std::string s = std::to_string(n) + " ";
  if (n == 1) return s.append(one);
  return many.empty() ? s.append(one) + "s" : s.append(many);
}

}  // namespace trireme
