// A token shard from outside: .idx and .bin, or without the first a raw .bin of uint16. Every token of an
// accepted one can be read, one by one and at once, and lies in a document.
#include <vector>

#include "data/token_shard.h"
#include "fuzz.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace trireme;
  static const fuzz::Folder folder;
  constexpr int64_t kVocab = 70000;
  const auto [idx, bin] = fuzz::halves(data, size);
  std::error_code ignored;
  fs::remove(folder / "s.idx", ignored);
  if (!idx.empty()) folder.put("s.idx", idx);
  folder.put("s.bin", bin);
  fuzz::accepts([&] {
    TokenShard s = TokenShard::open(folder / "s.bin");
    bool all_good = fuzz::accepts([&] { s.check_ids(kVocab); });
    std::vector<int32_t> ids(size_t(s.tokens()));
    bool read = fuzz::accepts([&] { s.read(0, ids, kVocab); });
    fuzz::expect(read == all_good, "check_ids and read disagree");
    if (!read) return;
    for (int64_t i = 0; i < s.tokens(); i += 1 + s.tokens() / 64) {
      int32_t one = -1;
      s.read(i, {&one, 1}, kVocab);
      fuzz::expect(one == ids[size_t(i)], "a token read alone differs");
      const auto place = s.place_of(i);
      fuzz::expect(place.document >= 0 && place.token >= 0 && place.token <= i, "a token in no document");
    }
    s.know_documents();
    std::vector<int32_t> positions(ids.size());
    s.positions(0, positions);
    for (size_t i = 0; i < positions.size(); i++)
      fuzz::expect(positions[i] == 0 || (i > 0 && positions[i] == positions[i - 1] + 1),
                   "a position that follows none");
  });
  return 0;
}
