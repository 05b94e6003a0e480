// A file's state on disk, without its content.
#pragma once
#include <cstdint>
#include <filesystem>
#include <optional>

namespace trireme {

// Content that changes in place changes the stamp; a file that replaces another one has another inode.
struct FileStamp {
  uint64_t device = 0;
  uint64_t inode = 0;
  int64_t bytes = 0;
  int64_t modified_ns = 0;  // since the epoch
  bool operator==(const FileStamp&) const = default;
};
std::optional<FileStamp> stamp_of(const std::filesystem::path&);  // none: no such file

}  // namespace trireme
