// The step as a tape: every op, collective and wait of one rank, in the order in which the runner issues
// them. On meta it is what a simulator replays; on a device it is what was done, and how long it took.
#pragma once
#include <map>
#include <memory>
#include <vector>

#include "comm/wrap/wrapped.h"
#include "runtime/stage_runner.h"
#include "spec/cluster_spec.h"
#include "trace/tape.h"

namespace trireme {

// Stands between a runner and its device and communicators, and passes all on. Driven from the rank's thread;
// outlives the runner, and what it was made of outlives it.
class StepRecorder : private OpObserver {
 public:
  // waits: for each op, before its launch and behind it, so that pieces have their own times on a device that
  // runs behind its launches. What a wait itself takes is in them (measure/device_rates.h).
  StepRecorder(Device&, CommFactory&, bool waits = false);
  ~StepRecorder() override;
  StepRecorder(const StepRecorder&) = delete;
  // What the runner and its CommSet are made with.
  Device& device();
  CommFactory& factory();

  // Steps of this runner, and its actions, from now on. Takes the runner's control() and listens to its ops
  // in front of whoever did before.
  void start(StageRunner&, std::span<const Action>);
  // Bytes of the rank's ledger: now, and at most since the piece or cut before.
  struct BytesHeld {
    int64_t now = 0, most = 0;
  };
  const std::vector<BytesHeld>& held() const { return held_; }  // by piece, when it is issued
  // Where the pieces of an operation, or of a part of the step outside operations, begin.
  struct Cut {
    size_t piece = 0;
    const Op* op = nullptr;  // null: an action ("F", of which operations follow), or a part of the step's end
    std::string_view layer;  // that ran before
    BytesHeld held;
  };
  const std::vector<Cut>& cuts() const { return cuts_; }
  // Ends it: the tape so far. Its last piece is an op "end" of no cost, which closes the step's time.
  Tape stop();

 private:
  class RecordedDevice;
  class RecordedFactory;
  class RecordedCommunicator;
  class ControlObserver;

  void before(std::string_view op) override;
  void after(std::string_view op, const Cost&, const Outputs&) override;
  Piece& put(PieceKind, int stream, std::string_view name);
  void issued(const CommCall&, int group);
  void finished(int64_t met_ns, int64_t end_ns);  // the call on compute that was issued last
  void enter(std::string_view phase);
  void cut(const Op*);
  BytesHeld take_held();
  int group(std::string_view name, std::vector<int> ranks);
  int64_t now() const;

  std::unique_ptr<RecordedDevice> device_;
  std::unique_ptr<RecordedFactory> factory_;
  std::unique_ptr<ControlObserver> control_;
  bool timed_;  // the device has data: pieces take time
  bool waits_;
  StageRunner* runner_ = nullptr;  // none: not recording
  OpObserver* next_ = nullptr;
  std::span<const Action> actions_;
  size_t action_ = 0;               // the next to be entered
  std::string_view phase_, layer_;  // where the step is: of the action, of the last op
  int32_t microbatch_ = -1;
  Tape tape_;
  std::vector<Cut> cuts_;
  std::vector<BytesHeld> held_;
  size_t last_on_compute_ = 0;  // of its pieces
  std::vector<std::string> streams_ = {"compute"};
  std::vector<TapeGroup> groups_;
  // To a peer (true) and from it: messages so far, by lane.
  std::map<std::pair<int, bool>, std::vector<int64_t>> messages_;
  std::vector<int64_t> issued_;  // by stream: pieces since start()
  struct Mark {
    int64_t mark, issued;
  };
  std::vector<std::vector<Mark>> marks_;  // by stream: events since start(), as the device numbers them
};

// The tape of one rank of the run's layout, on meta. threads: of the rank. The cluster's links decide what
// train.sum_order = "auto" takes. steps: recorded one after another. Many microbatches are not all run
// (runtime/composed_tape.h).
Tape record_training(const RunSpec&, const Schedule&, int threads, int rank = 0, const ClusterSpec& = {},
                     int steps = 1);
// The same; all microbatches are run.
Tape record_whole_training(const RunSpec&, const Schedule&, int threads, int rank = 0,
                           const ClusterSpec& = {}, int steps = 1);

}  // namespace trireme
