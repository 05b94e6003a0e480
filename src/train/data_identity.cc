#include "train/data_identity.h"

#include <fmt/format.h>

#include <charconv>

#include "base/counted.h"
#include "base/error.h"

namespace trireme {
namespace {

nlohmann::json to_json(const FileDigest& d) {
  return {{"bytes", d.bytes}, {"xxh3", hex64(d.xxh3)}};
}
nlohmann::json to_json(const ShardContent& c) {
  nlohmann::json j = {{"bin", to_json(c.bin)}};
  if (c.idx) j["idx"] = to_json(*c.idx);
  if (c.mask) j["mask"] = to_json(*c.mask);
  return j;
}

[[noreturn]] void broken(const std::string& file) {
  bad_request("{}: state.data is not a record of shards; the file was edited, or another version wrote it",
              file);
}

FileDigest digest_from(const nlohmann::json& j, const std::string& file) {
  if (!j.is_object() || !j.contains("bytes") || !j["bytes"].is_number_unsigned() || !j.contains("xxh3") ||
      !j["xxh3"].is_string())
    broken(file);
  const std::string hex = j["xxh3"];
  FileDigest d{.bytes = j["bytes"].get<int64_t>()};
  if (std::from_chars(hex.data(), hex.data() + hex.size(), d.xxh3, 16).ptr != hex.data() + hex.size())
    broken(file);
  return d;
}

ShardContent shard_from(const nlohmann::json& j, const std::string& file) {
  if (!j.is_object() || !j.contains("bin")) broken(file);
  ShardContent c{.bin = digest_from(j["bin"], file)};
  if (j.contains("idx")) c.idx = digest_from(j["idx"], file);
  if (j.contains("mask")) c.mask = digest_from(j["mask"], file);
  return c;
}

[[noreturn]] void refuse(const std::string& key, const std::string& name, const ShardContent& then,
                         const ShardContent& now, const std::string& checkpoint) {
  const ShardFiles files = shard_files(name);
  bad_request(
      "{} = \"{}\": other content than {} was trained with ({}): restore the file; for a new run choose "
      "another "
      "train.dir (train.branch keeps weights and moments)",
      key, name, checkpoint,
      content_difference(then, now, files.bin.string(), files.idx ? files.idx->string() : ""));
}

}  // namespace

nlohmann::json to_json(const DataContent& content, const RunSpec& run) {
  nlohmann::json train = nlohmann::json::array();
  nlohmann::json valid = nlohmann::json::array();
  for (const ShardContent& c : content.train) train.push_back(to_json(c));
  for (const std::string& name : run.data.valid) {
    auto it = content.valid.find(name);
    valid.push_back(it == content.valid.end() ? nlohmann::json() : to_json(it->second));
  }
  return {{"train", train}, {"valid", valid}};
}

DataContent data_content_of(const nlohmann::json& j, const RunSpec& run, const std::string& file) {
  if (!j.is_object() || !j.contains("train") || !j["train"].is_array() || !j.contains("valid") ||
      !j["valid"].is_array() || j["train"].size() != run.data.train.size() ||
      j["valid"].size() != run.data.valid.size())
    broken(file);
  DataContent out;
  for (const nlohmann::json& shard : j["train"]) out.train.push_back(shard_from(shard, file));
  for (size_t i = 0; i < run.data.valid.size(); i++)
    if (!j["valid"][i].is_null()) out.valid[run.data.valid.list[i]] = shard_from(j["valid"][i], file);
  return out;
}

std::vector<std::string> compare_data(const RunSpec& saved, const DataContent& then, const RunSpec& run,
                                      const DataContent& now, const std::string& checkpoint) {
  if (then.train.size() != now.train.size())
    bad_request(
        "data.train: {} was trained with {}, and there are {}: give the same shards, or another train.dir",
        checkpoint, counted(then.train.size(), "shard"), now.train.size());
  for (size_t i = 0; i < now.train.size(); i++)
    if (then.train[i] != now.train[i])
      refuse("data.train", run.data.train.list[i], then.train[i], now.train[i], checkpoint);
  std::vector<std::string> notes;
  for (size_t i = 0; i < run.data.valid.size(); i++) {
    const std::string& name = run.data.valid.list[i];
    auto is = now.valid.find(name);
    auto was = then.valid.find(name);
    if (is == now.valid.end()) continue;
    if (was != then.valid.end()) {
      if (is->second != was->second) refuse("data.valid", name, was->second, is->second, checkpoint);
      continue;
    }
    auto before = i < saved.data.valid.size() ? then.valid.find(saved.data.valid.list[i]) : then.valid.end();
    if (before != then.valid.end() && before->second != is->second)
      notes.push_back(
          fmt::format("data.valid = \"{}\": other held-out data than before ({}): losses from now on "
                      "cannot be compared with those before",
                      name, before->first));
  }
  return notes;
}

}  // namespace trireme
