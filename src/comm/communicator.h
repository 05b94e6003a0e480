// Collectives of one group of ranks: a checked and counted front over backends (thread, mpi, meta, nccl).
//
// Every rank of the group calls the same operations in the same order with the same shapes; each call issues
// work on a stream and returns. Tensors belong to the caller until the stream has passed the call. Sums of
// bf16 and f16 accumulate in f32 and round once. By default the owner of an element adds the ranks' values in
// rank order ("ordered"), so a result does not depend on backend, bucket or algorithm; the ring, halving and
// hierarchical orders are "fast" (DESIGN.md section 4).
#pragma once
#include <array>
#include <cstdint>
#include <span>
#include <string_view>

#include "tensor/stream.h"
#include "tensor/tensor.h"

namespace trireme {

enum class Reduce : uint8_t { sum, max };

// All tensors are contiguous and of one dtype: f64, f32, bf16, f16, i64, i32 (u16 and u8 too where nothing is
// added). "Elements" are counted flat; shapes beyond that do not matter. NaN is the largest value.
struct AllReduceArgs {
  Tensor buf;  // in place
  Reduce op = Reduce::sum;
};
// full holds size() equal shards in rank order. shard may be the rank's own part of full.
struct AllGatherArgs {
  Tensor shard, full;
};
// full holds size() equal parts in rank order; what it holds afterwards is undefined (the fast orders keep
// partial sums there). shard may be the rank's own part of full.
struct ReduceScatterArgs {
  Tensor full, shard;
  Reduce op = Reduce::sum;
};
// send and recv are [rows, ...] with rows of equal size, ordered by peer; counts are of rows, one per rank.
// The rank's own rows are copied. send and recv do not overlap.
struct AllToAllArgs {
  Tensor send, recv;
  std::span<const int64_t> send_rows, recv_rows;
};
struct BroadcastArgs {
  Tensor buf;
  int root = 0;  // rank in the group
};
struct ReduceArgs {
  Tensor buf;  // the root's holds the result; the others' are left as they were
  int root = 0;
  Reduce op = Reduce::sum;
};
// One batch is issued together and done when all of it is; the k-th send to a peer meets that peer's k-th
// receive from here, whatever their streams. A send may wait for its receive, so what two ranks send each
// other at the same time belongs in one batch, or on two streams. Only the peers named take part.
struct P2p {
  Tensor buf;
  int peer = 0;  // rank in the group
  bool send = false;
};
struct P2pArgs {
  std::span<const P2p> ops;
};

enum class Collective : uint8_t {
  all_reduce,
  all_gather,
  reduce_scatter,
  all_to_all,
  broadcast,
  reduce,
  p2p,
  barrier,
  count
};
inline constexpr size_t kCollectives = size_t(Collective::count);
std::string_view name_of(Collective);

// Bytes that `rank` of a group of `size` moves between itself and others, each byte counted once: what it
// sends where values are added up or handed over, what it receives where they are gathered. So it is the same
// for every algorithm (ordered, ring, halving, hierarchical), (size - 1) / size of the buffer for each half
// of an all_reduce, and all_reduce = reduce_scatter + all_gather exactly; pieces of n elements are as
// piece_of() cuts.
int64_t wire_bytes(const AllReduceArgs&, int size, int rank);
int64_t wire_bytes(const AllGatherArgs&, int size, int rank);
int64_t wire_bytes(const ReduceScatterArgs&, int size, int rank);
int64_t wire_bytes(const BroadcastArgs&, int size, int rank);  // of the root: (size - 1) x buf
int64_t wire_bytes(const ReduceArgs&, int size, int rank);     // of all but the root: buf
int64_t wire_bytes(const AllToAllArgs&, int size, int rank);   // what goes to other ranks
int64_t wire_bytes(const P2pArgs&, int size, int rank);        // what is sent

// Elements of an all_reduce that `rank` owns: as even as whole elements allow, the first ones longer.
Range piece_of(int64_t numel, int size, int rank);

struct CommCount {
  int64_t calls = 0, payload = 0, wire = 0;  // bytes of the rank's full buffer; wire_bytes()
  bool operator==(const CommCount&) const = default;
};
using CommCounts = std::array<CommCount, kCollectives>;

// What a call was, for observers: traces, profiles on meta, checks.
struct CommCall {
  Collective kind = Collective::barrier;
  std::string_view group;      // "dp", "shard", "world": what the group is for
  std::string_view algorithm;  // "ordered", "ring", ...
  DType dtype = DType::f32;
  int64_t numel = 0;  // of the full buffer; all_to_all: of send; p2p: of all its buffers
  int64_t payload = 0, wire = 0;
  int64_t sequence = 0;  // of this communicator's calls, from 0
  Stream stream;
  int root = 0;  // of broadcast and reduce
  Reduce op = Reduce::sum;
  // Of a p2p of one message: the rank in the group at its other end, and which end this is.
  int peer = -1;
  bool send = false;
};
class CommObserver {
 public:
  virtual ~CommObserver() = default;
  virtual void issued(const CommCall&) = 0;  // on the rank's own thread, in program order
  // Where the backend knows: when its work began, when the last peer had arrived, when it ended (steady
  // clock, ns). Called on the stream's thread, so for several streams at once.
  virtual void done(const CommCall&, int64_t begin_ns, int64_t met_ns, int64_t end_ns) {}
  // The call waits for peers; called several times per second while it does, on the thread that waits.
  virtual void waiting(const CommCall&) {}
};

// Thread-compatible: one rank drives it from its own thread. Errors of work on a stream appear, as Error, at
// the next wait or sync of that stream, or at the next call here.
class Communicator {
 public:
  virtual ~Communicator() = default;
  virtual int rank() const = 0;  // in the group
  virtual int size() const = 0;
  virtual std::string_view group() const = 0;
  // How this communicator does such an operation: "ordered", "ring", "halving", "hierarchical"; "direct"
  // where nothing is added.
  virtual std::string_view algorithm(Collective, int64_t payload) const = 0;

