// Whether what this test calls runs under a sanitizer, where all is several times slower: what is counted,
// drawn or waited for by the thousand is less there, and release builds run all of it. Asked when the test
// runs, not when it is compiled: one object of a test is linked with the rooms of either build
// (TRIREME_TEST_OBJECTS in tests/CMakeLists.txt).
#pragma once

namespace trireme::test {

extern const bool kSanitized;

// Returns 1 where every case runs: in the tests labelled slow, which set TRIREME_ALL_CASES. Else a test of
// many cases runs one of so many, as many more under a sanitizer.
int one_of(int optimised, int sanitized);

}  // namespace trireme::test
