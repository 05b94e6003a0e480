// Multiple-choice questions in JSON lines, from whoever wrote them: every one has its answer among its
// choices.
#include "fuzz.h"
#include "train/choices.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace trireme;
  fuzz::accepts([&] {
    for (const ChoiceQuestion& q : parse_choices(fuzz::text_of(data, size), "questions.jsonl")) {
      fuzz::expect(q.choices.size() >= 2 && q.answer >= 0 && q.answer < int64_t(q.choices.size()),
                   "a question without its answer");
      fuzz::expect(q.line >= 1, "a question without its line");
    }
  });
  return 0;
}
