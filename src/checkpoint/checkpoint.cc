#include "checkpoint/checkpoint.h"

#include <utility>

#include "base/error.h"
#include "checkpoint/convert.h"
#include "checkpoint/json.h"
#include "checkpoint/untrusted.h"

namespace trireme {
namespace {

using nlohmann::json;

json numbers(const Shape& s) {
  return json(std::vector<int64_t>(s.dim.begin(), s.dim.begin() + s.rank));
}

// The list of at most kMaxDims numbers from 0 on under `key`.
Shape numbers_at(const json& object, const char* key, std::string_view where) {
  auto it = object.find(key);
  bool ok = it != object.end() && it->is_array() && it->size() <= size_t(kMaxDims);
  Shape out;
  for (size_t i = 0; ok && i < it->size(); i++) {
    const json& n = (*it)[i];
    ok = n.is_number_unsigned() && n.get<uint64_t>() <= uint64_t(INT64_MAX);
    if (ok) out.dim[i] = n.get<int64_t>();
  }
  if (!ok) bad_request("{}: '{}' must be a list of at most {} whole numbers from 0 on", where, key, kMaxDims);
  out.rank = int(it->size());
  return out;
}

// Shape::numel() on a shape that nobody checked.
bool product_fits(const Shape& s) {
  int64_t n = 1;
  for (int i = 0; i < s.rank; i++)
    if (__builtin_mul_overflow(n, s[i], &n)) return false;
  return true;
}

void check_file(const fs::path& path, const FileDigest& promised, Verify verify) {
  std::error_code ec;
  auto bytes = fs::file_size(path, ec);
  if (ec) system_failed(ec.value(), "{}: {}; {} lists it", path.string(), ec.message(), kManifestName);
  if (int64_t(bytes) != promised.bytes)
    bad_request("{}: {} bytes long, but {} says {}", path.string(), bytes, kManifestName, promised.bytes);
  if (verify == Verify::sizes) return;
  FileDigest found = digest_file(path);
  if (found != promised)
    bad_request("{}: its bytes hash to {}, but {} says {}; the file is damaged", path.string(),
                hex64(found.xxh3), kManifestName, hex64(promised.xxh3));
}

}  // namespace

std::string part_to_json(const std::string& name, const Shape& global, const Part& p) {
  return json{{"name", name},
              {"global", numbers(global)},
              {"offset", numbers(p.box.offset)},
              {"extent", numbers(p.box.extent)},
              {"range", {p.range.begin, p.range.end}}}
      .dump();
}

StoredPart part_from_json(std::string_view text, std::string_view where) {
  json object = parse_json(text, where, size_t(1) << 16);
  StoredPart out;
  if (!object.is_object() || !object.contains("name") || !object["name"].is_string())
    bad_request("{}: the metadata must be an object with a 'name'", where);
  out.name = object["name"].get<std::string>();
  out.global = numbers_at(object, "global", where);
  out.part.box = {numbers_at(object, "offset", where), numbers_at(object, "extent", where)};
  Shape range = numbers_at(object, "range", where);
  if (range.rank != 2) bad_request("{}: 'range' must be [begin, end]", where);
  out.part.range = {range[0], range[1]};
  if (!product_fits(out.global))
    bad_request("{}: a global shape of {} has too many elements", where, to_string(out.global));
  if (std::string why = why_not_part(out.part, out.global); !why.empty()) bad_request("{}: {}", where, why);
  return out;
}

Checkpoint Checkpoint::open(const fs::path& folder, Verify verify) {
  Checkpoint c;
  c.folder_ = folder;
  fs::path manifest = folder / kManifestName;
  c.manifest_ = parse_manifest(read_text(manifest), manifest.string());
  for (const CheckpointFile& f : c.manifest_.files) {
    check_file(folder / f.name, f.digest, verify);
    c.files_.emplace_back(folder / f.name);
  }
  for (size_t i = 0; i < c.files_.size(); i++) c.add_pieces_of(i);
  return c;
}

void Checkpoint::verify_part(int part, int parts) const {
  for (size_t i = size_t(part); i < manifest_.files.size(); i += size_t(parts))
    check_file(folder_ / manifest_.files[i].name, manifest_.files[i].digest, Verify::hashes);
}

void Checkpoint::add_pieces_of(size_t file) {
  const SafetensorsFile& f = files_[file];
  for (const SafetensorsEntry& e : f.header().entries) {
    std::string where = fmt::format("{}: tensor '{}'", f.path().string(), printable(e.name));
    if (!e.dtype) bad_request("{}: has the type {}, which no checkpoint holds", where, e.stored_type);
    auto meta = f.header().metadata.find(e.name);
    StoredPart p = meta == f.header().metadata.end() ? StoredPart{e.name, e.shape, whole(e.shape)}
                                                     : part_from_json(meta->second, where);
    if (p.part.range.size() != e.shape.numel())
      bad_request("{}: the range [{}, {}) has {} elements, but {} are stored", where, p.part.range.begin,
                  p.part.range.end, p.part.range.size(), e.shape.numel());
    Stored stored{p.global, *e.dtype};
    auto [it, fresh] = tensors_.try_emplace(p.name, Pieces{stored, {}});
    if (!fresh && it->second.stored != stored)
      bad_request("{}: a part of '{}' of shape {} in {}, but other parts say {} in {}", where,
                  printable(p.name), to_string(stored.global), name_of(stored.dtype),
                  to_string(it->second.stored.global), name_of(it->second.stored.dtype));
    it->second.pieces.push_back({file, &e, p.part});
  }
}

const Checkpoint::Pieces& Checkpoint::pieces_of(std::string_view name) const {
  auto it = tensors_.find(name);
  if (it == tensors_.end()) bad_request("{}: holds no tensor '{}'", folder_.string(), printable(name));
  return it->second;
}

const Checkpoint::Stored* Checkpoint::find(std::string_view name) const {
  auto it = tensors_.find(name);
  return it == tensors_.end() ? nullptr : &it->second.stored;
}

std::vector<std::string> Checkpoint::names() const {
  std::vector<std::string> out;
  for (const auto& [name, pieces] : tensors_) out.push_back(name);
  return out;
}

void Checkpoint::read(std::string_view name, const Slice& box, const Range& range, const Tensor& dst) const {
  const Pieces& t = pieces_of(name);
  const Part wanted{box, range};
  if (std::string why = why_not_part(wanted, t.stored.global); !why.empty())
    bad_request("{}: tensor '{}': {}", folder_.string(), printable(name), why);
  require(dst.contiguous() && dst.numel() == range.size(),
          "a checkpoint is read into range.size() elements in a row");
  const int64_t from_size = size_of(t.stored.dtype), to_size = size_of(dst.dtype);
  Cover cover;
  for (const Piece& p : t.pieces) {
    const std::byte* src = files_[p.file].bytes(*p.entry).data();
    const std::string what = fmt::format("{}: tensor '{}'", files_[p.file].path().string(), printable(name));
    for_each_run(wanted, p.part, [&](const Overlap& r) {
      convert_elements(what, dst.dtype, dst.data + (r.to - range.begin) * to_size, t.stored.dtype,
                       src + (r.from - p.part.range.begin) * from_size, r.n);
      cover.add({r.to, r.to + r.n});
    });
  }
  if (Range missing = cover.first_missing(range); missing.size() > 0)
    bad_request("{}: tensor '{}': elements [{}, {}) of the box at {} of extent {} are in none of its files",
                folder_.string(), printable(name), missing.begin, missing.end, to_string(box.offset),
                to_string(box.extent));
}

void Checkpoint::read(const NamedTensor& wanted) const {
  const Pieces& t = pieces_of(wanted.name);
  if (t.stored.global != wanted.global)
    bad_request("{}: tensor '{}' has shape {}, but the model's is {}", folder_.string(),
                printable(wanted.name), to_string(t.stored.global), to_string(wanted.global));
  read(wanted.name, wanted.box, wanted.range, wanted.host_data);
}

}  // namespace trireme
