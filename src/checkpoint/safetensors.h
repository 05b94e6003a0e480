// safetensors files: 8 bytes little-endian header length N, N bytes of JSON, then the tensors' bytes.
//
// The JSON maps each name to {"dtype", "shape", "data_offsets": [begin, end)} (bytes from the end of the
// header);
// "__metadata__" maps strings to strings. Tensors cover the data without overlaps or holes. The reader takes
// nothing on trust: every lie is one Error (request) that names the file, the tensor, the value and what
// would be right, and memory stays within a small factor of the file's own size.
#pragma once
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/file.h"
#include "mesh/shape.h"
#include "tensor/dtype.h"

namespace trireme {

// As the reference library: longer headers are refused before they are read.
inline constexpr int64_t kMaxHeaderBytes = 100'000'000;

struct SafetensorsEntry {
  std::string name;
  std::string stored_type;     // as the file says: "F32"
  std::optional<DType> dtype;  // none where trireme has no such type ("BOOL"): its bytes can only be skipped
  Shape shape;                 // at most 4 dims
  int64_t begin = 0, end = 0;  // bytes in the data
  bool operator==(const SafetensorsEntry&) const = default;
};

using Metadata = std::map<std::string, std::string>;

struct SafetensorsHeader {
  std::vector<SafetensorsEntry> entries;  // in the order of the data
  Metadata metadata;
  int64_t data_begin = 0;  // bytes from the start of the file
};

// `file` names the source in messages. Pure: reads only the span.
SafetensorsHeader parse_safetensors(std::span<const std::byte>, std::string_view file);

// The file's name of a type ("BF16"), and where the reference library sorts it: files list tensors by falling
// rank, then by name, so that each is aligned to its own type.
std::string_view safetensors_name_of(DType);
int safetensors_rank_of(DType);

// A mapped file, checked as a whole when opened. Move-only.
class SafetensorsFile {
 public:
  explicit SafetensorsFile(const fs::path&);
  const fs::path& path() const { return map_.path(); }
  const SafetensorsHeader& header() const { return header_; }
  const SafetensorsEntry* find(std::string_view name) const;  // null when absent
  // Not necessarily aligned: read with memcpy.
  std::span<const std::byte> bytes(const SafetensorsEntry& e) const {
    return map_.bytes().subspan(size_t(header_.data_begin + e.begin), size_t(e.end - e.begin));
  }

 private:
  MappedFile map_;
  SafetensorsHeader header_;
  std::map<std::string, size_t, std::less<>> index_;
};

}  // namespace trireme
