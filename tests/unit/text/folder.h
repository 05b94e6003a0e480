// A folder that goes away with the test.
#pragma once
#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <string>

#include "base/error.h"
#include "base/file.h"

namespace trireme {

class TestFolder {
 public:
  TestFolder() {
    static std::atomic<int> count{0};
    path_ = fs::path(testing::TempDir()) / fmt::format("trireme_text_{}_{}", ::getpid(), count++);
    make_folders(path_);
  }
  TestFolder(const TestFolder&) = delete;
  ~TestFolder() { fs::remove_all(path_); }
  const fs::path& path() const { return path_; }
  // Writes a file at a relative path, with the folders above it.
  fs::path write(const std::string& name, std::string_view content) const {
    make_folders((path_ / name).parent_path());
    write_text_atomic(path_ / name, content);
    return path_ / name;
  }

 private:
  fs::path path_;
};

// The message of the Error that f() throws, which must be a bad request; "" when it throws none.
template <class F>
std::string refusal(F&& f) {
  try {
    f();
  } catch (const Error& e) {
    EXPECT_EQ(e.fault, Fault::request) << e.what();
    EXPECT_EQ(std::string(e.what()).find('\n'), std::string::npos) << "more than one line: " << e.what();
    return e.what();
  }
  return "";
}

}  // namespace trireme
