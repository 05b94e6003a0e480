// The groups of one rank: communicators along the axes of a mesh, made when first asked for.
#pragma once
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "comm/communicator.h"
#include "device/device.h"
#include "mesh/mesh.h"

namespace trireme {

// A rank's way to its peers; one per rank and world.
class CommFactory {
 public:
  virtual ~CommFactory() = default;
  virtual int rank() const = 0;  // in the world
  virtual int world() const = 0;
  // A communicator of these ranks of the world (ascending, this one among them). Collective over them, in the
  // same order on each; `name` tells the group in traces and errors ("dp", "shard").
  virtual std::unique_ptr<Communicator> split(std::span<const int> ranks, std::string_view name) = 0;
  // This rank has failed: peers that wait for it, now or later, get an Error that names it and says why.
  virtual void fail(std::string_view why) = 0;
  // Where small host-side agreements travel: all ranks, tensors in host memory on any device.
  virtual Communicator& control() = 0;
};

class CommSet {
 public:
  CommSet(CommFactory&, Mesh);
  CommSet(const CommSet&) = delete;
  const Mesh& mesh() const { return mesh_; }
  int rank() const { return factory_.rank(); }
  int world() const { return factory_.world(); }
  // The group of this rank along the axes. Every rank asks for the same groups in the same order.
  Communicator& along(Axes);
  // A second one of the same ranks, whose messages and collectives have an order of their own.
  Communicator& along_again(Axes);
  // Parts of a group: `parts` = how many neighbours form one (hybrid sharding). inner: the neighbours;
  // across: those with the same place in each part.
  Communicator& inner(Axes, int parts);
  Communicator& across(Axes, int parts);
  Communicator& control() { return factory_.control(); }
  // Some of the group along one axis, by their coordinates; this rank is one of them, and only they ask.
  Communicator& some(Axes, std::span<const int> coords, std::string_view name);
  CommFactory& factory() { return factory_; }
  void observe(CommObserver*);  // of all groups, those made later too
  CommCounts counts() const;    // of all groups, control apart
  int64_t moved_bytes() const;  // likewise, as backends counted

 private:
  Communicator& get(const std::vector<int>& ranks, const std::string& name, bool again = false);
  CommFactory& factory_;
  Mesh mesh_;
  CommObserver* observer_ = nullptr;
  std::map<std::pair<std::vector<int>, bool>, std::unique_ptr<Communicator>> groups_;
};

// shard: the ranks that divide a unit; replicas: those that hold the same part. Each null when it has one
// rank.
struct SyncGroups {
  Communicator *shard = nullptr, *replicas = nullptr;
  bool alone() const { return !shard && !replicas; }
};

// A world of one rank. Copies (all_gather, reduce_scatter, all_to_all) go through the device where there is
// one, on the call's stream; without a device tensors are host memory and every call is done when it returns.
std::unique_ptr<CommFactory> make_single(Device* = nullptr);

// ---- small agreements between ranks, in host memory; they return when done ----
int64_t agree_max(Communicator&, int64_t);
int64_t agree_sum(Communicator&, int64_t);
// Every rank's value, in rank order: bytes of equal length on each.
void gather_bytes(Communicator&, std::span<const std::byte> mine, std::span<std::byte> all);
// The root's text, of any length.
std::string broadcast_text(Communicator&, std::string, int root = 0);
// Every rank's text, of any length, in rank order.
std::vector<std::string> gather_texts(Communicator&, const std::string&);

}  // namespace trireme
