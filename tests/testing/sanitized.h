// Whether this test runs under a sanitizer, where all is several times slower: what is counted, drawn or
// waited for by the thousand is less there, and release builds run all of it.
#pragma once

namespace trireme::test {

#ifdef TRIREME_SANITIZED
inline constexpr bool kSanitized = true;
#else
inline constexpr bool kSanitized = false;
#endif

}  // namespace trireme::test
