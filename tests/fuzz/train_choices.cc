// Multiple-choice questions in JSON lines, from whoever wrote them.
#include "fuzz.h"
#include "train/choices.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace trireme;
  fuzz::accepts([&] {
    int64_t line = 0;
    for (const ChoiceQuestion& q : parse_choices(fuzz::text_of(data, size), "questions.jsonl")) {
      fuzz::expect(q.line > line, "a question without a line of its own");
      line = q.line;
      fuzz::expect(q.choices.size() >= 2, "a question without a choice");
      fuzz::expect(q.answer >= 0 && q.answer < int64_t(q.choices.size()), "a question without its answer");
    }
  });
  return 0;
}
