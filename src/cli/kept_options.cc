#include "cli/kept_options.h"

#include "base/error.h"
#include "checkpoint/hash.h"

namespace trireme::cli {

void refuse_other_options(const std::string& folder, const fs::path& file,
                          const nlohmann::ordered_json& now) {
  const nlohmann::json before = shallow_json(read_text(file));
  if (!before.is_object())
    bad_request("{} is damaged: it is not a JSON object; give another --out", file.string());
  for (const auto& [key, value] : now.items()) {
    const auto it = before.find(key);
    const nlohmann::json wanted = value;
    if (wanted.is_null() || (it != before.end() && *it == wanted)) continue;
    bad_request("{}: this folder has results with {} = {}, not {}: give another --out", folder, key,
                it == before.end() ? "nothing" : it->dump(), wanted.dump());
  }
}

std::string digest_of(const fs::path& file) {
  return hex64(digest_file(file).xxh3);
}

}  // namespace trireme::cli
