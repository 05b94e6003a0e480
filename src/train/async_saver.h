// Checkpoints that are written while training goes on.
//
// A save begins with a snapshot: what this rank answers for is copied into host memory of its own, taken at
// the first save and kept (as many bytes as the rank's file). That copy is all that training waits for. A
// thread then writes the rank's file; when all ranks' are written, one of rank 0 writes the manifest,
// publishes, reads back and prunes, by the same CheckpointWriter as any save, so a kill at any instant leaves
// the newest complete checkpoint whole. One save at a time: the next waits for the one before.
//
// Threads never talk to other ranks: what ranks agree on, they agree on between steps, on the training
// thread.
#pragma once
#include <memory>

#include "checkpoint/store.h"
#include "runtime/stage_runner.h"
#include "train/background.h"
#include "train/checkpointing.h"

namespace trireme {

// How a save ended; known on rank 0.
struct SaveEnd {
  int64_t step = 0;
  fs::path folder;  // published; empty: it failed, for this reason
  std::string error;
  Fault fault = Fault::run;  // the error's
  double write_s = 0;        // from the snapshot to the end
};

class AsyncSaver {
 public:
  // comms: null for one rank. The hook sees the phases of rank 0's saves, on the thread that they run on.
  AsyncSaver(const RunSpec&, CommSet* comms, PhaseHook, CompleteManifest = {});
  ~AsyncSaver();  // what is being written is written to its end where that takes no other rank

  // On all ranks, while no save is in progress. Copies, calls agree(step) and returns; what the runner holds
  // may then change. agree() compares replicas. It comes after the copy: a value that changed before the copy
  // differs between replicas then, and one that changes in the copy differs from the hash taken here.
  void save(const StageRunner&, int64_t step, const std::function<void(int64_t step)>& agree = {});
  // On all ranks, after each step: looks whether what is under way has come further.
  void poll();
  // On all ranks: waits for the last one.
  void finish();
  // Rank 0: saves that have ended since it was last asked, oldest first.
  std::vector<SaveEnd> ended() { return std::exchange(ended_, {}); }

  int64_t snapshot_bytes() const { return capacity_; }  // host memory held

 private:
  bool first() const { return !comms_ || comms_->rank() == 0; }
  void snapshot(const StageRunner&, int64_t step);
  bool open_folder();
  void ranks_written();
  void published();
  void end(std::string error, Fault = Fault::run);

  RunSpec run_;
  fs::path root_;
  CommSet* comms_;
  PhaseHook hook_;
  CompleteManifest complete_;
  std::unique_ptr<std::byte[]> memory_;
  int64_t capacity_ = 0;

  // Of the save that is under way.
  int64_t step_ = 0;
  double begin_s_ = 0;
  std::vector<NamedTensor> tensors_;  // in memory_
  Manifest manifest_;
  std::unique_ptr<CheckpointWriter> writer_;  // rank 0 of several
  std::optional<CheckpointFile> file_;        // this rank's, when written
  fs::path folder_;                           // where files go; then, where they are
  bool writing_ = false;                      // on all ranks alike
  bool publishing_ = false;                   // rank 0
  std::vector<SaveEnd> ended_;
  Background thread_;  // last: it ends before what it works on goes
};

}  // namespace trireme
