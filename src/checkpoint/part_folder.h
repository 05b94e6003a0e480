// A folder that appears under its name all at once, or not at all.
#pragma once
#include <filesystem>
#include <string>
#include <vector>

#include "base/file.h"

namespace trireme {

// Files are written into "<target>.part"; publish() gives it the target's name. A folder that was there
// before changes places with it in one step, so that withdraw() can bring it back. The destructor removes
// whatever is the part then: what was not published, or what was replaced.
class PartFolder {
 public:
  explicit PartFolder(fs::path target);
  PartFolder(const PartFolder&) = delete;
  ~PartFolder();

  const fs::path& path() const { return part_; }
  void flush();     // fsync of the folder; its files flush themselves (AtomicFile)
  void publish();   // rename, fsync of the parent
  void withdraw();  // after publish(): everything is as it was before

 private:
  fs::path target_, part_;
  bool published_ = false, replaced_ = false;
};

// Unlike fs::exists() it tells what is absent from what may not be looked at (an Error).
bool is_there(const fs::path&);
// Names in a folder, sorted; none when it does not exist.
std::vector<std::string> names_in(const fs::path& folder);
// Like rm -rf; an Error names the path and the reason.
void remove_tree(const fs::path&);
// Removes a folder so that it is never seen half there: it loses its name first.
void remove_published(const fs::path&);

}  // namespace trireme
