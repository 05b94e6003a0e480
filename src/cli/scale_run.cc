// trireme scale run: trains the runs of a ladder. Each is a separate `trireme train`: an interrupted run
// resumes from its checkpoint, a finished one is not repeated.
#include <sys/wait.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <map>
#include <thread>

#include "base/file.h"
#include "base/progress.h"
#include "base/say.h"
#include "cli/child.h"
#include "cli/scale.h"
#include "report/run_record.h"
#include "scaling/ladder_file.h"

namespace trireme::cli {
namespace {

struct LadderRunRequest {
  std::string folder, slurm;
  int64_t parallel = 1;
};

bool finished(const LadderEntry& e) {
  std::error_code ec;
  if (!fs::is_regular_file(fs::path(e.dir) / "metrics.jsonl", ec)) return false;
  const RunRecord r = read_run_folder(e.dir);
  return !r.steps.empty() && r.steps.back().step >= e.steps && !r.checkpoints.empty() &&
         r.checkpoints.back() >= e.steps;
}

enum class EntryState : uint8_t { waiting, running, done, failed };

// Runs entries as their parents finish, `parallel` at once.
class Ladder {
 public:
  Ladder(std::vector<LadderEntry> entries, const LadderRunRequest& q)
      : entries_(std::move(entries)), q_(q), state_(entries_.size()) {
    for (size_t i = 0; i < entries_.size(); i++) {
      total_ += entries_[i].steps;
      if (finished(entries_[i])) settle(i, EntryState::done);
    }
    earlier_ = done_;
  }

  void run() {
    Progress bar("ladder", int64_t(entries_.size()), {.begin = int64_t(done_)});
    bar.update(int64_t(done_), done_ > 0 ? "finished before" : "");
    while (done_ + failed_ < entries_.size()) {
      start_what_can(bar);
      if (running_.empty()) break;
      wait_for_one(bar);
    }
    bar.finish();
  }

  size_t earlier() const { return earlier_; }
  size_t done() const { return done_; }
  size_t failed() const { return failed_; }
  bool interrupted() const { return interrupted_; }
  const std::string& first_failure() const { return first_failure_; }

 private:
  void settle(size_t i, EntryState s) {
    state_[i] = s;
    done_ += s == EntryState::done;
    failed_ += s == EntryState::failed;
  }
  size_t index_of(const std::string& name) const {
    for (size_t i = 0; i < entries_.size(); i++)
      if (entries_[i].name == name) return i;
    return entries_.size();
  }

  void start_what_can(Progress& bar) {
    for (size_t i = 0; i < entries_.size() && !interrupted_; i++) {
      if (state_[i] != EntryState::waiting) continue;
      const LadderEntry& e = entries_[i];
      if (!e.after.empty()) {
        const EntryState parent = state_[index_of(e.after)];
        if (parent == EntryState::failed) settle(i, EntryState::failed);
        if (parent != EntryState::done) continue;
      }
      if (running_.size() >= size_t(q_.parallel)) return;
      start(i, bar);
    }
  }

  void start(size_t i, Progress& bar) {
    const LadderEntry& e = entries_[i];
    const fs::path folder = q_.folder;
    make_folders(folder / "runs");
    std::vector<std::string> words = {"train", (folder / e.file).string()};
    if (q_.parallel > 1)
      words.insert(words.end(), {"--set",
                                 fmt::format("train.threads={}",
                                             std::max<int64_t>(1, threads_of(RunSpec()) / q_.parallel)),
                                 "--set", "train.bind=off"});
    running_[start_self(words, {.out = log_of(e), .append = true, .errors = true})] = i;
    state_[i] = EntryState::running;
    bar.update(int64_t(done_), e.name);
  }
  fs::path log_of(const LadderEntry& e) const { return fs::path(q_.folder) / "runs" / (e.name + ".log"); }

