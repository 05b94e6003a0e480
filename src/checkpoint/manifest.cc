#include "checkpoint/manifest.h"

#include <fmt/format.h>

#include <charconv>
#include <set>

#include "base/error.h"
#include "checkpoint/json.h"
#include "checkpoint/untrusted.h"

namespace trireme {
namespace {

using nlohmann::json;

constexpr size_t kMaxManifestBytes = size_t(256) << 20;
constexpr std::string_view kBefore = "{\"xxh3\": \"", kAfter = "\",\n";
constexpr size_t kPrefix = kBefore.size() + 16 + kAfter.size();

// Values by key, with one clear line for each that is absent or of another kind.
struct Fields {
  const json& object;
  std::string_view file;

  const json& at(const char* key) const {
    auto it = object.find(key);
    if (it == object.end()) bad_request("{}: has no key '{}'", file, key);
    return *it;
  }
  int64_t count(const char* key) const {
    const json& v = at(key);
    if (!v.is_number_unsigned() || v.get<uint64_t>() > uint64_t(INT64_MAX))
      bad_request("{}: '{}' is {}; right is a whole number from 0 on", file, key, printable(v.dump()));
    return v.get<int64_t>();
  }
  std::string text(const char* key) const {
    const json& v = at(key);
    if (!v.is_string()) bad_request("{}: '{}' is {}; right is a text", file, key, printable(v.dump()));
    return v.get<std::string>();
  }
  uint64_t hex(const char* key) const {
    std::string s = text(key);
    uint64_t value = 0;
    auto [end, error] = std::from_chars(s.data(), s.data() + s.size(), value, 16);
    if (s.size() != 16 || error != std::errc() || end != s.data() + s.size())
      bad_request("{}: '{}' is '{}'; right are 16 hex digits", file, key, printable(s));
    return value;
  }
};

std::vector<CheckpointFile> parse_files(const json& list, std::string_view file) {
  if (!list.is_array() || list.empty()) bad_request("{}: 'files' must be a list of one file or more", file);
  std::vector<CheckpointFile> out;
  std::set<std::string> seen;
  for (const json& item : list) {
    if (!item.is_object()) bad_request("{}: 'files' has {}; right are objects", file, printable(item.dump()));
    Fields f{item, file};
    CheckpointFile c{f.text("name"), {f.count("bytes"), f.hex("xxh3")}};
    if (!is_plain_file_name(c.name) || c.name == kManifestName)
      bad_request("{}: 'files' names '{}'; right is a file name inside the folder", file, printable(c.name));
    if (!seen.insert(c.name).second) bad_request("{}: 'files' names '{}' twice", file, printable(c.name));
    out.push_back(std::move(c));
  }
  return out;
}

}  // namespace

std::string to_text(const Manifest& m) {
  json files = json::array();
  for (const CheckpointFile& f : m.files)
    files.push_back({{"name", f.name}, {"bytes", f.digest.bytes}, {"xxh3", hex64(f.digest.xxh3)}});
  json body = {{"format", kCheckpointFormat}, {"step", m.step},         {"tokens", m.tokens},
               {"samples", m.samples},        {"seed", m.seed},         {"spec_hash", hex64(m.spec_hash)},
               {"run_toml", m.run_toml},      {"saved_at", m.saved_at}, {"state", m.state},
               {"files", std::move(files)}};
  std::string rest;
  try {
    rest = body.dump(1).substr(2) + '\n';  // without "{\n": the checksum's line takes its place
  } catch (const json::exception&) {
    bad_request("the run's spec or state holds text that is not UTF-8; it cannot be saved in a manifest");
  }
  return fmt::format("{}{}{}{}", kBefore, hex64(hash64(rest.data(), rest.size())), kAfter, rest);
}

Manifest parse_manifest(std::string_view text, std::string_view file) {
  if (text.size() < kPrefix || !text.starts_with(kBefore) ||
      text.substr(kPrefix - kAfter.size(), kAfter.size()) != kAfter)
    bad_request("{}: not a trireme manifest; it begins with {{\"xxh3\": \"...\",", file);
  std::string_view rest = text.substr(kPrefix);
  if (hex64(hash64(rest.data(), rest.size())) != text.substr(kBefore.size(), 16))
    bad_request("{}: does not match its own checksum; the file is damaged or was edited", file);
  json body = parse_json(text, file, kMaxManifestBytes);
  Fields f{body, file};
  if (int64_t format = f.count("format"); format != kCheckpointFormat)
    bad_request("{}: checkpoint format {}; this build reads {}", file, format, kCheckpointFormat);
  Manifest m;
  m.step = f.count("step"), m.tokens = f.count("tokens"), m.samples = f.count("samples");
  const json& seed = f.at("seed");
  if (!seed.is_number_unsigned())
    bad_request("{}: 'seed' is {}; right is a whole number", file, printable(seed.dump()));
  m.seed = seed.get<uint64_t>();
  m.spec_hash = f.hex("spec_hash");
  m.run_toml = f.text("run_toml"), m.saved_at = f.text("saved_at");
  m.state = f.at("state");
  m.files = parse_files(f.at("files"), file);
  return m;
}

}  // namespace trireme
