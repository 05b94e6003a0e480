// A file of algorithms from a run folder or a user's cache: what is read is written so that it reads the
// same.
#include "device/algorithms.h"
#include "fuzz.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace trireme;
  fuzz::accepts([&] {
    KeptAlgorithms all = parse_algorithms(fuzz::text_of(data, size), "algorithms.txt");
    const std::string text = text_of(all);
    fuzz::expect(parse_algorithms(text, "again").by_title == all.by_title,
                 "algorithms that change when written");
    fuzz::expect(text_of(parse_algorithms(text, "again")) == text, "a text that changes when written again");
    KeptAlgorithms twice = all;
    merge(twice, all);
    fuzz::expect(twice.by_title == all.by_title, "a merge with oneself that changes something");
  });
  return 0;
}
