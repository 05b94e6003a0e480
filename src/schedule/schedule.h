// A training step as data: what each pipeline rank does, in order. The runtime runs it, the simulator replays
// it, and a text file holds it. Generators emit compute only; passes add the rest.
//
// Stages are parts of the model in the order data travels; a rank holds one or more of them, whole. `p`
// pipeline ranks, `m` microbatches a step.
#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace trireme {

enum class Act : uint8_t {
  F,           // forward
  B,           // backward, both gradients: I then W
  I,           // gradient of the input: the critical path
  W,           // gradient of the weights
  R,           // recompute what the forward did not keep
  SendF,       // activations of `stage` to the next stage
  RecvF,       // activations that `stage` reads, from the stage before
  SendB,       // input gradient of `stage` to the stage before
  RecvB,       // output gradient that `stage` reads, from the next stage
  Unshard,     // see to it that the stage's weights are gathered (ZeRO 3)
  Reshard,     // let the gathered weights go
  ReduceGrad,  // sum the stage's gradients over replicas
  Step,        // update the weights of all of the rank's stages
};

// mb is -1 where the kind has no microbatch (Unshard and after). Actions of a rank that share a nonzero
// overlap id are issued together. Step covers the rank; its stage is the rank's first.
struct Action {
  Act kind = Act::F;
  int16_t stage = 0;
  int16_t mb = -1;
  uint16_t overlap = 0;
  bool operator==(const Action&) const = default;
};
bool has_microbatch(Act);
std::string_view name_of(Act);

// Which rank has which stages is said by its actions: all of a microbatch in a stage are on one rank, and the
// stage is on `copies` ranks. Copies (dualpipe: 2) have the same weights, each its own microbatches, and add
// their gradients up once a step, before the norm (runtime/sharing.cc).
struct Schedule {
  int stages = 0, microbatches = 0;
  std::vector<std::vector<Action>> ranks;  // [pipeline rank][step]
  int copies = 1;
  bool operator==(const Schedule&) const = default;
};

// By stage, the ranks that hold it, in ascending order.
std::vector<std::vector<int>> holders_of(const Schedule&);

// Text: one line a rank, tokens "<stage><kind><mb>" as 0F0, 1W3, 0SendF2, "<stage><kind>" as 0ReduceGrad,
// 0Step, and "@<id>" behind a token for an overlap id; "copies 2" on a line of its own where copies is not 1.
// parse(to_text(s)) == s. The parser skips blank lines and what follows a '#'; errors (request) name line,
// token and what is right.
std::string to_text(const Action&);
std::string to_text(const Schedule&);
Schedule parse_schedule(std::string_view);

// Throws one Error (request) at the first thing that is missing, doubled, out of order or can never run, with
// the steps x ranks grid, "<-- here". Sends never block, receives do. Returns warnings, one line each:
// schedules whose weight gradients do not add up in ascending microbatch order lose bit-identity with the
// others (DESIGN.md 4).
std::vector<std::string> validate(const Schedule&);

// Generators: compute only, any p >= 1 and m >= 1 (dualpipe: p even). Interleaved and V schedules have
// pp * chunks stages, V schedules two chunks a rank: stage r and stage 2 pp - 1 - r on rank r.
Schedule gpipe(int pp, int microbatches);
Schedule one_f_one_b(int pp, int microbatches);
Schedule interleaved(int pp, int chunks, int microbatches);
Schedule zb_h1(int pp, int microbatches);
Schedule zb_h2(int pp, int microbatches);
Schedule zb_v(int pp, int microbatches);
Schedule v_half(int pp, int microbatches);
Schedule v_min(int pp, int microbatches);
Schedule dualpipe(int pp, int microbatches);
Schedule dualpipe_v(int pp, int microbatches);
// By the name in a run file, layout.schedule; errors (request) name the key.
Schedule make_schedule(std::string_view name, int pp, int chunks, int microbatches);
std::span<const std::string_view> schedule_names();
// Chunks that the schedule of that name has where nothing else is said: 2 of interleaved and V, else 1.
int default_chunks(std::string_view name);

// Passes are applied in this order: add_recompute, add_transfers, add_step, add_zero.

// Pass: R before each backward of the stages given (none given: of all). It needs nothing from other ranks,
// so it runs while the output gradient is still on its way (GPipe section 2.3). together: issued with the
// backward instead, behind its message: layer by layer, so that one layer's activations are there at a time.
Schedule add_recompute(Schedule, std::span<const int> stages = {}, bool together = false);

// Pass: messages between neighbouring stages of different ranks: a receive right before the action that reads
// it, a send right behind the one that makes it; around actions that are issued together, all receives before
// and all sends behind. None where neighbours share a rank.
Schedule add_transfers(Schedule);

// Pass: ReduceGrad of each stage right after its last weight gradient, and one Step at the end of each rank.
Schedule add_step(Schedule);

// Pass over a schedule with its steps, for several replicas. ZeRO 0 and 1: the ReduceGrad of a stage is
// issued together with its last weight gradient. 2: one with every weight gradient. 3: besides, Unshard with
// every action that uses weights (F, B, I, R) and Reshard behind it; not behind F unless
// reshard_after_forward. weights_in_w: W uses weights too (experts over ranks, which may compute rows again).
Schedule add_zero(Schedule, int zero, bool reshard_after_forward = true, bool weights_in_w = false);

// The rank of each stage, where each is on one.
std::vector<int> rank_of_stages(const Schedule&);

// By rank and action: for SendF and SendB, from which action of the rank on what was sent has surely been
// read by the other side, in whatever order ranks come to run; their number if only the step's end says so.
// So a sender's buffer goes back at a place of its program, not at a moment. Of other kinds: their number.
std::vector<std::vector<int>> send_ends(const Schedule&);

}  // namespace trireme
