// Quantities as answers print them: three significant digits, units of 1000. GiB stands only next to the
// capacity of a device, which vendors quote so.
#pragma once
#include <string>
#include <string_view>

namespace trireme {

// "54.7", "1,970": grouped thousands.
std::string three_digits(double);
// A whole number: "1,966".
std::string grouped(double);
// "1.12 TB", "989 TFLOP/s".
std::string decimal(double value, std::string_view unit);
// "24.5 GB".
std::string bytes_text(double bytes);
// "85.9 GB (80 GiB)".
std::string capacity_text(double bytes);
// "85.0 us", "173 ms", "54.7 s"; from 1,000 s on as human_seconds().
std::string seconds_text(double seconds);
// "  memory      24.5 GB\n": one line of an answer.
std::string answer_line(std::string_view name, std::string_view text);

}  // namespace trireme
