#include "program/layer_tape.h"

namespace trireme {

void sum_events(LayerTape& t) {
  t.sum = {};
  for (const LayerTape::Event& e : t.events) {
    if (e.kind == LayerTape::Event::Kind::pause) continue;
    const BlockSize size = t.size_of(e.block);
    t.sum.add(size.bucket, e.kind == LayerTape::Event::Kind::make ? size.bytes : -size.bytes);
  }
}

}  // namespace trireme
