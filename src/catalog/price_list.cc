#include "catalog/price_list.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>

#include "base/error.h"
#include "catalog/data_texts.h"
#include "spec/reader.h"
#include "spec/toml.h"

namespace trireme {
namespace {

bool alike(std::string_view a, std::string_view b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                    [](unsigned char x, unsigned char y) { return std::tolower(x) == std::tolower(y); });
}

}  // namespace

PriceList parse_prices(std::string_view toml, std::string_view file) {
  Reader reader(parse_toml(toml, file), std::string(file));
  PriceList list;
  reader.read(list);
  for (size_t i = 0; i < list.rows.size(); i++)
    if (list.rows[i].device.empty() || list.rows[i].per_hour <= 0)
      reader.problem(fmt::format("price[{}].per_hour", i + 1), "expected a device and a price above 0");
  reader.report_unknown();
  reader.raise();
  if (list.rows.empty())
    bad_request("--prices {}: no [[price]] in it; expected the form of data/prices.toml", file);
  return list;
}

PriceList load_prices(const fs::path& file) {
  return file.empty() ? parse_prices(kPrices, "data/prices.toml")
                      : parse_prices(read_small(file, kMostTomlBytes), file.string());
}

ListedPrice listed_price(const std::string& file, const std::string& region, std::string_view device) {
  if (file.empty() && region.empty()) return {};
  const PriceList list = load_prices(file);
  std::string regions;
  const PriceRow* found = nullptr;
  size_t of_device = 0;
  for (const PriceRow& row : list.rows) {
    if (!alike(row.device, device)) continue;
    of_device++;
    regions += fmt::format("{}{}", regions.empty() ? "" : ", ", row.region);
    if (region.empty() || alike(row.region, region)) found = &row;
  }
  const std::string name = file.empty() ? "data/prices.toml" : file;
  if (of_device == 0) bad_request("--prices: {} has no price of {}; add a [[price]]", name, device);
  if (region.empty() && of_device > 1)
    bad_request("--prices: {} has prices of {} in {}; give --region", name, device, regions);
  if (!found)
    bad_request("--region {}: {} has no price of {} there; it has {}", region, name, device, regions);
  return {found->per_hour, list.currency,
          fmt::format("{} {} in {} ({}; {})", found->per_hour, list.currency, found->region, found->source,
                      found->date)};
}

std::string money_text(const std::string& amount, const std::string& currency) {
  return amount + (currency.empty() ? " in the price's currency" : " " + currency);
}

}  // namespace trireme
