// A schedule's text: what parses is printed and parsed back the same, and validate says yes or refuses.
#include "fuzz.h"
#include "schedule/schedule.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace trireme;
  fuzz::accepts([&] {
    const Schedule s = parse_schedule(fuzz::text_of(data, size));
    fuzz::expect(parse_schedule(to_text(s)) == s, "a printed schedule parses differently");
    validate(s);
  });
  return 0;
}
