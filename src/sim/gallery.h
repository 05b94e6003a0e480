// The page of schedules: each drawn, with what papers say of it beside what comes out in virtual time.
#pragma once
#include <filesystem>
#include <string>
#include <vector>

namespace trireme {

struct GalleryFile {
  std::filesystem::path path;  // inside the folder of the page
  std::string text;
};
// schedules.md, and schedules/NAME.svg of each schedule: 4 ranks, 8 microbatches, F = I = W = 1.
std::vector<GalleryFile> gallery();

}  // namespace trireme
