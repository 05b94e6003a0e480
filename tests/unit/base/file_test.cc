#include "base/file.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <set>
#include <thread>
#include <utility>

#include "base/error.h"
#include "base/mapping_table.h"
#include "base/no_signals.h"
#include "base/own_faults.h"

namespace trireme {
namespace {

// A folder of its own for each test.
class Files : public ::testing::Test {
 protected:
  Files() {
    std::string name = (fs::temp_directory_path() / "trireme-files-XXXXXX").string();
    if (!mkdtemp(name.data())) throw Error("mkdtemp failed");
    dir_ = name;
  }
  ~Files() override { fs::remove_all(dir_); }
  std::set<std::string> names() const {
    std::set<std::string> s;
    for (const auto& e : fs::directory_iterator(dir_)) s.insert(e.path().filename());
    return s;
  }
  fs::path dir_;
};

template <class F>
std::string request_error(F f, Fault fault = Fault::request) {
  try {
    f();
  } catch (const Error& e) {
    EXPECT_EQ(e.fault, fault);
    return e.what();
  }
  return "no error";
}

TEST_F(Files, MapsTheWholeFile) {
  const std::string text("a\0b\n", 4);
  write_text_atomic(dir_ / "f", text);
  EXPECT_EQ(read_text(dir_ / "f"), text);
  MappedFile f(dir_ / "f");
  MappedFile g(std::move(f));
  EXPECT_EQ(f.bytes().size(), 0u);
  ASSERT_EQ(g.bytes().size(), 4u);
  EXPECT_EQ(g.bytes()[3], std::byte('\n'));
  write_text_atomic(dir_ / "empty", "");
  EXPECT_EQ(read_text(dir_ / "empty"), "");
  g = MappedFile(dir_ / "empty");
  EXPECT_EQ(g.bytes().size(), 0u);
}

TEST_F(Files, WhatCannotBeReadSaysWhy) {
  EXPECT_EQ(request_error([&] { read_text(dir_ / "gone"); }),
            "cannot open " + (dir_ / "gone").string() + ": No such file or directory");
  EXPECT_EQ(request_error([&] { read_text(dir_); }), dir_.string() + " is not a regular file");
}

TEST_F(Files, AtomicFileShowsNothingUntilItIsWhole) {
  write_text_atomic(dir_ / "f", "old");
  {
    AtomicFile f(dir_ / "f");
    f.write("half");
    EXPECT_EQ(read_text(dir_ / "f"), "old");
  }  // not committed
  EXPECT_EQ(read_text(dir_ / "f"), "old");
  EXPECT_EQ(names(), (std::set<std::string>{"f"}));
  AtomicFile f(dir_ / "f");
  f.write("new ");
  f.write("text");
  f.commit();
  EXPECT_EQ(read_text(dir_ / "f"), "new text");
  EXPECT_EQ(names(), (std::set<std::string>{"f"}));
}

TEST_F(Files, FailuresNameThePathAndLeaveTheTarget) {
  EXPECT_EQ(request_error([&] { write_text_atomic(dir_ / "no" / "f", "x"); }),
            "cannot write " + (dir_ / "no" / "f").string() + ": No such file or directory");
  // The target is a folder with something in it: said before hours of work go into the part file, and nothing
  // is lost or left over.
  make_folders(dir_ / "target");
  write_text_atomic(dir_ / "target" / "inside", "x");
  EXPECT_EQ(request_error([&] { AtomicFile f(dir_ / "target"); }),
            "cannot write " + (dir_ / "target").string() + ": Is a directory");
  // It becomes one meanwhile: the rename fails.
  EXPECT_NE(request_error([&] {
              AtomicFile f(dir_ / "late");
              make_folders(dir_ / "late");
              f.commit();
            }).find("cannot publish"),
            std::string::npos);
  fs::remove(dir_ / "late");
  EXPECT_EQ(names(), (std::set<std::string>{"target"}));
  EXPECT_EQ(read_text(dir_ / "target" / "inside"), "x");
}

TEST_F(Files, AFullDiskIsToldWithAHint) {
  const int full = open("/dev/full", O_WRONLY);
  ASSERT_GE(full, 0);
  EXPECT_EQ(request_error([&] { write_all(full, "x", 1, "some/file"); }, Fault::environment),
            "cannot write some/file: No space left on device; free some space or choose another folder");
  close(full);
}

TEST_F(Files, AppendsWholeLines) {
  append_line(dir_ / "log", "one");
  append_line(dir_ / "log", "");
  append_line(dir_ / "log", "three");
  EXPECT_EQ(read_text(dir_ / "log"), "one\n\nthree\n");
}

TEST_F(Files, MakesFoldersAndSaysWhatIsInTheWay) {
  make_folders(dir_ / "a" / "b");
  make_folders(dir_ / "a" / "b");
  EXPECT_TRUE(fs::is_directory(dir_ / "a" / "b"));
  write_text_atomic(dir_ / "f", "");
  EXPECT_NE(request_error([&] { make_folders(dir_ / "f" / "b"); }).find((dir_ / "f" / "b").string()),
            std::string::npos);
  EXPECT_NE(request_error([&] { make_folders(dir_ / "f"); }).find((dir_ / "f").string()), std::string::npos);
}

// Hashes are stored in checkpoints: a change of the function would make all of them unreadable.
// The rename of a commit would replace a device, such as /dev/null, by a file.
TEST_F(Files, WhatIsNotAFileIsNotReplaced) {
  const fs::path pipe = dir_ / "pipe";
  const fs::path link = dir_ / "link";
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  fs::create_symlink(pipe, link);
  for (const fs::path& target : {pipe, link})
    EXPECT_EQ(
        request_error([&] { write_text_atomic(target, "x"); }),
        "cannot write " + target.string() + ": it exists and is not a regular file; choose another name");
  EXPECT_TRUE(fs::is_fifo(pipe));
  EXPECT_TRUE(fs::is_symlink(link));
  EXPECT_EQ(names(), (std::set<std::string>{"link", "pipe"}));
}

TEST(Hash, IsXxh3) {
  EXPECT_EQ(hex64(hash64("", 0)), "2d06800538d394c2");
  EXPECT_EQ(hex64(hash64("abc", 3)), "78af5f94892f3950");
  EXPECT_NE(hash64("abc", 3, 1), hash64("abc", 3));
  EXPECT_EQ(hex64(1), "0000000000000001");
}

TEST(Errors, CarryTheirExitCode) {
  try {
    require(1 + 1 == 3, "sums");
    FAIL();
  } catch (const Error& e) {
    EXPECT_EQ(e.fault, Fault::run);
    const std::string what = e.what();
    EXPECT_EQ(what.find("internal error: sums ("), 0u) << what;
    EXPECT_NE(what.find("file_test.cc:"), std::string::npos) << what;
  }
  EXPECT_NO_THROW(require(true, "x"));
  EXPECT_THROW(run_failed("{}", 1), Error);
}

// An error of the disk under a mapping, as the kernel reports it: the file has the byte, and it cannot be
// had.
TEST(MappedFile, AnErrorOfTheDiskEndsWithTheCodeOfTheEnvironment) {
  const fs::path path = fs::path(testing::TempDir()) / fmt::format("failing_{}.bin", ::getpid());
  write_text_atomic(path, std::string(1 << 16, 'x'));
  const auto fail_at = [&](size_t byte) {
    report_shrunk_files();
    const MappedFile file(path);
    siginfo_t info{};
    info.si_signo = SIGBUS;
    info.si_code = BUS_ADRERR;
    info.si_addr = const_cast<std::byte*>(file.bytes().data() + byte);
    if (byte > 40000) fs::resize_file(path, 40000);
    ::syscall(SYS_rt_sigqueueinfo, ::getpid(), SIGBUS, &info);
  };
  EXPECT_EXIT(fail_at(30000), testing::ExitedWithCode(4), "trireme: .*failing_.*bin: could not be read");
  EXPECT_EXIT(fail_at(50000), testing::ExitedWithCode(1), "failing_.*bin: the file became shorter");
  fs::remove(path);
}

// In a child of the test.
TEST(MappedFile, AReadBeyondTheEndOfAShrunkFileEndsWithALine) {
  const fs::path path = fs::path(testing::TempDir()) / fmt::format("shrunk_{}.bin", ::getpid());
  write_text_atomic(path, std::string(1 << 16, 'x'));
  const auto read_after_cut = [&] {
    report_shrunk_files();
    const MappedFile before(path);
    const MappedFile file(path);
    fs::resize_file(path, 4096);
    volatile std::byte last = file.bytes().back();
    (void)last;
  };
  const char* line = "trireme: .*shrunk_.*bin: the file became shorter, or went away";
  EXPECT_EXIT(read_after_cut(), testing::ExitedWithCode(1), line);
  write_text_atomic(path, std::string(1 << 16, 'x'));
  const auto in_a_thread_without_signals = [&] {
    const NoSignals blocked;
    std::thread([&] {
      take_own_faults();
      read_after_cut();
    }).join();
  };
  EXPECT_EXIT(in_a_thread_without_signals(), testing::ExitedWithCode(1), line);
  fs::remove(path);
}

}  // namespace
}  // namespace trireme
