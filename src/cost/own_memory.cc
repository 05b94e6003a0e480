#include "cost/own_memory.h"

#include <algorithm>
#include <cmath>

#include "cost/flops.h"
#include "cost/own_block.h"
#include "cost/pipeline_layers.h"
#include "cost/schedule_held.h"

namespace trireme {
namespace {

constexpr double kWeight = 2, kWire = 2;  // bytes of a number, in 16 bits
constexpr double kFlat = 4096;            // elements of which shares are whole numbers (tensor/param.h)
constexpr double kBucket = 25e6;          // layout.bucket_mb

// Are weight gradients actions of their own?
bool splits_weights(PipelineOrder o) {
  return o != PipelineOrder::one_f_one_b && o != PipelineOrder::gpipe && o != PipelineOrder::dualpipe_v;
}

// Ranks that have the same parameters, and how many of them divide their state.
struct Owners {
  int zero = 0;
  double all = 1, shards = 1;
};
Owners owners_of(const StepCase& c) {
  const double all = double(c.dp * c.cp);
  if (all == 1) return {};
  if (c.zero == 0) return {0, all, 1};
  return {c.zero, all, c.zero == 3 && c.shards > 0 ? std::min(double(c.shards), all) : all};
}
// Of experts where these are apart from the rest: in one group, whatever the rest's.
Owners expert_owners(const StepCase& c) {
  const int zero = owners_of(c).zero;
  const double all = double(c.dp * c.cp * c.tp / c.ep);
  return {zero, all, zero > 0 ? all : 1};
}

// What is gathered and summed as one.
struct Flat {
  double elements = 0;  // padded
  Owners by;
  bool gathers() const { return by.zero == 3 && by.shards > 1; }
  bool slots() const { return by.zero >= 2 && by.shards > 1; }
  double gathered() const { return gathers() ? kWeight * elements : 0; }
};
Flat flat_of(double elements, const Owners& by) {
  if (by.shards > 1) elements = std::ceil(std::ceil(elements / kFlat) / by.shards) * by.shards * kFlat;
  return {elements, by};
}

// A block's parameters, and those of its experts where they are apart.
struct FlatBlock {
  Flat dense, experts;
  double elements() const { return dense.elements + experts.elements; }
};

class Sharded {
 public:
  Sharded(const StepCase& c, const PipelinePlace& p)
      : c_(c), all_(owners_of(c)), of_experts_(expert_owners(c)) {
    const ModelSpec& m = c.model;
    apart_ = c.ep > 1 || c.tp > 1;
    const double expert_blocks = double(m.expert_blocks());
    with_ =
        m.expert_step > 1 ? expert_blocks / double(m.layers) * p.layers : std::min(expert_blocks, p.layers);
    without_ = p.layers - with_;
    if (with_ > 0) with = block(true);
    if (without_ > 0) plain = block(false);
    // A tied table on one rank is there once; on two both have it.
    embedding_here_ = p.rank == 0,
    head_here_ = c.pp == 1 || (is_v(c.order) ? p.rank == 0 : p.rank == c.pp - 1);
    tied_here_ = m.tied && embedding_here_ && head_here_;
    if (embedding_here_) embedding = flat_of(double(embedding_parameters(m, c.tp)), all_);
    if (head_here_) {
      double own = double(head_parameters(m, c.tp));
      if (m.tied && !tied_here_) own += double(embedding_parameters(m, c.tp));
      head = flat_of(own, all_);
    }
  }

  double states() const {
    return with_ * (of(with.dense) + of(with.experts)) + without_ * of(plain.dense) + of(embedding) +
           of(head) + router_biases() + tables();
  }
  // Where experts are, their block is the larger one.
  const FlatBlock& block() const { return with_ > 0 ? with : plain; }
  double wire(const Flat& f) const { return f.by.all > 1 ? kWire * f.elements : 0; }
  double slot(const Flat& f) const { return f.slots() ? c_.grad_stored * f.elements : 0; }
  bool tied_here() const { return tied_here_; }
  bool embedding_here() const { return embedding_here_; }
  bool head_here() const { return head_here_; }
  int zero() const { return all_.zero; }
  bool apart() const { return apart_ && with_ > 0; }

