// A checkpoint whose manifest is right and whose one file of parts is the input: the boxes and ranges in its
// metadata are believed in nothing, and whatever is accepted is read whole.
#include <vector>

#include "checkpoint/checkpoint.h"
#include "fuzz.h"
#include "safetensors.h"

extern "C" size_t LLVMFuzzerCustomMutator(uint8_t* data, size_t size, size_t max_size, unsigned seed) {
  return trireme::fuzz::mutate_safetensors(data, size, max_size, seed);
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace trireme;
  static const fuzz::Folder folder;
  folder.put("rank-00000.safetensors", fuzz::text_of(data, size));
  Manifest m;
  m.saved_at = "2026-01-31T12:00:00Z";
  m.files = {{"rank-00000.safetensors", {int64_t(size), hash64(data, size)}}};
  folder.put(kManifestName, to_text(m));
  fuzz::accepts([&] {
    const Checkpoint c = Checkpoint::open(folder.path());
    for (const std::string& name : c.names()) {
      const Shape shape = c.find(name)->global;
      // A hole is allowed to be as large as the file says; nobody reads it before its shape is the model's.
      const int64_t n = shape.numel();
      if (n > 1 << 16) continue;
      std::vector<float> to(static_cast<size_t>(n) + 1);
      fuzz::accepts([&] {
        c.read({.name = name,
                .global = shape,
                .box = whole(shape).box,
                .range = {0, n},
                .host_data = Tensor(to.data(), {n}, DType::f32)});
      });
    }
  });
  return 0;
}
