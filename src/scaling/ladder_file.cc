#include "scaling/ladder_file.h"

#include <fmt/format.h>

#include <set>

#include "base/error.h"
#include "base/printable.h"
#include "checkpoint/json.h"
#include "checkpoint/untrusted.h"

namespace trireme {
namespace {

using Ordered = nlohmann::ordered_json;

constexpr size_t kMostLadderBytes = size_t{16} << 20;

std::string file_of(const std::string& name) {
  return name + ".toml";
}

Ordered json_of(const LadderItem& i) {
  return {{"name", i.name},    {"after", i.after}, {"dir", i.run.train.dir},
          {"point", i.point},  {"size", i.size},   {"steps", i.run.train.steps},
          {"N", i.parameters}, {"D", i.tokens},    {"C", i.flops}};
}

// One entry with its place in the file for messages.
class EntryReader {
 public:
  EntryReader(const nlohmann::json& j, const std::string& file, size_t index)
      : j_(j), file_(file), index_(index) {}

  LadderEntry read() const {
    LadderEntry e;
    e.name = text("name");
    if (!is_plain_file_name(e.name)) refuse("name", j_["name"], "a plain file name");
    e.file = file_of(e.name);
    e.after = text("after");
    e.dir = text("dir");
    if (e.dir.empty()) refuse("dir", j_["dir"], "a folder");
    if (!j_.contains("point") || !j_["point"].is_boolean()) refuse("point", value("point"), "true or false");
    e.point = j_["point"].get<bool>();
    e.size = whole("size", 0);
    e.steps = whole("steps", 1);
    e.parameters = number("N");
    e.tokens = number("D");
    e.flops = number("C");
    return e;
  }
  [[noreturn]] void refuse(std::string_view key, const nlohmann::json& v, std::string_view right) const {
    bad_request("{}: entry {}: {} = {}: expected {}", printable(file_), index_ + 1, key, printable(v.dump()),
                right);
  }
  nlohmann::json value(const char* key) const { return j_.contains(key) ? j_[key] : nlohmann::json(); }

 private:
  std::string text(const char* key) const {
    if (!j_.contains(key) || !j_[key].is_string()) refuse(key, value(key), "a text");
    return j_[key].get<std::string>();
  }
  int64_t whole(const char* key, int64_t low) const {
    const nlohmann::json v = value(key);
    if (!v.is_number_integer() || v.get<int64_t>() < low || v.get<int64_t>() > int64_t{1} << 50)
      refuse(key, v, fmt::format("a whole number from {}", low));
    return v.get<int64_t>();
  }
  double number(const char* key) const {
    const nlohmann::json v = value(key);
    if (!v.is_number() || !(v.get<double>() >= 0 && v.get<double>() < 1e40))
      refuse(key, v, "a number from 0");
    return v.get<double>();
  }

  const nlohmann::json& j_;
  const std::string& file_;
  size_t index_;
};

}  // namespace

void write_ladder(const fs::path& folder, const LadderDesign& d, const std::vector<LadderItem>& items) {
  Ordered j = {{"flops", d.flops}, {"levels", d.levels}, {"log_det", d.log_det}};
  for (const LadderItem& i : items) j["items"].push_back(json_of(i));
  const std::string text = j.dump(1) + "\n";
  const fs::path file = folder / kLadderFile;
  if (fs::exists(file) && read_text(file) != text)
    bad_request("{}: the folder has another ladder; choose another --out, or remove that folder",
                folder.string());
  make_folders(folder);
  for (const LadderItem& i : items) write_text_atomic(folder / file_of(i.name), save_changed(i.run));
  write_text_atomic(file, text);
}

std::vector<LadderEntry> read_ladder(const fs::path& folder) {
  const std::string file = (folder / kLadderFile).string();
  const nlohmann::json j = parse_json(read_text(file), file, kMostLadderBytes);
  if (!j.is_object() || !j.contains("items") || !j["items"].is_array())
    bad_request("{}: no list of items; expected a file of `trireme scale plan`", printable(file));
  std::vector<LadderEntry> entries;
  std::set<std::string> names;
  for (size_t i = 0; i < j["items"].size(); i++) {
    const EntryReader reader(j["items"][i], file, i);
    if (!j["items"][i].is_object()) reader.refuse("item", j["items"][i], "an object");
    entries.push_back(reader.read());
    const LadderEntry& e = entries.back();
    if (!e.after.empty() && !names.count(e.after))
      reader.refuse("after", e.after, "the name of an entry before it");
    if (!names.insert(e.name).second) reader.refuse("name", e.name, "a name that no other entry has");
  }
  return entries;
}

}  // namespace trireme
