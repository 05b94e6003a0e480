// Folders of a test, and what is in them.
#pragma once
#include <map>
#include <string>
#include <string_view>

#include "base/file.h"

namespace trireme::test {

// Removed at the end; in memory where the system has such a place, for fsync's sake.
class TempFolder {
 public:
  TempFolder();
  TempFolder(const TempFolder&) = delete;
  ~TempFolder();
  fs::path operator/(std::string_view name) const { return path_ / name; }
  const fs::path& path() const { return path_; }

 private:
  fs::path path_;
};

void put_file(const fs::path&, std::string_view content);
void flip_byte(const fs::path&, size_t at);  // counted from the end when the file is shorter

// Every file below a folder, by its path from there, with its bytes. Nothing where there is no folder.
using Files = std::map<std::string, std::string>;
Files files_in(const fs::path&);
// Files that were there and are gone or differ, one word each; "" = none. New files are no damage.
std::string damage(const Files& before, const Files& after);

}  // namespace trireme::test
