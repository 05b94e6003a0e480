#include "checkpoint/json.h"

#include "base/error.h"

namespace trireme {

nlohmann::json parse_json(std::string_view text, std::string_view file, size_t max_bytes) {
  if (text.size() > max_bytes)
    bad_request("{}: {} bytes long; right is at most {}", file, text.size(), max_bytes);
  auto shallow = [file](int depth, nlohmann::json::parse_event_t, nlohmann::json&) {
    if (depth > 32) bad_request("{}: JSON nested deeper than 32 levels", file);
    return true;
  };
  try {
    return nlohmann::json::parse(text, shallow);
  } catch (const nlohmann::json::parse_error& e) {
    bad_request("{}: not JSON from its byte {} on; the file is damaged, or another kind of file", file,
                e.byte);
  } catch (const nlohmann::json::out_of_range&) {
    bad_request("{}: holds a number beyond the range of doubles", file);
  }
}

}  // namespace trireme