  void all_reduce(const AllReduceArgs&, Stream);
  void all_gather(const AllGatherArgs&, Stream);
  void reduce_scatter(const ReduceScatterArgs&, Stream);
  void all_to_all(const AllToAllArgs&, Stream);
  void broadcast(const BroadcastArgs&, Stream);
  void reduce(const ReduceArgs&, Stream);
  void p2p(const P2pArgs&, Stream);
  void barrier(Stream);

  CommObserver* observe(CommObserver* o);  // returns the one before; only while no work is under way
  const CommCounts& counts() const { return counts_; }
  void restart_counts() { counts_ = {}; }
  // Bytes that the backend itself counted where it copied or sent, of work that is done; then it equals the
  // sum of counts()' wire since the start.
  virtual int64_t moved_bytes() const = 0;

 private:
  virtual void do_all_reduce(const AllReduceArgs&, Stream, const CommCall&) = 0;
  virtual void do_all_gather(const AllGatherArgs&, Stream, const CommCall&) = 0;
  virtual void do_reduce_scatter(const ReduceScatterArgs&, Stream, const CommCall&) = 0;
  virtual void do_all_to_all(const AllToAllArgs&, Stream, const CommCall&) = 0;
  virtual void do_broadcast(const BroadcastArgs&, Stream, const CommCall&) = 0;
  virtual void do_reduce(const ReduceArgs&, Stream, const CommCall&) = 0;
  virtual void do_p2p(const P2pArgs&, Stream, const CommCall&) = 0;
  virtual void do_barrier(Stream, const CommCall&) = 0;

  CommCall issue(Collective, DType, int64_t numel, int64_t payload, int64_t wire, Stream, int root = 0,
                 Reduce = Reduce::sum, const P2p* only = nullptr);

 protected:
  CommObserver* observer_ = nullptr;

 private:
  CommCounts counts_{};
  int64_t sequence_ = 0;
};

}  // namespace trireme
