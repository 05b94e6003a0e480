#include "data/shard_content.h"

#include <algorithm>

#include "base/error.h"

namespace trireme {
namespace {

constexpr int64_t kSlab = int64_t(32) << 20;  // bytes that are checked, then digested while in a cache
constexpr int64_t kPages = 64;
constexpr int64_t kPage = 4096;

FileDigest digest_of(const MappedFile& file) {
  return {int64_t(file.bytes().size()), hash64(file.bytes().data(), file.bytes().size())};
}

std::optional<FileDigest> digest_if(const MappedFile* file) {
  if (!file) return {};
  return digest_of(*file);
}

void refuse_other_than_recorded(const TokenShard& shard, const ShardContent& content) {
  const std::optional<ContentRecord> record = shard.index() ? shard.index()->content() : std::nullopt;
  if (!record) return;
  const std::string bin = shard.name();
  const std::string idx = shard.idx()->path().string();
  const char* fault = "differs from the content that tokenize recorded in";
  const char* remedy = "the file was damaged or replaced since; restore it, or run trireme tokenize again";
  if (record->bin != content.bin.xxh3) bad_request("{}: {} {}: {}", bin, fault, idx, remedy);
  if (record->idx != hash64(shard.idx()->bytes().data(), size_t(record->bytes)))
    bad_request("{}: {} it: {}", idx, fault, remedy);
  if (shard.mask() && content.mask->xxh3 != *shard.index()->mask())
    bad_request("{}: {} {}: {}", shard.mask()->path().string(), fault, idx, remedy);
}

std::string file_difference(const FileDigest& before, const FileDigest& now, const std::string& name) {
  if (before == now) return "";
  if (before.bytes != now.bytes)
    return fmt::format("{}: {} bytes -> {} bytes", name, before.bytes, now.bytes);
  return fmt::format("{}: the same size, other content (xxh3 {} -> {})", name, hex64(before.xxh3),
                     hex64(now.xxh3));
}

}  // namespace

ShardContent content_of(const TokenShard& shard) {
  return {digest_of(shard.bin()), digest_if(shard.idx()), digest_if(shard.mask())};
}

namespace {
ShardContent check_ids_and_digest(const TokenShard& shard, int64_t vocab) {
  const std::span<const std::byte> bytes = shard.bin().bytes();
  const int64_t size = int64_t(bytes.size());
  const int64_t slabs = size / kSlab + 1;
  Hasher hasher;
  for (int64_t i = 0; i < slabs; i++) {
    auto part = [&](int64_t n, int64_t k) { return n / slabs * k + std::min(n % slabs, k); };
    shard.check_ids(vocab, part(shard.tokens(), i), part(shard.tokens(), i + 1));
    hasher.add(bytes.data() + part(size, i), size_t(part(size, i + 1) - part(size, i)));
  }
  return {{size, hasher.value()}, digest_if(shard.idx()), digest_if(shard.mask())};
}
}  // namespace

ShardContent check_content(const TokenShard& shard, int64_t vocab) {
  try {
    const ShardContent content = check_ids_and_digest(shard, vocab);
    refuse_other_than_recorded(shard, content);
    return content;
  } catch (const Error&) {  // an id outside the vocabulary may be damage, which is the better reason
    refuse_other_than_recorded(shard, content_of(shard));
    throw;
  }
}

uint64_t sample_of(const TokenShard& shard) {
  Hasher hasher;
  const std::span<const std::byte> bin = shard.bin().bytes();
  const std::span<const std::byte> idx = shard.idx() ? shard.idx()->bytes() : std::span<const std::byte>();
  const int64_t size = int64_t(bin.size());
  const int64_t sizes[] = {size, int64_t(idx.size())};
  hasher.add(sizes, sizeof sizes);
  hasher.add(idx.data(), std::min(idx.size(), size_t(1) << 20));
  if (shard.mask()) {
    const FileDigest mask = digest_of(*shard.mask());
    hasher.add(&mask.xxh3, sizeof mask.xxh3);
  }
  if (size <= kPages * kPage) {
    hasher.add(bin.data(), bin.size());
  } else {
    for (int64_t i = 0; i < kPages; i++)
      hasher.add(bin.data() + (size - kPage) * i / (kPages - 1), size_t(kPage));
  }
  return hasher.value();
}

std::string content_difference(const ShardContent& before, const ShardContent& now, const std::string& bin,
                               const std::string& idx) {
  if (before.idx.has_value() != now.idx.has_value())
    return fmt::format("{}: {} an index -> {} an index", bin, before.idx ? "with" : "without",
                       now.idx ? "with" : "without");
  if (before.mask.has_value() != now.mask.has_value())
    return fmt::format("{}: {} a loss mask -> {} a loss mask", bin, before.mask ? "with" : "without",
                       now.mask ? "with" : "without");
  std::string text = file_difference(before.bin, now.bin, bin);
  if (before.mask && text.empty())
    text = file_difference(*before.mask, *now.mask, fs::path(bin).replace_extension(".mask").string());
  if (!before.idx) return text;
  const std::string of_index = file_difference(*before.idx, *now.idx, idx);
  return text.empty() || of_index.empty() ? text + of_index : text + "; " + of_index;
}

namespace {
std::string difference_now(const ShardContent& before, const TokenShard& shard) {
  return content_difference(before, content_of(shard), shard.name(),
                            shard.idx() ? shard.idx()->path().string() : "");
}
}  // namespace

ShardStamps stamps_of(const fs::path& name) {
  const ShardFiles files = shard_files(name);
  ShardStamps out{.bin = stamp_of(files.bin), .idx = {}};
  if (files.idx) out.idx = stamp_of(*files.idx);
  out.mask = stamp_of(fs::path(files.bin).replace_extension(".mask"));
  return out;
}

WatchedShard::WatchedShard(std::string key, ShardStamps stamps, ShardContent content)
    : key_(std::move(key)), content_(std::move(content)), stamps_(stamps) {}

void WatchedShard::check_mapped(const TokenShard& shard) {
  bool changed = false;
  auto look = [&](const MappedFile& file, std::optional<FileStamp>& known) {
    const std::optional<FileStamp> now = stamp_of(file.path());
    if (!now || !known || *now == *known) return;
    if (now->device != known->device || now->inode != known->inode) return;
    if (now->bytes < known->bytes)
      run_failed("{} = \"{}\": {} became shorter while the run reads it: {} bytes -> {} bytes; restore it",
                 key_, shard.name(), file.path().string(), known->bytes, now->bytes);
    known = now;
    changed = true;
  };
  look(shard.bin(), stamps_.bin);
  if (shard.idx()) look(*shard.idx(), stamps_.idx);
  if (shard.mask()) look(*shard.mask(), stamps_.mask);
  if (!changed) return;
  if (const std::string what = difference_now(content_, shard); !what.empty())
    run_failed("{} = \"{}\": {} changed while the run reads it; restore it", key_, shard.name(), what);
}

void WatchedShard::check_named(const fs::path& name) {
  const ShardStamps now = stamps_of(name);
  if (now == stamps_) return;
  if (const std::string what = difference_now(content_, TokenShard::open(name)); !what.empty())
    run_failed("{} = \"{}\": {} changed during the run; restore it", key_, name.string(), what);
  stamps_ = now;
}

}  // namespace trireme
