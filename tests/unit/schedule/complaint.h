// What validate says of a schedule.
#pragma once

#include <gtest/gtest.h>

#include <string>

#include "base/error.h"
#include "schedule/schedule.h"

namespace trireme::test {

inline std::string complaint(const Schedule& s) {
  try {
    validate(s);
  } catch (const Error& e) {
    EXPECT_EQ(e.fault, Fault::request);
    return e.what();
  }
  return "no error";
}
inline std::string complaint(const char* text) {
  return complaint(parse_schedule(text));
}
// Without the grid behind it.
template <class ScheduleOrText>
std::string headline(const ScheduleOrText& s) {
  const std::string all = complaint(s);
  return all.substr(0, all.find('\n'));
}

}  // namespace trireme::test
