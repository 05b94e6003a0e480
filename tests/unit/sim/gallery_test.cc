// The page of schedules is what the generators make now. `trireme simulate --gallery docs` writes it anew.
#include "sim/gallery.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "base/file.h"
#include "schedule/schedule.h"
#include "source_dir.h"

namespace trireme {
namespace {

TEST(Gallery, DocsAreCurrent) {
  const std::filesystem::path docs = test::source_dir() / "docs";
  const std::vector<GalleryFile> files = gallery();
  EXPECT_EQ(files.size(), schedule_names().size() + 2);  // auto, and the page
  for (const GalleryFile& f : files) {
    ASSERT_TRUE(std::filesystem::exists(docs / f.path)) << f.path << ": run trireme simulate --gallery docs";
    EXPECT_EQ(read_text(docs / f.path), f.text) << f.path << ": run trireme simulate --gallery docs";
  }
  const auto drawn = std::filesystem::directory_iterator(docs / "schedules");
  EXPECT_EQ(size_t(std::distance(begin(drawn), end(drawn))), schedule_names().size() + 1);
}

TEST(Gallery, SaysOfEverySchedule) {
  const std::vector<GalleryFile> files = gallery();
  const std::string& page = files.back().text;
  std::vector<std::string_view> names(schedule_names().begin(), schedule_names().end());
  names.push_back("auto");
  for (std::string_view name : names) {
    const size_t at = page.find("\n## " + std::string(name) + "\n\n");
    ASSERT_NE(at, page.npos) << name;
    EXPECT_NE(page[at + name.size() + 6], '\n') << name << " has no sentence about where it comes from";
  }
  EXPECT_EQ(page.find("NOT what came out"), page.npos);
}

}  // namespace
}  // namespace trireme
