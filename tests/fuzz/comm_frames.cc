// Bytes that came over the network where ranks meet, from whoever reaches the port. The first byte says how
// they are cut.
#include "comm/tcp/frames.h"
#include "fuzz.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace trireme;
  if (size == 0) return 0;
  const size_t cut = 1 + data[0];
  fuzz::accepts([&] {
    tcp::FrameReader reader(1 << 16);
    for (size_t at = 1; at < size; at += cut) {
      reader.put(std::as_bytes(std::span(data + at, std::min(cut, size - at))));
      while (auto f = reader.next()) {
        fuzz::expect(f->body.size() <= 1 << 16 && int64_t(f->body.size()) == f->head.bytes,
                     "a body of another size");
        fuzz::accepts([&] {
          const tcp::Hello h = tcp::parse_hello(*f);
          fuzz::expect(h.rank >= 0 && h.rank < h.world && h.machine.back() == '\0', "a greeting of nobody");
        });
        fuzz::accepts([&] { (void)tcp::parse_welcome(*f); });
        fuzz::accepts([&] { (void)tcp::parse_challenge(*f); });
        fuzz::accepts([&] { (void)tcp::parse_proof(*f); });
        fuzz::accepts([&] {
          const tcp::News n = tcp::parse_news(*f, 5);
          fuzz::expect(n.rank >= 0 && n.rank < 5, "news of nobody");
          for (char c : n.why) fuzz::expect(uint8_t(c) >= 0x20 && c != 0x7f, "a control byte in news");
        });
        fuzz::accepts([&] {
          const tcp::Call c = tcp::parse_call(*f, 5);
          fuzz::expect(c.head.place >= 0 && c.head.place < c.head.size && c.head.size <= 5,
                       "a call of nobody");
          fuzz::expect(c.data.size() <= f->body.size(), "data beyond the frame");
          fuzz::expect(c.head.kind != Collective::all_to_all || c.send_rows.size() == size_t(c.head.size),
                       "an all_to_all without counts");
        });
        (void)tcp::text_of(*f);
      }
    }
  });
  return 0;
}
