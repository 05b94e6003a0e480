#include "tensor/dtype.h"

#include <array>
#include <utility>

#include "base/error.h"

namespace trireme {
namespace {
constexpr std::array<std::pair<std::string_view, int>, 8> kTypes = {
    {{"f64", 8}, {"f32", 4}, {"bf16", 2}, {"f16", 2}, {"i32", 4}, {"i64", 8}, {"u16", 2}, {"u8", 1}}};
}

int64_t size_of(DType t) {
  return kTypes[size_t(t)].second;
}
std::string_view name_of(DType t) {
  return kTypes[size_t(t)].first;
}
DType dtype_from_name(std::string_view name) {
  for (size_t i = 0; i < kTypes.size(); i++)
    if (kTypes[i].first == name) return DType(i);
  bad_request("unknown element type '{}'; known are f64, f32, bf16, f16, i32, i64, u16, u8", name);
}

}  // namespace trireme
