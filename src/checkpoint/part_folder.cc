#include "checkpoint/part_folder.h"

#include <fcntl.h>
#include <stdio.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "base/error.h"

namespace trireme {
namespace {

fs::path parent_of(const fs::path& p) {
  return p.has_parent_path() ? p.parent_path() : fs::path(".");
}

void rename_or_throw(const fs::path& from, const fs::path& to) {
  if (::rename(from.c_str(), to.c_str()) != 0)
    system_failed(errno, "cannot rename {} to {}: {}", from.string(), to.string(), std::strerror(errno));
}

// Gives `from` the name `to`. What had that name before gets the name `from`: did anything?
bool take_name(const fs::path& from, const fs::path& to) {
  if (::renameat2(AT_FDCWD, from.c_str(), AT_FDCWD, to.c_str(), RENAME_EXCHANGE) == 0) return true;
  bool there = is_there(to);
  if (!there) {
    rename_or_throw(from, to);
    return false;
  }
  // A file system that cannot exchange (NFS): what is there steps aside first.
  fs::path aside = to.string() + ".old.part";
  remove_tree(aside);
  rename_or_throw(to, aside);
  rename_or_throw(from, to);
  rename_or_throw(aside, from);
  return true;
}

// "x" and "x/" are one folder: a trailing slash would put the part inside it.
fs::path without_slash(const fs::path& p) {
  return p.has_filename() ? p : p.parent_path();
}

}  // namespace

bool is_there(const fs::path& p) {
  std::error_code ec;
  bool there = fs::exists(p, ec);
  if (ec) system_failed(ec.value(), "cannot look at {}: {}", p.string(), ec.message());
  return there;
}

std::vector<std::string> names_in(const fs::path& folder) {
  std::vector<std::string> names;
  if (!is_there(folder)) return names;
  std::error_code ec;
  for (fs::directory_iterator it(folder, ec), end; !ec && it != end; it.increment(ec))
    names.push_back(it->path().filename().string());
  if (ec) system_failed(ec.value(), "cannot list {}: {}", folder.string(), ec.message());
  std::sort(names.begin(), names.end());
  return names;
}

void remove_tree(const fs::path& p) {
  std::error_code ec;
  fs::remove_all(p, ec);
  if (ec) system_failed(ec.value(), "cannot remove {}: {}", p.string(), ec.message());
}

PartFolder::PartFolder(fs::path target) : target_(without_slash(target)), part_(target_.string() + ".part") {
  fs::path parent = parent_of(target_);
  const bool fresh = !is_there(parent);
  make_folders(parent);
  if (fresh) sync_folder(parent_of(parent));
  remove_tree(part_);
  make_folders(part_);
}

PartFolder::~PartFolder() {
  std::error_code ignored;  // a destructor has nobody to tell; the next start removes leftovers
  fs::remove_all(part_, ignored);
}

void PartFolder::flush() {
  sync_folder(part_);
}

void PartFolder::publish() {
  replaced_ = take_name(part_, target_);
  published_ = true;
  sync_folder(parent_of(target_));
}

void PartFolder::withdraw() {
  require(published_, "withdraw() before publish()");
  if (replaced_)
    take_name(part_, target_);
  else
    take_name(target_, part_);
  published_ = false;
  sync_folder(parent_of(target_));
}

void remove_published(const fs::path& folder) {
  fs::path gone = folder.string() + ".part";
  remove_tree(gone);
  std::error_code ec;
  fs::rename(folder, gone, ec);
  if (ec) system_failed(ec.value(), "cannot remove {}: {}", folder.string(), ec.message());
  remove_tree(gone);
}

}  // namespace trireme
