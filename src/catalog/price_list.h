// Prices of devices by region: data/prices.toml, or a user's file of the same form.
#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "base/file.h"
#include "spec/field.h"

namespace trireme {

struct PriceRow {
  std::string device, region;
  double per_hour = 0;  // one device's
  std::string source, date;

  template <class V>
  void visit(V& v) {
    v("device", device, "", "a device by name, as of --cluster");
    v("region", region, "", "in any words");
    v("per_hour", per_hour, "money per hour", "of one device", between(0, 1e9));
    v("source", source, "", "where the price is from");
    v("date", date, "YYYY-MM-DD", "when it was read");
  }
};

struct PriceList {
  std::string currency;
  std::vector<PriceRow> rows;

  template <class V>
  void visit(V& v) {
    v("currency", currency, "", "of all prices");
    v.list("price", rows, "price of one device in one region");
  }
};

// Throws ErrorLines as load_run() does.
PriceList parse_prices(std::string_view toml, std::string_view file);
// A file, or data/prices.toml if it is empty.
PriceList load_prices(const fs::path& file);

struct ListedPrice {
  double per_hour = 0;  // 0 = not requested
  std::string currency;
  std::string text;  // "12.29 USD in us-east-1 (AWS p5.48xlarge, 98.32 per hour; 2023-07-27)"
};
// The device's price in the region. Upper and lower case are alike. Nothing if file and region are empty.
// Throws bad_request: no such row; the message names the regions that the device has a price in.
ListedPrice listed_price(const std::string& file, const std::string& region, std::string_view device);

// "136 USD"; without a known currency "136 in the price's currency".
std::string money_text(const std::string& amount, const std::string& currency);

}  // namespace trireme
