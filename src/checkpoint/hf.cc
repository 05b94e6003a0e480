#include "checkpoint/hf.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstring>

#include "base/error.h"
#include "base/rounding.h"
#include "checkpoint/convert.h"
#include "checkpoint/json.h"
#include "checkpoint/part_folder.h"
#include "checkpoint/untrusted.h"

namespace trireme {
namespace {

constexpr std::string_view kSingle = "model.safetensors", kIndex = "model.safetensors.index.json";
constexpr size_t kMaxIndexBytes = size_t(64) << 20;
constexpr std::string_view kFp8 = "F8_E4M3", kE8m0 = "F8_E8M0", kScales = "_scale_inv";
constexpr std::array kWeightTypes = {DType::f32, DType::bf16, DType::f16};

bool is_weight_type(const SafetensorsEntry& e) {
  return e.dtype && std::find(kWeightTypes.begin(), kWeightTypes.end(), *e.dtype) != kWeightTypes.end();
}
// "F32, BF16 or F16".
std::string weight_types() {
  return fmt::format("{}, {} or {}", safetensors_name_of(kWeightTypes[0]),
                     safetensors_name_of(kWeightTypes[1]), safetensors_name_of(kWeightTypes[2]));
}

// Could a parameter be stored with this type? If not, the tensor is not one that the configuration left out.
bool may_be_weight(const SafetensorsEntry& e) {
  return is_weight_type(e) || e.stored_type == kFp8 || e.dtype == DType::f64;
}

// "a, b, c and 4 more".
std::string some_of(const std::vector<std::string>& names) {
  size_t n = std::min<size_t>(names.size(), 3);
  std::string more = names.size() > n ? fmt::format(" and {} more", names.size() - n) : "";
  return fmt::format("{}{}", fmt::join(names.begin(), names.begin() + int64_t(n), ", "), more);
}

// File name by tensor name.
std::map<std::string, std::string> read_index(const fs::path& path) {
  std::string file = path.string();
  MappedFile map(path);
  std::string_view text(reinterpret_cast<const char*>(map.bytes().data()), map.bytes().size());
  nlohmann::json json = parse_json(text, file, kMaxIndexBytes);
  if (!json.is_object() || !json.contains("weight_map") || !json["weight_map"].is_object())
    bad_request("{}: has no 'weight_map' object of file names by tensor name", file);
  std::map<std::string, std::string> out;
  for (const auto& [tensor, value] : json["weight_map"].items()) {
    if (!value.is_string())
      bad_request("{}: tensor '{}' is in {}; right is a file name", file, printable(tensor),
                  printable(value.dump()));
    auto name = value.get<std::string>();
    if (!is_plain_file_name(name) || !name.ends_with(".safetensors"))
      bad_request("{}: tensor '{}' is in '{}'; right is a *.safetensors file in the same folder", file,
                  printable(tensor), printable(name));
    out.emplace(tensor, name);
  }
  return out;
}

// The index must list what the shards store, and nothing else. Exceptions, as in transformers: tensors for
// which may_be_absent() is true may be listed without being stored, or stored without being listed.
void check_index(const std::map<std::string, std::string>& index, const std::vector<SafetensorsFile>& files,
                 const std::function<bool(std::string_view)>& may_be_absent) {
  std::map<std::string, const SafetensorsFile*> by_name;
  for (const SafetensorsFile& f : files) {
    std::string shard = f.path().filename().string();
    by_name[shard] = &f;
    for (const SafetensorsEntry& e : f.header().entries) {
      auto it = index.find(e.name);
      if (it == index.end() && may_be_absent(e.name)) continue;
      if (it == index.end() || it->second != shard)
        bad_request("{}: holds tensor '{}', which {} does not list there", f.path().string(),
                    printable(e.name), kIndex);
    }
  }
  for (const auto& [tensor, shard] : index)
    if (!by_name.at(shard)->find(tensor) && !may_be_absent(tensor))
      bad_request("{}: holds no tensor '{}', though {} lists it there", by_name.at(shard)->path().string(),
                  printable(tensor), kIndex);
}

}  // namespace

// Everything in the files, by Hugging Face name without the prefix.
struct HfFolder::Tensors {
  struct One {
    const SafetensorsFile* file;
    const SafetensorsEntry* entry;
    std::string where() const {
      return fmt::format("{}: tensor '{}'", file->path().string(), printable(entry->name));
    }
  };
  std::map<std::string, One> by_name;
};

HfFolder::HfFolder(const fs::path& folder, const ModelSpec& model) : folder_(folder) {
  if (is_there(folder_ / "config.json")) storage_ = hf_storage(folder_ / "config.json");
  Tensors tensors;
  open_files(model, tensors);
  add_tied_alias(model, tensors);
  match(model, std::move(tensors));
}

// One name suffices for a tied table, and buffers follow from the configuration.
bool HfFolder::may_be_absent(const ModelSpec& model, std::string_view name) const {
  const std::string_view prefix = hf_prefix(model);
  std::string_view bare = name;
  if (bare.starts_with(prefix)) bare.remove_prefix(prefix.size());
  if (hf_is_buffer(model, bare) || is_further_layer(model, bare)) return true;
  return model.tied && (name == kHfHead || bare == hf_embedding(model));
}

// safetensors stores shared memory once, under a name of its choice: a tied table may be stored as the head.
void HfFolder::add_tied_alias(const ModelSpec& model, Tensors& tensors) const {
  auto head = tensors.by_name.find(std::string(kHfHead));
  if (!model.tied || head == tensors.by_name.end()) return;
  const std::string bare(hf_embedding(model)), full = std::string(hf_prefix(model)) + bare;
  if (tensors.by_name.contains(bare) || tensors.by_name.contains(full)) return;
  auto other = tensors.by_name.lower_bound(std::string(hf_prefix(model)));
  const bool prefixed = other != tensors.by_name.end() && other->first.starts_with(hf_prefix(model));
  const Tensors::One one = head->second;
  tensors.by_name.erase(head);
  tensors.by_name.emplace(prefixed ? full : bare, one);
}

void HfFolder::open_files(const ModelSpec& model, Tensors& tensors) {
  if (is_there(folder_ / kSingle)) {
    files_.emplace_back(folder_ / kSingle);
  } else if (is_there(folder_ / kIndex)) {
    auto index = read_index(folder_ / kIndex);
    std::set<std::string> shards;
    for (const auto& [tensor, shard] : index) shards.insert(shard);
    for (const std::string& shard : shards) files_.emplace_back(folder_ / shard);
    check_index(index, files_, [&](std::string_view name) { return may_be_absent(model, name); });
  } else {
    bad_request("{}: holds neither {} nor {}; weights in other formats are not read", folder_.string(),
                kSingle, kIndex);
  }
  for (const SafetensorsFile& f : files_)
    for (const SafetensorsEntry& e : f.header().entries)
      tensors.by_name.emplace(e.name, Tensors::One{&f, &e});
}

// What belongs to a matrix of 8-bit floats.
Fp8Matrix HfFolder::fp8_of(const Tensors& tensors, const std::string& name, const HfPlace& place,
                           std::set<std::string>& used) const {
  const Tensors::One& codes = tensors.by_name.at(name);
  if (storage_.block_rows == 0)
    bad_request("{} is {}, and config.json has no quantization_config that says how; expected {}",
                codes.where(), kFp8, weight_types());
  if (place.their_shape.rank != 2 || place.transposed)
    bad_request("{} is {}, which only matrices [out, in] may be", codes.where(), kFp8);
  auto it = tensors.by_name.find(name + std::string(kScales));
  if (it == tensors.by_name.end())
    bad_request("{} is {}, but there is no tensor '{}{}' with its scales", codes.where(), kFp8,
                printable(name), kScales);
  const SafetensorsEntry& scales = *it->second.entry;
  const Shape blocks = {div_up(place.their_shape[0], storage_.block_rows),
                        div_up(place.their_shape[1], storage_.block_cols)};
  if (scales.shape != blocks)
    bad_request("{} has shape {}; blocks of {} x {} of {} make it {}", it->second.where(),
                to_string(scales.shape), storage_.block_rows, storage_.block_cols,
                to_string(place.their_shape), to_string(blocks));
  const bool e8m0 = scales.stored_type == kE8m0;
  if (!e8m0 && !is_weight_type(scales))
    bad_request("{} is {}; expected {}, or {}", it->second.where(), scales.stored_type, weight_types(),
                kE8m0);
  used.insert(it->first);
  return {.codes = codes.file->bytes(*codes.entry).data(),
          .scales = it->second.file->bytes(scales).data(),
          .scale_type = scales.dtype.value_or(DType::u8),
          .scales_are_e8m0 = e8m0,
          .in = place.their_shape[1],
          .rows = storage_.block_rows,
          .cols = storage_.block_cols};
}

// "layers.61.eh_proj.weight" of a model of 61 layers: DeepSeek-V3's, which predict further tokens.
bool HfFolder::is_further_layer(const ModelSpec& model, std::string_view bare) const {
  constexpr std::string_view kLayers = "layers.";
  if (storage_.further_layers == 0 || !bare.starts_with(kLayers)) return false;
  bare.remove_prefix(kLayers.size());
  int64_t layer = -1;
  const auto [end, error] = std::from_chars(bare.data(), bare.data() + bare.size(), layer);
  return error == std::errc() && end < bare.data() + bare.size() && *end == '.' && layer >= model.layers &&
         layer < model.layers + storage_.further_layers;
}

void HfFolder::match(const ModelSpec& model, Tensors tensors) {
  const std::string prefix(hf_prefix(model));
  auto first = tensors.by_name.lower_bound(prefix);
  const bool prefixed = first != tensors.by_name.end() && first->first.starts_with(prefix);
  auto full_name = [&](const std::string& theirs) {
    return prefixed && theirs != kHfHead ? prefix + theirs : theirs;
  };

  std::vector<std::string> missing;
  std::set<std::string> used;
  for (HfPlace& place : hf_places(model)) {
    std::string name = full_name(place.theirs);
    auto it = tensors.by_name.find(name);
    if (it == tensors.by_name.end()) {
      if (used.insert(name).second) missing.push_back(name);  // once, though q, k and v share it
      continue;
    }
    const auto& [file, entry] = it->second;
    if (entry->shape != place.their_shape)
      bad_request("{} has shape {}, but the model's configuration makes it {}", it->second.where(),
                  to_string(entry->shape), to_string(place.their_shape));
    const bool fp8 = entry->stored_type == kFp8;
    if (!fp8 && !is_weight_type(*entry))
      bad_request("{} is {}; expected {}", it->second.where(), entry->stored_type, weight_types());
    used.insert(name);
    std::string ours = place.ours;
    const Fp8Matrix codes = fp8 ? fp8_of(tensors, name, place, used) : Fp8Matrix{};
    sources_.emplace(std::move(ours), Source{std::move(place), entry, file->bytes(*entry).data(), codes});
  }
  if (!missing.empty())
    bad_request("{}: lacks {} of the tensors that a {} of this configuration has: {}", folder_.string(),
                missing.size(), model.arch, some_of(missing));
  dtype_ = sources_.at("embed.tokens.weight").entry->dtype.value_or(DType::bf16);

  std::vector<std::string> unexpected;
  for (const auto& [name, one] : tensors.by_name) {
    if (used.contains(name)) continue;
    std::string_view bare = name;
    if (prefixed && bare.starts_with(prefix)) bare.remove_prefix(prefix.size());
    if (model.tied && name == kHfHead)
      check_tied_head(tensors);
    else if (hf_is_buffer(model, bare) || is_further_layer(model, bare) || !may_be_weight(*one.entry))
      ignored_.push_back(name);
    else
      unexpected.push_back(printable(name));
  }
  if (!unexpected.empty())
    bad_request("{}: holds {} tensors that no {} of this configuration has: {}", folder_.string(),
                unexpected.size(), model.arch, some_of(unexpected));
}

void HfFolder::check_tied_head(const Tensors& tensors) const {
  const Tensors::One& head = tensors.by_name.at(std::string(kHfHead));
  const SafetensorsEntry& embed = *sources_.at("embed.tokens.weight").entry;
  auto bytes = head.file->bytes(*head.entry);
  if (head.entry->dtype != embed.dtype || head.entry->shape != embed.shape ||
      std::memcmp(bytes.data(), sources_.at("embed.tokens.weight").data, bytes.size()) != 0)
    bad_request(
        "{} differs from '{}', though the configuration ties them; tie_word_embeddings = false reads both",
        head.where(), printable(embed.name));
}

void HfFolder::read(std::string_view name, const Slice& box, const Range& range, const Tensor& dst) const {
  auto it = sources_.find(name);
  if (it == sources_.end()) bad_request("{}: the model has no parameter '{}'", folder_.string(), name);
  const HfPlace& place = it->second.place;
  const std::byte* data = it->second.data;
  const Part wanted{box, range};
  if (std::string why = why_not_part(wanted, place.shape); !why.empty())
    bad_request("{}: parameter '{}': {}", folder_.string(), name, why);
  require(dst.contiguous() && dst.numel() == range.size(),
          "a parameter is read into range.size() elements in a row");
  const int64_t dst_item = size_of(dst.dtype), in = place.shape.rank == 2 ? place.shape[1] : 1;
  const std::string what = fmt::format("{}: parameter '{}'", folder_.string(), name);

  if (it->second.fp8.codes) {
    std::array<float, 4096> some;
    for_each_run(wanted, whole(place.shape), [&](const Overlap& r) {
      for (int64_t i = 0; i < r.n; i += int64_t(some.size())) {
        const auto part = std::span(some).first(size_t(std::min(r.n - i, int64_t(some.size()))));
        dequantise(what, it->second.fp8, place.begin * in + r.from + i, part);
        convert_elements(what, dst.dtype, dst.data + (r.to + i - range.begin) * dst_item, DType::f32,
                         part.data(), int64_t(part.size()));
      }
    });
    return;
  }
  const DType stored = *it->second.entry->dtype;
  const int64_t item = size_of(stored);

  if (!place.transposed) {
    const std::byte* src = data + place.begin * in * item;
    for_each_run(wanted, whole(place.shape), [&](const Overlap& r) {
      convert_elements(what, dst.dtype, dst.data + (r.to - range.begin) * dst_item, stored,
                       src + r.from * item, r.n);
    });
    return;
  }
  // Rows of ours are columns of theirs: a band of them is turned at a time.
  constexpr int64_t kBand = 64;
  const int64_t out_total = place.their_shape[1];
  std::vector<std::byte> band(size_t(kBand * in * item));
  for_each_run(wanted, whole(place.shape), [&](const Overlap& r) {
    for (int64_t row = r.from / in; row * in < r.from + r.n; row += kBand) {
      const int64_t rows = std::min(kBand, place.shape[0] - row);
      transpose_elements(item, band.data(), in, data + (place.begin + row) * item, out_total, in, rows);
      const int64_t begin = std::max(r.from, row * in), end = std::min(r.from + r.n, (row + rows) * in);
      convert_elements(what, dst.dtype, dst.data + (r.to + begin - r.from - range.begin) * dst_item, stored,
                       band.data() + (begin - row * in) * item, end - begin);
    }
  });
}

FileDigest HfFolder::sampled_digest() const {
  constexpr int64_t kSample = 4096, kSamples = 64;
  FileDigest out;
  Hasher hash;
  const auto add_text = [&](const std::string& text) { hash.add(text.c_str(), text.size() + 1); };
  for (const auto& [name, source] : sources_) {
    const int64_t bytes = source.entry->end - source.entry->begin;
    add_text(name), add_text(source.entry->stored_type), add_text(to_string(source.entry->shape));
    const int64_t samples = std::min(kSamples, div_up(bytes, kSample));
    for (int64_t i = 0; i < samples; i++) {
      const int64_t begin = samples < kSamples ? i * kSample : (bytes - kSample) / (kSamples - 1) * i;
      hash.add(source.data + begin, size_t(std::min(kSample, bytes - begin)));
    }
    out.bytes += bytes;
  }
  out.xxh3 = hash.value();
  return out;
}

DType HfFolder::dtype(std::string_view name) const {
  auto it = sources_.find(name);
  if (it == sources_.end()) bad_request("{}: the model has no parameter '{}'", folder_.string(), name);
  return it->second.entry->dtype.value_or(dtype_);
}

void HfFolder::read(std::string_view name, const Tensor& dst) const {
  auto it = sources_.find(name);
  if (it == sources_.end()) bad_request("{}: the model has no parameter '{}'", folder_.string(), name);
  const Shape& shape = it->second.place.shape;
  require(dst.numel() == shape.numel(), "the whole parameter was asked for");
  read(name, whole(shape).box, whole(shape).range, dst);
}

}  // namespace trireme
