#include "base/file_stamp.h"

#include <sys/stat.h>

namespace trireme {

std::optional<FileStamp> stamp_of(const std::filesystem::path& path) {
  struct stat st;
  if (::stat(path.c_str(), &st) != 0) return {};
  return FileStamp{.device = st.st_dev,
                   .inode = st.st_ino,
                   .bytes = st.st_size,
                   .modified_ns = int64_t(st.st_mtim.tv_sec) * 1'000'000'000 + st.st_mtim.tv_nsec};
}

}  // namespace trireme