  FlatBlock with, plain;
  Flat embedding, head;

 private:
  FlatBlock block(bool experts) const {
    const ModelSpec& m = c_.model;
    double all = double(block_parameters(m, c_.tp, experts)), apart = 0;
    if (experts) {
      const double matrices = double(m.experts) * 3 * double(m.hidden) * double(m.moe_ffn);
      all -= matrices, apart = matrices / double(c_.ep);
    }
    if (!apart_) return {flat_of(all + apart, all_), {}};
    return {flat_of(all, all_), flat_of(apart, of_experts_)};
  }
  double of(const Flat& f) const {
    const double part = f.elements / f.by.shards;
    return kWeight * (f.by.zero == 3 ? part : f.elements) +
           c_.grad_stored * (f.by.zero >= 2 ? part : f.elements) +
           (c_.offload > 0 ? 0 : c_.keeping.optimizer * part);
  }
  double router_biases() const { return c_.model.router_bias ? 4 * with_ * double(c_.model.experts) : 0; }
  // Of rotary positions, f32; and sums of squares of 4,096 elements each, f64.
  double tables() const {
    const ModelSpec& m = c_.model;
    return m.positions == "rope" ? 4 * double(std::max(m.max_positions, c_.seq) * m.rope_dim()) : 0;
  }

