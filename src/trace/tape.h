// What one rank issues in a step, piece by piece in program order: ops, collectives, messages, and which
// stream waits for what. It is recorded from the run itself, on meta as on a device (runtime/recording.h),
// and replayed with prices (sim/replay.h): so what is simulated is the order that runs.
#pragma once
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "trace/ledger.h"

namespace trireme {

enum class PieceKind : uint8_t {
  op,    // work of this rank alone
  call,  // a collective: moves once all ranks of its group have come to it
  send,  // a message leaves; it blocks nobody but its stream
  recv,  // goes on when the message is there
  wait,  // goes on when another stream has done what was issued there before a mark
};

// On `stream`, behind all that was issued there before; 0 = compute, which is the rank's own thread: what
// comes later in the program is not issued before a piece on it is done.
struct Piece {
  PieceKind kind = PieceKind::op;
  int32_t stream = 0;
  int32_t microbatch = -1;
  int32_t group = -1;  // of a call: in Tape::groups
  int32_t peer = -1;   // of a send or recv: rank of the world
  int32_t on = -1;     // of a wait: the other stream
  int64_t mark = 0;  // of a wait: pieces issued on `on` until then. Of a send or recv: which of the messages
                     // from one rank to the other, both ends alike
  std::string_view name, layer, action;  // "matmul", "blocks.3.attn", "F"; kept by the tape
  std::string_view algorithm;            // of a call: "ordered"
  Cost cost;                             // of an op
  int64_t rows = 0, cols = 0;            // of a launch's first output: all dims but the last, and the last
  bool launched = false;                 // of an op: a kernel's launch; else the runner's own doing
  int64_t payload = 0, wire = 0;         // of a call or send, bytes: of the full buffer; to and from others
  int64_t held = 0;                      // total of the rank's ledger when the piece is issued
  int64_t most = 0;  // compute: highest total of the rank's ledger until the next piece of compute
  // Measured on a device, 0 on meta; steady clock. Of a call or send on another stream: when it was issued.
  int64_t begin_ns = 0, met_ns = 0, end_ns = 0;
};

// Ops that are transfers between memory and a disk, on streams of their own.
inline constexpr std::string_view kDiskRead = "disk read", kDiskWrite = "disk write";

inline bool of_disk(const Piece& p) {
  return p.name == kDiskRead || p.name == kDiskWrite;
}
// Likewise between a device's memory and the host's.
inline constexpr std::string_view kHostRead = "host read", kHostWrite = "host write";

inline bool of_host(const Piece& p) {
  return p.name == kHostRead || p.name == kHostWrite;
}
// Neither takes the device's compute.
inline bool of_offload(const Piece& p) {
  return of_disk(p) || of_host(p);
}

struct TapeGroup {
  std::string name;        // "dp"
  std::vector<int> ranks;  // of the world, ascending
  bool operator==(const TapeGroup&) const = default;
};

struct Tape {
  std::vector<Piece> pieces;
  std::vector<TapeGroup> groups;
  std::vector<std::string> streams = {"compute"};  // by stream
  int rank = 0;                                    // of the world: whose it is
  int steps = 1;                                   // that it is of
  // The text for as long as this tape or a copy of it lives.
  std::string_view keep(std::string_view text) {
    if (text.empty()) return {};
    auto it = texts_->find(text);
    return it != texts_->end() ? *it : *texts_->emplace(text).first;
  }

 private:
  std::shared_ptr<std::set<std::string, std::less<>>> texts_ =
      std::make_shared<std::set<std::string, std::less<>>>();
};

}  // namespace trireme
