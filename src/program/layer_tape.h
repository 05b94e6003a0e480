// Memory of one pass over one layer, as numbered blocks without addresses. A tape is recorded once, by
// running the layer on meta (runtime/layer_recorder.h), and composed with the operations of a program
// (program/program_bytes.h).
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "trace/ledger.h"

namespace trireme {

struct BlockSize {
  Bucket bucket = Bucket::scratch;
  int64_t bytes = 0;
  bool operator==(const BlockSize&) const = default;
};

// Owner of a block between the passes of a microbatch.
enum class Home : uint8_t {
  saved,        // the layer, for a later pass
  input,        // the layer's input
  output,       // its output: the input of the next layer
  output_grad,  // gradient of the output
  input_grad,   // gradient of the input
  leaving,      // the offload store, which reads it
};

struct LayerTape {
  // A block from before the pass, which the pass frees or gives another home.
  struct Taken {
    Home home = Home::saved;
    int32_t at = 0;  // saved: number of blocks that the layer had saved before this one, since its forward
    BlockSize size;
    bool operator==(const Taken&) const = default;
  };
  struct Left {
    int32_t block = 0;
    Home home = Home::saved;
    bool operator==(const Left&) const = default;
  };
  // pause: another pass may run here (Op::by_turns).
  struct Event {
    enum class Kind : uint8_t { make, free, pause } kind = Kind::pause;
    int32_t block = -1;
    bool operator==(const Event&) const = default;
  };

  std::vector<Taken> takes;      // blocks [0, takes.size())
  std::vector<BlockSize> makes;  // blocks from takes.size() on
  std::vector<Event> events;     // in order
  std::vector<Left> leaves;      // blocks that exist after the pass, in order
  // W: by parameter of the layer's units, '1' if its gradient holds a sum after the pass.
  std::string started;

  Bookings sum;  // all events

  BlockSize size_of(int32_t block) const {
    const auto taken = int32_t(takes.size());
    return block < taken ? takes[size_t(block)].size : makes[size_t(block - taken)];
  }
  bool operator==(const LayerTape&) const = default;
};

// Sets `sum` from the events.
void sum_events(LayerTape&);

}  // namespace trireme