  const StepCase& c_;
  Owners all_, of_experts_;
  double with_ = 0, without_ = 0;
  bool apart_ = false, embedding_here_ = false, head_here_ = false, tied_here_ = false;
};

}  // namespace

OwnStates own_states(const StepCase& c, const PipelinePlace& p) {
  const Sharded s(c, p);
  OwnStates o;
  o.states = s.states();
  const auto at = [&](OwnPlace k) -> double& { return o.passing[size_t(k)]; };
  const FlatBlock& b = s.block();
  // Weights of a block in use, and of what is gathered ahead: the next block's first unit. Experts over ranks
  // compute rows again for their weight gradient, for which theirs are kept; of an action of its own those of
  // the next block's come too.
  const bool split = splits_weights(c.order);
  const double experts = b.experts.gathered(), ahead = b.dense.gathered(), block = ahead + experts;
  const double weight = c.ep == 1 ? ahead : split ? 2 * experts : block + ahead;
  const double table = s.tied_here() ? s.embedding.gathered() : 0;
  const double head = s.head.gathered(), embedding = s.tied_here() ? 0 : s.embedding.gathered();
  at(OwnPlace::head_input) = table + head + ahead;
  for (const OwnPlace k :
       {OwnPlace::head_weight, OwnPlace::head_sum, OwnPlace::behind_sum, OwnPlace::block_sum})
    at(k) = table + ahead;
  for (const OwnPlace k : {OwnPlace::behind_input, OwnPlace::next_input, OwnPlace::block_input})
    at(k) = table + block + ahead;
  at(OwnPlace::behind_weight) = at(OwnPlace::block_weight) = table + weight;
  at(OwnPlace::first_input) = table + block + embedding;
  at(OwnPlace::first_weight) = table + (c.ep == 1 ? 0 : block) + embedding;
  at(OwnPlace::embedding) = at(OwnPlace::embedding_sum) = table + embedding + ahead;
  if (s.zero() >= 2) {
    // Whole gradients of what is summed now, and at most two sums on their way, of which one is waited for
    // before more memory is taken. Of a block's units the dense one goes last.
    const bool two_units = b.experts.slots();
    const double sum = s.wire(b.dense), slot = s.slot(b.dense) + s.slot(b.experts);
    const double first_sum = two_units ? s.wire(b.experts) : sum;
    const double tied = s.tied_here() ? s.slot(s.embedding) : 0;
    // Of the backward pass before: its last two sums.
    const bool again = c.order != PipelineOrder::gpipe && c.microbatches > c.pp;
    const double embedding_sum = s.embedding_here() ? s.wire(s.embedding) : sum;
    const double before = again ? embedding_sum : 0,
                 two_before = again ? before + (s.embedding_here() ? sum : first_sum) : 0;
    const double behind = s.head_here() ? s.wire(s.head) : before;
    const double leaves = c.cast ? first_sum : 0;
    at(OwnPlace::head_input) += two_before;
    at(OwnPlace::head_weight) += before + s.slot(s.head) + tied;
    at(OwnPlace::head_sum) += before + s.slot(s.head) + tied + (c.cast ? s.wire(s.head) : 0);
    at(OwnPlace::behind_input) += (s.head_here() ? before + behind : two_before) + tied;
    at(OwnPlace::behind_weight) += behind + slot + tied;
    at(OwnPlace::behind_sum) += behind + slot + leaves + tied;
    at(OwnPlace::next_input) += (two_units ? first_sum : behind) + sum + tied;
    at(OwnPlace::block_input) += first_sum + sum + tied;
    at(OwnPlace::block_weight) += sum + slot + tied;
    at(OwnPlace::block_sum) += sum + slot + leaves + tied;
    at(OwnPlace::first_input) += first_sum + sum + tied;
    at(OwnPlace::first_weight) += sum + slot + tied;
    at(OwnPlace::embedding) += sum + s.slot(s.embedding);
    at(OwnPlace::embedding_sum) += sum + s.slot(s.embedding) + (c.cast ? s.wire(s.embedding) : 0);
  } else if (c.cast) {
    // Buckets of neighbours without ZeRO, units with it; two at most.
    const auto bucket = [&](double wire) {
      return s.zero() == 0 && wire > 0 ? std::max(wire, kBucket) : wire;
    };
    const double dense = bucket(s.wire(b.dense)), experts = s.apart() ? bucket(s.wire(b.experts)) : dense;
    const double two = experts > 0 ? dense + experts : 2 * dense;
    const double head_wire = bucket(s.wire(s.head));
    at(OwnPlace::last_head) = head_wire;
    at(OwnPlace::last_behind) = head_wire;
    at(OwnPlace::last_next) = s.apart() ? two : head_wire + dense;
    at(OwnPlace::last_block) = at(OwnPlace::last_first) = two;
    at(OwnPlace::last_embedding) = dense + bucket(s.wire(s.embedding));
  }
  return o;
}

namespace {

// Of a rank's blocks, on average over those with experts and without; at most.
OwnBlock mean_block(const StepCase& c) {
  const double share = double(c.model.expert_blocks()) / double(c.model.layers);
  if (share == 0 || share == 1) return own_block(c, share > 0);
  const OwnBlock with = own_block(c, true), without = own_block(c, false);
  OwnBlock b;
  b.kept = share * with.kept + (1 - share) * without.kept;
  b.waiting = share * with.waiting + (1 - share) * without.waiting;
  // Beside its own mean.
  b.input = b.kept + std::max(with.input - with.kept, without.input - without.kept);
  b.weight = b.waiting + std::max(with.weight - with.waiting, without.weight - without.waiting);
  b.between = with.between;
  return b;
}

}  // namespace

OwnHeld own_held(const StepCase& c, const FitValues& f, const PipelinePlace& p) {
  OwnHeld o;
  o.base = f[size_t(Fit::base)];
  const OwnBlock b = mean_block(c);
  const OwnHead head = own_head(c);
  const bool head_here = c.pp == 1 || (is_v(c.order) ? p.rank == 0 : p.rank == c.pp - 1);
  const bool embedding_here = p.rank == 0;
  const bool split = splits_weights(c.order);
  const auto reach = [&](OwnPlace k, double activations, double logits) {
    OwnHeld::At& at = o.at[size_t(k)];
    if (activations + logits > at.activations + at.logits) at = {activations, logits};
  };
  // Blocks that a backward pass goes through.
  double own = 0, first = 0, second = 0, third = 0;
  const auto goes_through = [&](double n) {
    own = n;
    first = n - 1;
    second = std::min(first, 1.0);
    third = std::min(first, 2.0);
  };
  goes_through(p.layers / double(c.chunks));
  // A backward pass that begins at so many bytes: blocks one behind the other. input, weight: of a block
  // beside what is held of it; done: what is held more when a block is behind it.
  bool to_first = true;  // as far as the embedding
  const auto blocks = [&](double held, double logits, double input, double weight, double done, bool last) {
    const double most = std::max(input, weight);
    reach(OwnPlace::behind_input, held + input, logits);
    reach(OwnPlace::behind_weight, held + weight, logits);
    reach(OwnPlace::behind_sum, held + done + 3 * b.between, logits);
    reach(OwnPlace::next_input, held + second * done + input, logits);
    reach(OwnPlace::block_input, held + third * done + input, logits);
    reach(OwnPlace::block_weight, held + second * done + weight, logits);
    reach(OwnPlace::block_sum, held + (second + 1) * done + 3 * b.between, logits);
    if (last) {
      reach(OwnPlace::last_behind, held + most, logits);
      reach(OwnPlace::last_next, held + second * done + most, logits);
      reach(OwnPlace::last_block, held + third * done + most, logits);
    }
    if (!embedding_here || !to_first) return;
    reach(OwnPlace::first_input, held + first * done + input, logits);
    reach(OwnPlace::first_weight, held + first * done + weight, logits);
    if (last) reach(OwnPlace::last_first, held + first * done + most, logits);
    const double embedding = held + own * done + own_embedding(c);
    reach(OwnPlace::embedding, embedding, logits);
    reach(OwnPlace::embedding_sum, embedding, logits);
    if (last) reach(OwnPlace::last_embedding, embedding, logits);
  };
  const auto pass = [&](double held, double logits, bool waits, bool last) {
    const double others = std::max(0.0, logits - head.kept);  // of other microbatches
    const double input = b.input - b.kept, weight = b.weight - b.kept;
    if (logits > 0) {
      if (!waits) reach(OwnPlace::head_input, held, logits + head.input);
      reach(OwnPlace::head_weight, held, logits + head.weight);
      reach(OwnPlace::head_sum, held + 2 * b.between, others);
      if (last) reach(OwnPlace::last_head, held + 2 * b.between, others);
    }
    if (waits) {
      // The end of an input gradient, which made the last one wait; then weight gradients.
      reach(head_here ? OwnPlace::head_input : OwnPlace::behind_input, held + b.input - b.waiting, logits);
      blocks(held, others, b.weight - b.waiting, b.weight - b.waiting, -b.waiting, last);
    } else if (split) {
      reach(head_here ? OwnPlace::head_input : OwnPlace::behind_input, held + input, logits);
    } else {
      blocks(held, others, input, weight, -b.kept, last);
    }
  };
  const double n = double(c.chunks), stages = double(c.pp);
  const bool interleaved = c.order == PipelineOrder::one_f_one_b && c.chunks > 1;
  const PipelineBlocks cut(c);
  // One message that comes and one that goes.
  const double messages = c.pp > 1 && c.order != PipelineOrder::gpipe ? 2 * b.between : 0;
  // Of one group of microbatches the other chunks have gone when the first one's backward passes begin.
  to_first = !interleaved || c.microbatches > c.pp;
  for (const HeldMoment& at :
       is_v(c.order) ? HeldMoments() : held_moments(c.order, c.pp, c.chunks, c.microbatches, p.rank)) {
    const double others = (at.before + at.waiting) * own_batch(c) + messages;
    const double before = interleaved ? cut.in_flight(p.rank, at.before * n) : p.held_layers * at.before;
    const double held = before * b.kept + p.held_layers * at.waiting * b.waiting + others;
    pass(held, at.logits * head.kept, at.waiting > 0, c.pp == 1);
  }
  if (is_v(c.order)) {
    // Rank 0 has more blocks on the way down, because the way up ends with the head.
    const double down = p.rank == 0 ? p.held_layers / 2 : p.layers / 2;
    const std::array<double, 2> of_chunk = {down, p.layers - down};
    const auto moment = [&](const CountedMoment& at) {
      double held = messages, logits = 0;
      for (size_t k = 0; k < 2; k++) {
        held += of_chunk[k] * (at.before[k] * b.kept + at.waiting[k] * b.waiting);
        held += (at.before[k] + at.waiting[k]) * own_batch(c) / 2;
      }
      if (head_here) logits = (at.before[1] + at.waiting[1]) * head.kept;
      const bool of_head = head_here && at.chunk == 1;
      const double others = of_head ? logits - head.kept : logits;  // other microbatches'
      const OwnPlace inputs = of_head ? OwnPlace::head_input : OwnPlace::behind_input;
      const double input = b.input - b.kept, weight = b.weight - b.kept, done = b.weight - b.waiting;
      goes_through(of_chunk[size_t(at.chunk)]);
      to_first = at.chunk == 0;
      using At = CountedMoment::At;
      if (of_head && (at.at == At::backward || at.at == At::input))
        reach(OwnPlace::head_input, held, logits + head.input);
      if (of_head && (at.at == At::backward || at.at == At::weight)) {
        reach(OwnPlace::head_weight, held, logits + head.weight);
        reach(OwnPlace::head_sum, held + 2 * b.between, others);
      }
      if (at.at == At::backward) blocks(held, others, input, weight, -b.kept, false);
      if (at.at == At::weight) blocks(held, others, done, done, -b.waiting, false);
      if (at.at == At::input) reach(inputs, held + input, logits);
      if (at.at == At::after_input) reach(inputs, held + b.input - b.waiting, logits);
    };
    // The last rank stands for all that have no more blocks, and rank 1 for those that have.
    const std::vector<std::vector<CountedMoment>>& ranks = counted_moments(c.order, c.pp, c.microbatches);
    const double fewest = cut.own(c.pp - 1);
    for (int64_t r = 0; r < c.pp; r++) {
      const bool meant = p.rank == 0 || r == 0 ? r == p.rank : (cut.own(r) > fewest) == (p.layers > fewest);
      if (!meant) continue;
      for (const CountedMoment& at : ranks[size_t(r)]) moment(at);
    }
    goes_through(p.layers / 2);
    to_first = true;
  }
  if (!to_first) {
    to_first = true;
    const double group = double(c.microbatches);
    pass(cut.in_flight(p.rank, group) * b.kept + group / n * own_batch(c) + messages, 0, false, true);
    to_first = false;
  }
  // The last microbatch is alone when it comes to its sums; of several chunks the last one comes first, with
  // the others of the last group behind it.
  if (interleaved) {
    const double last = std::min((n - 1) * stages + 1, n * double(c.microbatches));
    pass(cut.in_flight(p.rank, last) * b.kept + last / n * own_batch(c) + messages, head_here ? head.kept : 0,
         false, true);
  } else if (c.pp > 1) {
    pass(own * (split ? b.waiting : b.kept) + own_batch(c), head_here ? head.kept : 0, split, true);
  }
  return o;
}

StepMemory own_fullest(const OwnStates& s, const OwnHeld& h) {
  StepMemory m;
  for (size_t k = 0; k < kOwnPlaces; k++) {
    const OwnHeld::At& at = h.at[k];
    if (at.activations < 0) continue;
    const double total = s.states + at.activations + at.logits + s.passing[k] + h.base;
    if (total <= m.total) continue;
    m = {.states = s.states,
         .activations = at.activations,
         .gradients = s.passing[k],
         .logits = at.logits,
         .base = h.base,
         .total = total};
  }
  return m;
}

StepMemory own_rank_memory(const StepCase& c, const FitValues& f, const PipelinePlace& p) {
  return own_fullest(own_states(c, p), own_held(c, f, p));
}

}  // namespace trireme
