// What a rank says to its neighbours in the pipeline: activations forward, gradients of them backward.
#pragma once
#include <vector>

#include "comm/comm_set.h"
#include "device/device.h"
#include "schedule/holders.h"
#include "tensor/arena.h"

namespace trireme {

// Each direction has a communicator and to each neighbour two streams of its own, so a message waits for
// none but those before it on the same way; the k-th that is sent along a way is the k-th received there, so
// both sides must pass a border in the same order of microbatches and chunks.
class PipelineComm {
 public:
  enum Way : uint8_t { forward, backward };
  struct Lane {
    Stream stream;
    std::string name;  // "pp forward to 2"
  };

  // Schedules of whole steps (schedules_of), which differ in their microbatches alone. Every rank gives the
  // same. Collective over all ranks.
  PipelineComm(std::span<const Schedule>, CommSet&, Device&);
  PipelineComm(const PipelineComm&) = delete;
  ~PipelineComm();

  int rank() const { return rank_; }
  int ranks() const { return int(streams_[0].size()) / 2; }
  // Where a microbatch is in a stage.
  int rank_of(int stage, int mb) const { return holders_.rank_of(stage, mb); }
  const Holders& holders() const { return holders_; }

  // The tensor is kept until free(number), when the other side has surely read it.
  void send(Way, int to, Owned, int number);
  Event receive(Way, int from, const Tensor& into);
  void free(int number);
  void free_all();

  std::span<const Lane> lanes() const { return lanes_; }
  double waited_s() const { return waited_s_; }
  void wait(Event);  // compute comes after it

 private:
  struct Sent {
    Owned tensor;
    Event read;
    int number;
  };
  void make_stream(Way, bool send, int peer);
  Stream stream(Way, bool send, int peer) const;
  void start(Way, const P2p&, Stream);
  void make_streams(std::span<const Action>);

  Holders holders_;
  int rank_;
  Device& device_;
  Stream compute_;
  Communicator* comms_[2];
  std::vector<Stream> streams_[2];  // by way: to each peer, then from each; id 0: none
  std::vector<Lane> lanes_;
  std::vector<Sent> sent_;
  double waited_s_ = 0;
};

}  // namespace trireme
