// One step of one rank as a value: every operation in the order of issue, with what it waits for. lower()
// makes it; the runtime executes it, the simulator replays it with prices, `trireme inspect RUN --program`
// prints it.
#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "program/shape.h"
#include "schedule/schedule.h"

namespace trireme {

enum class OpKind : uint8_t {
  // Passes over one layer, on the compute stream.
  forward,
  again,   // recompute
  input,   // gradient of the input
  weight,  // gradient of the weights
  // Memory of a microbatch.
  load,    // the batch is read into memory
  drop,    // the layer's activations that the backward pass makes again are freed, or leave for the offload
           // store
  left,    // the last input that left is stored: its memory is free
  losses,  // token losses are read
  fetch,   // the layer's input comes back from the offload store
  clear,   // the layer's input and the gradient of its output are freed
  unload,  // the batch is freed
  // Weights of a unit (ZeRO 3), on the stream of the replicas.
  gather,   // memory for the whole unit, and its all-gather
  arrive,   // compute waits for the gather
  release,  // the whole unit is freed
  // Gradients of a unit.
  open,    // memory for the whole gradient (ZeRO 2 and 3)
  sum,     // this rank's gradient is complete: summands of the same parameters are added
  reduce,  // units [unit, last) leave for their owners, or to all replicas
  retire,  // compute waits for the oldest reduction; its memory is free
  // Messages between stages.
  post,     // memory for a message, and its receive
  receive,  // compute waits for the message
  send,
  free,  // a message that was sent has been read: its memory is free
  // End of the step.
  norm,    // all ranks agree on the gradient's norm and the loss
  update,  // units [unit, last)
  spread,  // the others get the new weights of units [unit, last)
  settle,  // compute waits for all weights
};
inline constexpr size_t kOpKinds = size_t(OpKind::settle) + 1;
std::string_view name_of(OpKind);

struct Op {
  OpKind kind = OpKind::forward;
  bool adds = false;   // retire: adds to an earlier microbatch's sum; else it writes the first one
  bool back = false;   // message: a gradient for the stage before; else activations for the next one
  int16_t mb = -1;     // passes, messages, memory of a microbatch
  int16_t stage = -1;  // likewise
  int16_t peer = -1;   // messages: the other pipeline rank
  int32_t layer = -1;  // number in the rank's shape
  int32_t unit = -1, last = -1;
  int32_t after = -1;  // the operation on another stream that this one waits for; -1: none
  // forward: passes that follow and belong to another microbatch. Both run by turns: while a collective of
  // one travels, the other one computes.
  int32_t by_turns = 0;
  bool operator==(const Op&) const = default;
};

// The part of the operations that one action of the schedule stands for.
struct ActionOps {
  Action action;
  int32_t begin = 0, end = 0;  // in Program::ops
  // A forward pass interleaved with the backward pass of a later action: actions up to that one, whose
  // operations are all here. 0: none.
  int32_t interleaved = 0;
};

struct Program {
  std::vector<Op> ops;
  std::vector<ActionOps> actions;  // as the schedule's; Step has the operations after `sums`
  // After the actions: [frees, sums) what was sent goes back; [sums, norm) sums over replicas are completed;
  // the norm; the rest updates weights.
  int32_t frees = 0, sums = 0, norm = 0;
  std::vector<std::string> layers, units;  // names, of the rank's shape

  std::span<const Op> span(int32_t begin, int32_t end) const {
    return std::span(ops).subspan(size_t(begin), size_t(end - begin));
  }
  std::span<const Op> of(const ActionOps& a) const { return span(a.begin, a.end); }
  std::span<const Op> frees_ops() const { return span(frees, sums); }
  std::span<const Op> sums_ops() const { return span(sums, norm); }
  std::span<const Op> update_ops() const { return span(norm + 1, int32_t(ops.size())); }
};

// Requires: a program by unit. Throws Error naming the operation if it waits for nothing that is in flight,
// or if a pass uses weights that have not arrived. Likewise if gathered weights, gradients or messages are
// not freed, or freed twice.
void check_program(const Program&, const RankShape&);
// Requires: the programs of all pipeline ranks. Throws Error naming rank and operation if both ends of a
// message disagree, or if ranks wait for each other for ever.
void check_messages(std::span<const Program>);

std::string to_text(const Program&, const Op&);
// One line per operation, numbered, under its action.
std::string to_text(const Program&);

}  // namespace trireme
