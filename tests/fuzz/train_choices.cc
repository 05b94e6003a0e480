// Multiple-choice questions in JSON lines, from whoever wrote them.
#include <string_view>

#include "base/error.h"
#include "train/choices.h"

extern "C" int LLVMFuzzerTestOneInput(const unsigned char* data, size_t size) {
  try {
    for (const trireme::ChoiceQuestion& q :
         trireme::parse_choices({reinterpret_cast<const char*>(data), size}, "questions.jsonl")) {
      trireme::require(q.choices.size() >= 2 && q.answer >= 0 && q.answer < int64_t(q.choices.size()),
                       "a question without its answer");
      trireme::require(q.line >= 1, "a question without its line");
    }
  } catch (const trireme::Error& e) {
    if (e.fault != trireme::Fault::request) throw;
  }
  return 0;
}
