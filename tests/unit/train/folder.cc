#include "folder.h"

#include <unistd.h>

#include <fstream>

#include "base/error.h"

namespace trireme::test {

TempFolder::TempFolder() {
  fs::path parent = ::access("/dev/shm", W_OK) == 0 ? fs::path("/dev/shm") : fs::temp_directory_path();
  std::string name = (parent / "trireme-cli-XXXXXX").string();
  require(::mkdtemp(name.data()) != nullptr, "cannot make a folder for the test");
  path_ = name;
}

TempFolder::~TempFolder() {
  std::error_code ignored;
  fs::remove_all(path_, ignored);
}

void put_file(const fs::path& path, std::string_view content) {
  make_folders(path.parent_path());
  std::ofstream(path, std::ios::binary) << content;
}

void flip_byte(const fs::path& path, size_t at) {
  std::string s = read_text(path);
  at = at < s.size() ? at : s.size() - 1;
  s[at] = char(s[at] ^ 0x10);
  put_file(path, s);
}

Files files_in(const fs::path& folder) {
  Files files;
  if (!fs::exists(folder)) return files;
  for (const auto& e : fs::recursive_directory_iterator(folder))
    if (e.is_regular_file()) files[fs::relative(e.path(), folder).string()] = read_text(e.path());
  return files;
}

std::string damage(const Files& before, const Files& after) {
  std::string found;
  for (const auto& [name, content] : before) {
    auto it = after.find(name);
    if (it == after.end())
      found += name + " is gone; ";
    else if (it->second != content)
      found += name + " differs; ";
  }
  return found;
}

}  // namespace trireme::test
