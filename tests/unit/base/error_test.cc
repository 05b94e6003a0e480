#include "base/error_lines.h"

#include <gtest/gtest.h>

#include <cerrno>

namespace trireme {
namespace {

Fault fault_of(int error_number) {
  try {
    system_failed(error_number, "x");
  } catch (const Error& e) {
    return e.fault;
  }
}

TEST(Error, TheNatureOfAFailureDecidesTheExitCode) {
  for (int e : {EIO, ENOSPC, EDQUOT, ENOMEM, EMFILE, ENFILE, ESTALE, EHOSTUNREACH, ENETUNREACH, ETIMEDOUT,
                ECONNREFUSED, EROFS, ENOTCONN, EAGAIN})
    EXPECT_EQ(fault_of(e), Fault::environment) << e;
  for (int e : {ENOENT, EACCES, EPERM, EISDIR, ENOTDIR, EINVAL, ENAMETOOLONG, ELOOP, 0})
    EXPECT_EQ(fault_of(e), Fault::request) << e;
  EXPECT_EQ(fault_of_errno(ENOENT, Fault::run), Fault::run);
  EXPECT_EQ(int(Fault::environment), 4);
  EXPECT_EQ(fault_in_run(Fault::environment), Fault::environment);
  EXPECT_EQ(fault_in_run(Fault::request), Fault::run) << "a file that cannot be written during a run";
}

TEST(Error, ALineForEachFaultWhateverTheNamesInIt) {
  try {
    throw ErrorLines({"a\nb.toml: x", "\x1b[31mc"});
  } catch (const Error& e) {
    EXPECT_STREQ(e.what(), "a\\nb.toml: x\n\\x1b[31mc");
    EXPECT_EQ(e.fault, Fault::request);
  }
}

}  // namespace
}  // namespace trireme
