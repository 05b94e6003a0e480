// Whether what this test calls runs under a sanitizer, where all is several times slower: what is counted,
// drawn or waited for by the thousand is less there, and release builds run all of it. Asked when the test
// runs, not when it is compiled: one object of a test is linked with the rooms of either build
// (TRIREME_TEST_OBJECTS in tests/CMakeLists.txt).
#pragma once

namespace trireme::test {

extern const bool kSanitized;

// Returns N: a test of many cases runs one in N of them. N is the first argument, the second under a
// sanitizer, and 1 in the tests labelled slow, which set TRIREME_ALL_CASES.
int one_of(int optimised, int sanitized);

}  // namespace trireme::test
