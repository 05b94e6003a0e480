// events.jsonl of a run folder: launches and how they ended, one JSON object per line. Only reports read it.
//
//   {"event": "start", "time": 1795772260.41, "date": "2026-11-27 09:37:40", "step": 0, "process_s": 2.1,
//   ...}
//
// event: start or resume (with the facts of the machine), clock (at most one per minute), end, interrupt,
// failure, restart (of a supervisor), straggler. time: seconds since 1970. step: steps that were done.
#pragma once
#include <memory>
#include <string>
#include <string_view>

#include "base/file.h"
#include "base/json.h"
#include "comm/communicator.h"

namespace trireme {

// Appends an event with its time to the folder's file, in one write. No failure of it matters to a run: none
// is thrown, and a line that a crash cut off is ended first. Without the folder nothing is written.
void append_event(const fs::path& run_dir, std::string_view event, nlohmann::ordered_json fields) noexcept;

// The facts of this process and its host that only it can tell: {"cpu", "cores", ...}; each where it is
// known.
nlohmann::ordered_json machine_json();

// Returns the number of hosts that the ranks run on. Collective over `control`.
int64_t count_hosts(Communicator& control);

// Events of one launch, by rank 0.
class EventFile {
 public:
  explicit EventFile(fs::path run_dir);
  ~EventFile();
  // done: steps that were done before. facts: JSON object of the caller, or empty. nodes: hosts of all ranks.
  // Requires: metrics.jsonl still has the lines beyond `done` that the launch before wrote: their number and
  // seconds are work that is repeated.
  void start(int64_t done, const std::string& facts, int64_t nodes, int64_t world);
  void after_step(int64_t step);
  void end(int64_t step, bool interrupted);
  void failed(int64_t step, std::string_view why);

 private:
  struct Others;
  void add_clock(nlohmann::ordered_json& fields);
  fs::path dir_;
  std::unique_ptr<Others> others_;  // load by other processes
  int64_t steps_ = 0;
  double next_clock_ = 0;
};

}  // namespace trireme
