#include "base/file_kind.h"

#include "base/error.h"

#include <algorithm>
#include <cstdint>

namespace trireme {
namespace {

using namespace std::string_view_literals;

constexpr std::string_view kUtf32 = "UTF-32 text";

struct Mark {
  std::string_view bytes, kind, remedy;
};
constexpr Mark kMarks[] = {
    {"\x28\xB5\x2F\xFD"sv, "compressed by zstd", "zstd -d FILE"},
    {"BZh"sv, "compressed by bzip2", "bunzip2 -k FILE"},
    {"\xFD"
     "7zXZ\0"sv,
     "compressed by xz", "unxz -k FILE"},
    {"\x04\x22\x4D\x18"sv, "compressed by lz4", "unlz4 FILE"},
    {"\x1F\x8B"sv, "compressed by gzip", "gunzip -k FILE"},
    {"7z\xBC\xAF\x27\x1C"sv, "a 7z archive", "7z x FILE"},
    {"PK\x03\x04"sv, "a zip archive (as numpy.savez and torch.save write, too)", "unzip FILE"},
    {"PAR1"sv, "a Parquet table",
     "python3 -c 'import pandas; pandas.read_parquet(\"FILE\").to_json(\"FILE.jsonl\", orient=\"records\", "
     "lines=True)'"},
    {"ARROW1"sv, "an Arrow table", "datasets.load_from_disk(FOLDER).to_json(\"FILE.jsonl\") in Python"},
    {"\xFF\xFF\xFF\xFF"sv, "an Arrow stream",
     "datasets.load_from_disk(FOLDER).to_json(\"FILE.jsonl\") in Python"},
    {"Obj\x01"sv, "an Avro table", ""},
    {"ORC\x11"sv, "an ORC table", ""},
    {"\xFF\x06\0\0sNaPpY"sv, "compressed by snappy", ""},
    {"\x80\x04\x95"sv, "a pickle of Python", ""},
    {"\x80\x05\x95"sv, "a pickle of Python", ""},
    {"\x89HDF\r\n"sv, "an HDF5 file", ""},
    {"SQLite format 3"sv, "an SQLite database", ""},
    {"\x93NUMPY"sv, "a NumPy array", ""},
    {"MMIDIDX"sv, "the index of a token shard (.idx)", ""},
    {"%PDF-"sv, "a PDF document", "pdftotext FILE"},
    {"\x7F"
     "ELF"sv,
     "a program", ""},
    {"GGUF"sv, "a GGUF model", ""},
    {"version https://git-lfs.github.com/spec/"sv, "a pointer of Git LFS, without the content",
     "git lfs pull"},
    {"\xFF\xFE\0\0"sv, kUtf32, "iconv -f UTF-32 -t UTF-8 FILE > FILE.utf8"},
    {"\0\0\xFE\xFF"sv, kUtf32, "iconv -f UTF-32 -t UTF-8 FILE > FILE.utf8"},
    {"\xFF\xFE"sv, "UTF-16 text", "iconv -f UTF-16 -t UTF-8 FILE > FILE.utf8"},
    {"\xFE\xFF"sv, "UTF-16 text", "iconv -f UTF-16 -t UTF-8 FILE > FILE.utf8"},
};

// ASCII in UTF-16 (width 2) or UTF-32 (4) without a byte-order mark: all bytes of a character but its first
// or last are zero.
bool is_wide_ascii(std::string_view bytes, size_t width) {
  bytes = bytes.substr(0, 4096);
  if (bytes.size() < 8 * width) return false;
  const size_t characters = bytes.size() / width;
  for (const size_t at : {size_t(0), width - 1}) {
    size_t fits = 0;
    for (size_t i = 0; i < characters; i++) {
      const std::string_view c = bytes.substr(i * width, width);
      fits += c[at] != 0 && size_t(std::count(c.begin(), c.end(), '\0')) == width - 1;
    }
    if (fits * 10 >= characters * 9) return true;
  }
  return false;
}

}  // namespace

std::string_view marked_kind(std::string_view first_bytes) {
  for (const Mark& m : kMarks)
    if (first_bytes.starts_with(m.bytes)) return m.kind;
  if (first_bytes.size() > 262 && first_bytes.substr(257).starts_with("ustar")) return "a tar archive";
  if (is_wide_ascii(first_bytes, 4)) return kUtf32;
  return is_wide_ascii(first_bytes, 2) ? "UTF-16 text" : "";
}

std::string_view how_to_read(std::string_view kind) {
  for (const Mark& m : kMarks)
    if (m.kind == kind) return m.remedy;
  return kind == "a tar archive" ? "tar -xf FILE" : "";
}

void refuse_marked(const fs::path& path, std::string_view first_bytes) {
  const std::string_view kind = marked_kind(first_bytes);
  if (kind.empty()) return;
  std::string how(how_to_read(kind));
  for (size_t at; (at = how.find("FILE")) != std::string::npos;) how.replace(at, 4, path.string());
  bad_request("{} is {}; UTF-8 text and JSON Lines are supported{}{}", path.string(), kind,
              how.empty() ? "" : ": ", how);
}

}  // namespace trireme