  void wait_for_one(Progress& bar) {
    while (true) {
      int status = 0;
      const pid_t pid = ::waitpid(-1, &status, WNOHANG);
      if (const auto at = running_.find(pid); pid > 0 && at != running_.end()) {
        end_of(at->second, status, bar);
        running_.erase(at);
        return;
      }
      if (pid < 0 && errno != EINTR) return;
      if (interrupt_requested() && !interrupted_) {
        interrupted_ = true;
        for (const auto& [child, index] : running_) pass_interrupt_on(child);
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
    }
  }

  void end_of(size_t i, int status, Progress& bar) {
    const LadderEntry& e = entries_[i];
    if (WIFEXITED(status) && WEXITSTATUS(status) == 0) {
      settle(i, EntryState::done);
      bar.update(int64_t(done_), e.name);
      return;
    }
    if (WIFEXITED(status) && WEXITSTATUS(status) == int(Fault::interrupted)) {
      interrupted_ = true;
      state_[i] = EntryState::waiting;
      return;
    }
    settle(i, EntryState::failed);
    const std::string how = WIFEXITED(status) ? fmt::format("exit code {}", WEXITSTATUS(status))
                                              : fmt::format("signal {}", WTERMSIG(status));
    const std::string line = fmt::format("{}: {}; its output: {}", e.name, how, log_of(e).string());
    if (first_failure_.empty()) first_failure_ = line;
    bar.note(line);
  }

  std::vector<LadderEntry> entries_;
  const LadderRunRequest& q_;
  std::vector<EntryState> state_;
  std::map<pid_t, size_t> running_;
  int64_t total_ = 0;
  size_t done_ = 0, failed_ = 0, earlier_ = 0;
  bool interrupted_ = false;
  std::string first_failure_;
};

// One task of the array per size: its runs follow one another.
std::string slurm_script(const std::vector<LadderEntry>& entries, const LadderRunRequest& q) {
  std::map<int64_t, std::string> of_size;
  for (const LadderEntry& e : entries) of_size[e.size] += fmt::format(" {}", e.name);
  std::string cases;
  int64_t task = 0;
  for (const auto& [size, names] : of_size)
    cases += fmt::format("  {}) runs='{}' ;;\n", task++, names.substr(1));
  return fmt::format(R"(#!/bin/bash
# A ladder of trireme scale plan, a size per task: sbatch {0}
# A task that is interrupted or put back into the queue resumes; finished runs are not repeated.
#SBATCH --job-name=trireme-ladder
#SBATCH --array=0-{1}
#SBATCH --output=%x-%A-%a.out
#SBATCH --open-mode=append
#SBATCH --requeue
#SBATCH --signal=B:USR1@120
#SBATCH --time=04:00:00

trireme=${{TRIREME:-trireme}}
case $SLURM_ARRAY_TASK_ID in
{2}  *) echo "no such task" >&2; exit 2 ;;
esac
for name in $runs; do
  "$trireme" train '{3}'/"$name".toml &
  child=$!
  trap 'kill -USR1 $child' USR1 TERM
  wait $child; code=$?
  # A trapped signal ends `wait` early: the run is still saving.
  while kill -0 $child 2>/dev/null; do wait $child; code=$?; done
  if [ $code = 3 ]; then scontrol requeue "${{SLURM_ARRAY_JOB_ID}}_$SLURM_ARRAY_TASK_ID"; exit 3; fi
  if [ $code != 0 ]; then exit $code; fi
done
)",
                     q.slurm, task - 1, cases, q.folder);
}

void run_ladder(LadderRunRequest q) {
  q.folder = fs::path(q.folder).lexically_normal().string();
  const std::vector<LadderEntry> entries = read_ladder(q.folder);
  if (!q.slurm.empty()) {
    if (q.folder.find('\'') != std::string::npos)
      bad_request("{}: a quote in the name of the folder; rename it for a script", visible(q.folder));
    write_text_atomic(q.slurm, slurm_script(entries, q));
    print_text("{}: an array script of {} runs; submit it with: sbatch {}\n", q.slurm, entries.size(),
               q.slurm);
    return;
  }
  install_interrupt_handlers();
  Ladder ladder(entries, q);
  ladder.run();
  if (ladder.interrupted())
    throw Error(fmt::format("interrupted with {} of {} parts finished; the same command resumes",
                            ladder.done(), entries.size()),
                Fault::interrupted);
  if (ladder.failed() > 0)
    run_failed("{} of {} parts did not finish; the first: {}; the same command tries them again",
               ladder.failed(), entries.size(), ladder.first_failure());
  print_text("{}: {} parts done, {} of them before; next: trireme scale fit {} --out law.json\n", q.folder,
             ladder.done(), ladder.earlier(), q.folder);
}

}  // namespace

void add_scale_run(CLI::App& scale) {
  CLI::App* verb = scale.add_subcommand(
      "run",
      "trains the runs of a ladder; finished ones are not repeated, interrupted ones resume\n"
      "example: trireme scale run ladder --parallel 2\n"
      "         trireme scale run ladder --slurm ladder.sbatch");
  auto q = std::make_shared<LadderRunRequest>();
  verb->add_option("FOLDER", q->folder, "folder of `scale plan --out`")->required();
  verb->add_option("--parallel", q->parallel, "runs at once, each with its share of the cores")
      ->check(CLI::Range(1, 4096))
      ->capture_default_str();
  verb->add_option("--slurm", q->slurm, "instead: writes a Slurm array script, a task for each size")
      ->type_name("FILE");
  verb->callback([q] { run_ladder(*q); });
}

}  // namespace trireme::cli
