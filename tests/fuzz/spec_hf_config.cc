// A Hugging Face config.json, from whoever wrote it: what is accepted is written, and read back the same.
#include "fuzz.h"
#include "spec/hf_config.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace trireme;
  fuzz::accepts([&] { hf_token_ids(fuzz::text_of(data, size), "config.json"); });
  ModelSpec model;
  std::string json;
  if (!fuzz::accepts([&] { model = parse_hf_config(fuzz::text_of(data, size), "config.json"); })) return 0;
  if (!fuzz::accepts([&] { json = hf_config_json(model); })) return 0;
  fuzz::expect(parse_hf_config(json, "again.json") == model, "a written config.json reads differently");
  return 0;
}
