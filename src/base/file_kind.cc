#include "base/file_kind.h"

#include <cstdint>

namespace trireme {
namespace {

using namespace std::string_view_literals;

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
    {"\xFF\xFE"sv, "UTF-16 text", "iconv -f UTF-16 -t UTF-8 FILE > FILE.utf8"},
    {"\xFE\xFF"sv, "UTF-16 text", "iconv -f UTF-16 -t UTF-8 FILE > FILE.utf8"},
};

// ASCII in UTF-16 without a byte-order mark: every second byte is zero.
bool is_wide_ascii(std::string_view bytes) {
  bytes = bytes.substr(0, 4096);
  if (bytes.size() < 16) return false;
  for (size_t zero : {size_t(0), size_t(1)}) {
    size_t fits = 0, pairs = bytes.size() / 2;
    for (size_t i = 0; i < pairs; i++) fits += bytes[2 * i + zero] == 0 && bytes[2 * i + 1 - zero] != 0;
    if (fits * 10 >= pairs * 9) return true;
  }
  return false;
}

}  // namespace

std::string_view marked_kind(std::string_view first_bytes) {
  for (const Mark& m : kMarks)
    if (first_bytes.starts_with(m.bytes)) return m.kind;
  if (first_bytes.size() > 262 && first_bytes.substr(257).starts_with("ustar")) return "a tar archive";
  return is_wide_ascii(first_bytes) ? "UTF-16 text" : "";
}

std::string_view how_to_read(std::string_view kind) {
  for (const Mark& m : kMarks)
    if (m.kind == kind) return m.remedy;
  return kind == "a tar archive" ? "tar -xf FILE" : "";
}

}  // namespace trireme
