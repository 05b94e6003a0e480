#include "checkpoint/safetensors_writer.h"

#include <algorithm>
#include <cstring>

#include "base/error.h"
#include "base/json.h"

namespace trireme {
namespace {

std::string quoted(const std::string& s) {
  return nlohmann::json(s).dump();
}

int64_t bytes_of(const SafetensorsItem& i) {
  return i.shape.numel() * size_of(i.dtype);
}

}  // namespace

std::vector<SafetensorsItem> file_order(std::vector<SafetensorsItem> items) {
  std::sort(items.begin(), items.end(), [](const SafetensorsItem& a, const SafetensorsItem& b) {
    int ra = safetensors_rank_of(a.dtype), rb = safetensors_rank_of(b.dtype);
    return ra != rb ? ra > rb : a.name < b.name;
  });
  return items;
}

std::string safetensors_header(std::span<const SafetensorsItem> items, const Metadata& metadata) {
  std::string json = "{";
  if (!metadata.empty()) {
    json += "\"__metadata__\":{";
    for (const auto& [key, value] : metadata) json += quoted(key) + ':' + quoted(value) + ',';
    json.back() = '}';
    json += ',';
  }
  std::vector<std::string_view> names;
  int64_t at = 0;
  for (const SafetensorsItem& i : items) {
    std::string dims;
    for (int d = 0; d < i.shape.rank; d++) dims += (d ? "," : "") + std::to_string(i.shape[d]);
    json += fmt::format("{}:{{\"dtype\":\"{}\",\"shape\":[{}],\"data_offsets\":[{},{}]}},", quoted(i.name),
                        safetensors_name_of(i.dtype), dims, at, at + bytes_of(i));
    at += bytes_of(i);
    names.push_back(i.name);
  }
  if (json.size() > 1) json.pop_back();
  json += '}';
  std::sort(names.begin(), names.end());
  require(std::adjacent_find(names.begin(), names.end()) == names.end(),
          "a tensor name occurs twice in a file");
  json.resize((json.size() + 7) / 8 * 8, ' ');
  require(int64_t(json.size()) <= kMaxHeaderBytes, "a safetensors header longer than readers accept");
  uint64_t n = json.size();
  std::string out(8, '\0');
  std::memcpy(out.data(), &n, 8);
  return out + json;
}

SafetensorsWriter::SafetensorsWriter(const fs::path& path, std::vector<SafetensorsItem> items,
                                     const Metadata& metadata)
    : items_(file_order(std::move(items))), file_(path) {
  std::string header = safetensors_header(items_, metadata);
  expected_ = int64_t(header.size());
  for (const SafetensorsItem& i : items_) expected_ += bytes_of(i);
  write(header.data(), header.size());
}

void SafetensorsWriter::write(const void* data, size_t bytes) {
  require(int64_t(bytes) <= expected_ - written_, "more data than the header of the file promises");
  file_.write(data, bytes);
  hasher_.add(data, bytes);
  written_ += int64_t(bytes);
}

FileDigest SafetensorsWriter::commit() {
  require(written_ == expected_, "less data than the header of the file promises");
  file_.commit();
  return {written_, hasher_.value()};
}

}  // namespace trireme
