// routing.jsonl: what is read is within its own shape, and written again it reads as the same.
#include "fuzz.h"
#include "trace/recorded_rows.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace trireme;
  fuzz::accepts([&] {
    const RecordedRows read = parse_recorded_rows(fuzz::text_of(data, size), "routing.jsonl");
    const RoutingShape& s = read.shape;
    std::string again = to_json_line(s) + "\n";
    for (const auto& [step, rows] : read.steps) {
      fuzz::expect(step >= 1 && rows && !rows->empty(), "a step of nothing");
      // Few ranks, blocks and microbatches of a shape may be there.
      for (int rank = 0; rank < int(std::min<int64_t>(s.world(), 4)); rank++)
        for (int64_t block = 0; block < std::min<int64_t>(s.layers, 4); block++)
          for (int64_t mb = 0; mb < std::min<int64_t>(s.microbatches(), 4); mb++) {
            const std::span<const int32_t> of = rows->of(rank, block, mb);
            int64_t sum = 0;
            for (const int32_t n : of) fuzz::expect(n >= 0, "rows below none"), sum += n;
            fuzz::expect(sum <= s.rows(), "more rows than a rank has");
            fuzz::expect(of.empty() || int64_t(of.size()) == s.experts, "rows of other experts");
            if (!of.empty())
              again +=
                  recorded_line(step, rank, block, mb, std::vector<int64_t>(of.begin(), of.end())) + "\n";
          }
      const std::vector<std::vector<int>> groups = {{0, int(s.world() - 1)}};
      fuzz::expect(rows->fullest(groups) >= 1, "a fullest rank below the mean");
    }
    const RecordedRows back = parse_recorded_rows(again, "again");
    fuzz::expect(back.shape == s, "another shape");
  });
  return 0;
}
