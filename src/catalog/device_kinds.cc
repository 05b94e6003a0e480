#include "catalog/device_kinds.h"

#include <algorithm>

#include "base/error.h"

namespace trireme {
std::shared_ptr<const DeviceKinds> DeviceKinds::of(const ClusterSpec& c, int64_t devices, PricedBy by,
                                                   std::string_view asked) {
  if (c.kinds.size() < 2) return nullptr;
  constexpr int64_t kMostKinds = 16;
  auto all = std::make_shared<DeviceKinds>();
  all->cluster_ = c;
  all->count_ = int64_t(c.kinds.size());
  if (all->count_ > kMostKinds)
    bad_request("{}: {} kinds of devices; at most {} are priced", asked, all->count_, kMostKinds);
  for (int64_t first = 0; first < all->count_; first++)
    for (int64_t last = first; last < all->count_; last++) {
      ClusterSpec some = with_kinds(c, size_t(first), size_t(last));
      const auto slowest =
          std::min_element(some.kinds.begin(), some.kinds.end(),
                           [](const KindSpec& a, const KindSpec& b) { return a.peak.bf16 < b.peak.bf16; });
      some.name = slowest->name;
      some.kinds.clear();
      SubjectDevice d = device_of(some, "bf16", devices);
      complete_figures(d, devices, asked);
      by.device = d.name;
      all->kinds_[first * all->count_ + last] = {.name = first == last ? c.kinds[size_t(first)].name : d.name,
                                                 .figures = d.figures,
                                                 .fits = ordered_constants(constants_of(by)),
                                                 .host = d.host,
                                                 .disk = d.disk};
    }
  return all;
}

const NumberList* DeviceKinds::of_ranks(const LayoutSpec& l) const {
  const NumberList*& known = known_[{l.pp, l.dp, l.cp, l.tp, l.order}];
  if (!known) known = interned(kinds_of_ranks(cluster_, l));
  return known;
}

std::shared_ptr<const DeviceKinds> DeviceKinds::changed(
    const std::function<void(DeviceFigures&, FitValues&)>& change) const {
  auto other = std::make_shared<DeviceKinds>(*this);
  for (auto& [number, kind] : other->kinds_) change(kind.figures, kind.fits);
  return other;
}

}  // namespace trireme
