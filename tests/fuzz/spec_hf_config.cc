// A Hugging Face config.json, from whoever wrote it: what is accepted is written, and read back the same;
// notes are printable too.
#include <vector>

#include "fuzz.h"
#include "spec/hf_config.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace trireme;
  fuzz::accepts([&] { hf_token_ids(fuzz::text_of(data, size), "config.json"); });
  ModelSpec model;
  std::string json;
  std::vector<std::string> notes;
  if (!fuzz::accepts([&] { model = parse_hf_config(fuzz::text_of(data, size), "config.json", &notes); }))
    return 0;
  for (const std::string& note : notes) fuzz::expect_good_form(Error(note, Fault::request));
  if (!fuzz::accepts([&] { json = hf_config_json(model); })) return 0;
  fuzz::expect(parse_hf_config(json, "again.json") == model, "a written config.json reads differently");
  return 0;
}
