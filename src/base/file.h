// Files: nothing is lost, nothing half-written is ever read as whole.
#pragma once
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>

namespace trireme {

namespace fs = std::filesystem;

// A read-only mapping of a whole file. Move-only. Errors (request) name the path and the reason.
class MappedFile {
 public:
  explicit MappedFile(const fs::path&);
  MappedFile(MappedFile&&) noexcept;
  MappedFile& operator=(MappedFile&&) noexcept;
  ~MappedFile();
  std::span<const std::byte> bytes() const { return {data_, size_}; }
  const fs::path& path() const { return path_; }

 private:
  fs::path path_;
  const std::byte* data_ = nullptr;
  size_t size_ = 0;
};

// Writes beside the target ("<name>.part"), flushes to disk, and takes the target's name on commit(); without
// commit the part file is removed. Every failure (no space, not writable) is one Error naming path and
// reason, and leaves what was at the target before untouched.
class AtomicFile {
 public:
  explicit AtomicFile(fs::path target);
  AtomicFile(const AtomicFile&) = delete;
  ~AtomicFile();
  void write(const void* data, size_t bytes);
  void write(std::string_view s) { write(s.data(), s.size()); }
  void commit();  // fsync the file, rename, fsync the folder
  int fd() const { return fd_; }

 private:
  fs::path target_, part_;
  int fd_ = -1;
};

std::string read_text(const fs::path&);  // bad_request with the path and the reason
void write_text_atomic(const fs::path&, std::string_view);
void append_line(const fs::path&,
                 std::string_view);  // one write(2) of line + '\n': never half a line on success
void make_folders(const fs::path&);  // like mkdir -p; error names the path and the reason
void sync_folder(const fs::path&);   // fsync of a folder: renames inside it are durable
void write_all(int fd, const void* data, size_t bytes, const fs::path& for_message);

// xxh3, 64 bits, of some bytes; and as 16 hex digits.
uint64_t hash64(const void* data, size_t bytes, uint64_t seed = 0);
std::string hex64(uint64_t);

}  // namespace trireme
