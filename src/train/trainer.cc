#include "train/trainer.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/progress.h"
#include "base/timed.h"
#include "checkpoint/named.h"
#include "cost/flops.h"
#include "device/algorithms.h"
#include "device/kernels_text.h"
#include "runtime/recompute.h"
#include "spec/batch_ramp.h"
#include "spec/run_schedule.h"
#include "train/adapter_files.h"
#include "train/batches.h"
#include "train/checkpointing.h"
#include "train/data_place.h"
#include "train/event_file.h"
#include "train/probe.h"
#include "train/replicas.h"
#include "train/resume.h"
#include "train/routing_file.h"
#include "train/run_files.h"
#include "train/run_lock.h"
#include "train/saves.h"
#include "train/spike_file.h"
#include "train/step_trace.h"

namespace trireme {
namespace {

// What each rank says of a step.
struct Report {
  BucketBytes peak{}, at_peak{};
  int64_t peak_total = 0;
  std::array<int64_t, kCollectives> wire{};
  double comm_s = 0;
  bool leaving = false;  // it was asked to
};

// Outliers in a row that make a rollback. The batches are to blame for a single one, and the step that it
// skipped leaves nothing to take back.
constexpr int64_t kRollbackAfter = 3;

// By then all that comes again has come again.
constexpr int64_t kGraphsTold = 5;

class Trainer {
 public:
  Trainer(const RunSpec& run, const Schedule& schedule, Device& device, CommFactory& factory,
          const TrainOptions& options, const TrainHooks& hooks)
      : run_(run),
        schedule_(schedule),
        options_(options),
        hooks_(hooks),
        trace_(run, device, factory, options.launches),
        comms_(trace_.factory(), mesh_of(run.layout)),
        control_(factory.control()),
        reports_(size_t(factory.world())),
        probe_(run) {
    if (!run.batch.ramp.empty()) staged_ = schedules_of(run);
    // Rank 0 looks first: what is wrong with folder or data is told once.
    if (first()) open_data();  // before the lock, which makes the folder
    if (first()) lock_.emplace(run.train.dir);
    agree_max(control_, 0);
    if (!first()) open_data();
    const std::string content = broadcast_text(control_, first() ? batches_->content_text() : "");
    if (!first()) batches_->take_content(content);
    runner_.emplace(run, RunMode::train, device, options.arena_bytes, &comms_);
    saves_.emplace(run, options, hooks, *runner_, comms_,
                   SaveChecks{.before = [this](int64_t step) { check_before_save(step); },
                              .agree = [this](int64_t step) { compare_replicas(step); },
                              .complete = [this](Manifest& m) { complete_manifest(m); }});
  }

  TrainSummary train() {
    double begin = now_s();
    runner_->watch().pulse = options_.pulse;
    tell_missing_shards();
    start_or_resume();
    take_algorithms();
    record_start();
    if (first()) files_.emplace(run_, options_, done_);
    if (first() && runner_->step_end().spikes().active())
      spikes_.emplace(fs::path(run_.train.dir) / "spikes.jsonl", done_);
    routing_.emplace(run_, done_, first());
    if (PostedStep* const p = runner_->posted())
      p->on_settled([this](const StepResult& r) { after_step(r); });
    // Steps that end without a meeting cannot compare in their midst.
    if (comms_.world() > 1 && !posts()) compares_weights_ = replicas().overwrites_weights();
    runner_->watch().control = {.phase = [this](std::string_view p) { enter_phase(p); },
                                .stop = [this] { return leaving(); }};
    summary_.first_step = done_ + 1;
    if (hooks_.start) hooks_.start(done_);
    if (first())
      for (const std::string& line : batches_->notes()) note(line);
    fill_ = probe_.keep(batches_->training_from(done_ + 1));
    while (done_ < run_.train.steps && !leaving()) {
      runner_->arena().ledger().restart_peaks();
      trace_.begin(*runner_, done_ + 1);
      StepResult r = runner_->step(actions_of(done_ + 1), done_ + 1, batches_->targets_of(done_ + 1), fill_,
                                   !result_wanted(done_ + 1));
      trace_.end(*runner_);
      if (r.stopped) break;
      done_++;
      steps_here_++;
      look_at_graphs();
      tell_kernels();
      if (r.posted) {
        const Report mine = report_of(r);
        runner_->posted()->tell(std::as_bytes(std::span(&mine, 1)));
      } else {
        after_step(r);
      }
    }
    runner_->settle();
    if (files_ && !files_->traced().empty()) note(files_->traced());
    if (const std::string line = routing_->written(); first() && !line.empty()) note(line);
    if (done_ < run_.train.steps) summary_.ending = Ending::interrupted;
    doing("save", true);
    saves_->finish(done_);
    summary_.checkpoint = saves_->newest();
    summary_.last_stall_s = saves_->take_stall_s(), summary_.last_write_s = saves_->take_write_s();
    if (files_) files_->add_last_save(summary_.last_stall_s, summary_.last_write_s);
    summary_.last_step = done_;
    if (events_) events_->end(done_, summary_.ending == Ending::interrupted);
    summary_.skipped =
        runner_->step_end().loss_scale().state().skipped + runner_->step_end().spikes().state().skipped;
    summary_.seconds = now_s() - begin;
    summary_.tokens_per_s = median(speeds_);
    summary_.mfu = mfu_of(summary_.tokens_per_s);
    return summary_;
  }
  // The run ends with this error.
  void failed(std::string_view why) {
    if (events_) events_->failed(done_, why);
  }

 private:
  bool first() const { return comms_.rank() == 0; }
  // This rank's; each stage of batch.ramp has its own schedule.
  std::span<const Action> actions_of(int64_t step) const {
    const Schedule& s = staged_.empty() ? schedule_ : staged_[stage_at(run_.batch, step)];
    return s.ranks.at(size_t(runner_->sharing().pp.rank));
  }
  bool posts() const { return run_.optimizer.post_validation != "off"; }
  bool asked_to_leave() const { return interrupt_requested() || options_.deadline.passed(); }
  // A signal may find one process only, and deadlines pass on one rank before another: all leave together.
  // Where steps end without a meeting, behind the step in which all have learned it.
  bool leaving() const { return posts() ? told_to_leave_ : agree_max(control_, asked_to_leave()) > 0; }
  // Does something follow the step that wants to know how it was, on all ranks?
  bool result_wanted(int64_t step) const {
    const TrainSpec& t = run_.train;
    return step == t.steps || trace_.wants(step) || routing_->wants(step) || checks(step) ||
           evaluates(step) || samples(step) || saves_->due(step);
  }
  bool checks(int64_t step) const { return run_.train.check_every > 0 && step % run_.train.check_every == 0; }
  bool evaluates(int64_t step) const {
    const int64_t every = run_.train.eval_every;
    if (batches_->valid().empty() && options_.tasks.empty()) return false;
    return (step == run_.train.steps || (every > 0 && step % every == 0));
  }
  bool samples(int64_t step) const {
    return run_.train.sample_every > 0 && step % run_.train.sample_every == 0;
  }
  // The others wait, for the checkpoint and the text.
  void sample() {
    doing("sample", true);
    saves_->settle();
    if (first() && hooks_.sample && saves_->saved() == done_) hooks_.sample(done_, saves_->newest());
    agree_max(control_, 0);
  }
  // For those who wait for this rank; quiet: it may take long.
  void doing(std::string_view what, bool quiet = false) const {
    if (options_.pulse) options_.pulse->action(what, -1, quiet);
  }
  void phase(std::string_view p) const {
    if (hooks_.phase) hooks_.phase(p);
  }
  void note(const std::string& line) const {
    if (hooks_.note) hooks_.note(line);
  }
  // What the device's library chose, so that a run that goes on chooses the same; what was timed (of one rank
  // alone) other runs of this user need not time again.
  fs::path algorithms_file() const { return fs::path(run_.train.dir) / "algorithms.txt"; }
  fs::path algorithms_cache() const {
    return run_.train.deterministic ? fs::path() : options_.algorithms_cache;
  }
  void take_algorithms() {
    const bool own = fs::exists(algorithms_file());
    const fs::path file = own ? algorithms_file() : algorithms_cache();
    if (file.empty() || !fs::exists(file)) return;
    std::string why;
    try {
      why = runner_->device().take_choices(read_text(file));
    } catch (const Error& e) {
      why = e.what();
    }
    if (!why.empty() && own && first())
      note(
          fmt::format("products' algorithms of {} are not taken again, so numbers may differ in their last "
                      "bits from here on: {}",
                      file.string(), why));
  }
  void keep_algorithms() {
    if (!first()) return;
    const std::string chosen = runner_->device().choices();
    if (chosen.empty() || chosen == algorithms_) return;
    write_text_atomic(algorithms_file(), chosen);
    algorithms_ = chosen;
    if (!algorithms_cache().empty()) add_to_cache(chosen);
  }
  void add_to_cache(const std::string& chosen) const try {
    const fs::path file = algorithms_cache();
    KeptAlgorithms all;
    try {
      if (fs::exists(file)) all = parse_algorithms(read_text(file), file.string());
    } catch (const Error&) {
      // A file that does not read holds nothing to keep.
    }
    merge(all, parse_algorithms(chosen, "chosen"));
    make_folders(file.parent_path());
    write_text_atomic(file, text_of(all));
  } catch (const Error&) {
    // Only a cache.
  }
  // Not later: a graph is made, or refused, when what it keeps comes again.
  void look_at_graphs() const {
    if (run_.train.graphs != "on" && steps_here_ != kGraphsTold) return;
    const std::optional<ReplayCounts> replayed = runner_->device().replayed();
    if (!replayed) return;
    if (run_.train.graphs == "on" && !replayed->refused.empty()) run_failed("{}", graphs_refused(*replayed));
    if (steps_here_ == kGraphsTold) note(replay_text(*replayed));
  }
  // Before metrics.jsonl loses the lines of steps that are repeated.
  void record_start() {
    const int64_t nodes = run_.train.comm == "thread" ? 1 : count_hosts(control_);
    if (!first() || done_ >= run_.train.steps) return;  // a finished run leaves its folder unchanged
    events_.emplace(run_.train.dir);
    events_->start(done_, options_.facts_json, nodes, comms_.world());
  }
  // Prints the kernels of the first step.
  void tell_kernels() const {
    if (steps_here_ != 1 || !first()) return;
    const std::string text = kernels_text(runner_->device().kernels().kernels_taken());
    if (!text.empty()) note("kernels: " + text);
  }
  void open_data() { batches_.emplace(run_, comms_.mesh().coord(comms_.rank(), Axis::dp), first()); }

  // Rank 0 lists the checkpoints, all ranks look at their part of the files.
  void start_or_resume() {
    const fs::path root = checkpoint_root(run_.train.dir);
    if (first()) {
      for (const std::string& left : remove_leftovers(root)) note("removed the unfinished save " + left);
      for (const std::string& line : set_aside_foreign(run_.train.dir)) note(line);
    }
    FoundCheckpoint found = find_together(first() ? checkpoints_in(root) : std::vector<fs::path>(), control_);
    if (first()) tell_damaged(root, found);
    const bool branches = found.folder.empty() && !run_.train.branch.empty();
    if (branches)
      found =
          find_together(first() ? branch_checkpoints(run_.train.branch) : std::vector<fs::path>(), control_);
    if (first() && branches) tell_damaged(run_.train.branch, found);
    std::optional<Checkpoint> c;
    if (!found.folder.empty()) c = Checkpoint::open(found.folder, Verify::sizes);
    if (first()) {
      if (c) branches ? note_branch(*c) : note_differences(*c);
      describe_run();
    }
    agree_max(control_, 0);  // whether the checkpoint is refused
    if (!c) return initial_weights(*runner_, run_);
    load_checkpoint(*runner_, *c, branches ? Load::branch : Load::resume);
    done_ = c->manifest().step;
    take_history(*c, branches);
    saves_->start_from(done_, c->folder());
    note(fmt::format("{} from step {} ({})", branches ? "branched" : "resumed", done_, c->folder().string()));
    if (const auto other = other_division(run_, *c); !other.empty())
      note(fmt::format("divided otherwise than it was saved: {}", fmt::join(other, "; ")));
    const int64_t known_good[] = {done_};
    // A run killed in its last save had not come to it.
    if (first()) prune(root, int(run_.train.keep), known_good, Verify::sizes, kept_best(run_));
  }

  // Takes the history of the checkpoint's run: place in the data, parent, best loss.
  void take_history(const Checkpoint& c, bool branches) {
    const nlohmann::json& state = c.manifest().state;
    if (branches) {
      place_ = branch_place(c, saved_run(c), run_, batches_->content());
      branched_ = {{"from", run_.train.branch}, {"step", c.manifest().step}};
    } else {
      place_ = place_of(c);
      if (state.is_object() && state.contains("branched")) branched_ = state["branched"];
      if (const std::optional<int64_t> best = best_step(checkpoint_root(run_.train.dir)))
        best_loss_ = eval_loss_at(*best);
    }
    batches_->start_at(place_.loader);
  }
  std::optional<double> eval_loss_at(int64_t step) const {
    const fs::path file = checkpoint_root(run_.train.dir) / step_folder_name(step) / kManifestName;
    return eval_loss_of(parse_manifest(read_text(file), file.string()));
  }
  void complete_manifest(Manifest& m) {
    m.state["data"] = to_json(batches_->content(), run_);
    record_place(m, place_, run_, batches_->drawn_by_shard(m.step));
    if (first() && has_base(run_)) {
      if (base_.is_null()) base_ = base_identity(run_);
      m.state["base"] = base_;
    }
    if (!branched_.is_null()) m.state["branched"] = branched_;
    if (evaluated_ == m.step) m.state["eval_loss"] = eval_loss_;
  }

  void tell_damaged(const fs::path& root, const FoundCheckpoint& found) const {
    for (const std::string& d : found.damaged) note("passed over a damaged checkpoint: " + d);
    if (found.folder.empty() && !found.damaged.empty())
      bad_request("no checkpoint in {} is complete: {}; remove them to start afresh", root.string(),
                  found.damaged.front());
  }

  void note_branch(const Checkpoint& c) const {
    for (const std::string& line : refuse_other_branch(run_, c)) note(line);
  }
  void note_differences(const Checkpoint& c) const {
    for (const std::string& line : refuse_other_run(run_, c, batches_->content())) note(line);
    const nlohmann::json& state = c.manifest().state;
    const std::string& branch = run_.train.branch;
    const bool began = state.is_object() && state.contains("branched") && state["branched"].is_object() &&
                       state["branched"].value("from", "") == branch;
    if (!branch.empty() && !began)
      note(fmt::format("train.branch = \"{}\" is not used: the run folder already has checkpoints", branch));
  }

  // The default names shards that a folder need not have.
  void tell_missing_shards() const {
    for (const std::string& name : run_.data.valid)
      if (!shard_exists(name))
        note(fmt::format("there is no held-out shard {} (data.valid): it is not evaluated", name));
  }

  // What somebody who finds the folder needs. Not before the folder is known to be this run's own.
  void describe_run() const {
    fs::path dir = run_.train.dir;
    write_text_atomic(dir / "plan.toml", save_run(run_));
    write_text_atomic(dir / "schedule.txt", to_text(schedule_));
    if (!options_.forecast_json.empty()) write_text_atomic(dir / "forecast.json", options_.forecast_json);
  }

  void after_step(const StepResult& r) {
    StepMetrics m = metrics_of(r);
    if (r.spike) handle_spike(r);
    if (r.skipped && !r.spike)
      note(fmt::format("step {}: gradients overflowed at loss scale {}: skipped, and the scale is {} now",
                       done_, r.loss_scale, runner_->step_end().loss_scale().scale()));
    summary_.loss = r.loss;
    summary_.peak_bytes = std::max(summary_.peak_bytes, m.peak_total);
    if (done_ > summary_.first_step + 1) speeds_.push_back(m.tokens_per_s);
    bool last = done_ == run_.train.steps;
    doing("check");
    if (checks(done_) && !last && !saves_->due(done_)) compare_replicas(done_);  // a save compares too
    if (evaluates(done_)) {
      doing("eval");
      phase("eval");
      evaluate(m);
      score_tasks(m);
    }
    or_say_what_stays(
        [&] { keep_algorithms(); });  // a product may come first in any step, or in an evaluation
    m.sequences = batches_->drawn(done_);
    // Metrics first: a step that a checkpoint holds is always in metrics.jsonl; lines beyond are dropped on
    // resume.
    doing("metrics");
    phase("metrics");
    std::optional<OwnedSpans> spans;
    if (trace_.wants(done_)) spans = trace_.gather(control_);
    if (files_) or_say_what_stays([&] { files_->write(m, spans ? &*spans : nullptr); });
    if (routing_->wants(done_)) or_say_what_stays([&] { routing_->write(*runner_, control_, done_); });
    doing("save", true);
    saves_->step_took(r.seconds);
    saves_->look();
    if (samples(done_)) saves_->want(done_);
    if (last)
      saves_->finish(done_);
    else if (saves_->due(done_))
      saves_->save(done_);
    if (samples(done_)) sample();
    if (events_) events_->after_step(done_);
    doing("step");
    if (hooks_.step) hooks_.step(m);
  }

  // On all ranks. A rollback waits for the save in progress, so that it takes the same checkpoint whenever
  // the step is repeated; the steps after that checkpoint count as skipped.
  void handle_spike(const StepResult& r) {
    std::string action = "skipped";
    const int64_t after = std::min(kRollbackAfter, run_.train.spike_limit);
    if (run_.train.spikes == "rollback" && runner_->step_end().spikes().state().in_a_row == after)
      action = roll_back();
    if (!spikes_) return;
    or_say_what_stays([&] {
      note(spikes_->write(done_, r, runner_->step_end().sequence_losses(), *batches_, run_.data.seq_len,
                          action));
    });
  }
  std::string roll_back() {
    doing("rollback", true);
    saves_->settle();
    const SpikeState now = runner_->step_end().spikes().state();
    // One from just before the outliers, or from among them, holds the weights of now.
    std::vector<fs::path> older;
    if (first()) older = checkpoints_in(checkpoint_root(run_.train.dir));
    std::erase_if(older, [&](const fs::path& c) {
      return step_of_folder_name(c.filename().string()).value_or(done_) >= done_ - now.in_a_row;
    });
    const FoundCheckpoint found = find_together(older, control_);
    if (found.folder.empty()) return "skipped; no older checkpoint exists to roll back to";
    const Checkpoint c = Checkpoint::open(found.folder, Verify::sizes);
    load_checkpoint(*runner_, c, Load::resume);
    const int64_t before = runner_->step_end().spikes().state().skipped;
    runner_->step_end().spikes().restore(now);
    runner_->step_end().spikes().set_skipped(before + done_ - c.manifest().step);
    return fmt::format("rolled back to the weights and moments of step {}", c.manifest().step);
  }

  // The mean over all tokens of data.valid; of several shards each one's too.
  void evaluate(StepMetrics& m) {
    double sum = 0;
    int64_t tokens = 0;
    for (const std::string& shard : batches_->valid()) {
      batches_->check_valid(shard);
      EvalResult e;
      try {
        e = evaluate_shard(*runner_, run_, shard, run_.train.eval_batches, [&](int64_t done, int64_t all) {
          if (hooks_.eval) hooks_.eval(done_, done, all);
        });
      } catch (const Error& error) {
        if (error.fault != Fault::run) throw;
        run_failed("step {}: {}; {}", done_, error.what(), saves_->what_stays());
      }
      if (batches_->valid().size() > 1) m.eval_losses.emplace_back(shard, e.loss);
      sum += e.loss * double(e.tokens), tokens += e.tokens;
      m.eval_loss = batches_->valid().size() > 1 ? sum / double(tokens) : e.loss;
    }
    summary_.eval_loss = m.eval_loss;
    if (!m.eval_loss) return;
    if (!std::isfinite(*m.eval_loss)) {
      probe_.check(*runner_, control_, done_);
      run_failed("step {}: the loss on data.valid is {}; {}", done_, *m.eval_loss, saves_->what_stays());
    }
    evaluated_ = done_;
    eval_loss_ = *m.eval_loss;
    const bool better = !best_loss_ || eval_loss_ < *best_loss_;
    if (better && run_.train.keep_best == "always") saves_->want(done_);
    if (better) best_loss_ = eval_loss_;
  }

  void score_tasks(StepMetrics& m) {
    for (const TrainTask& t : options_.tasks) {
      const auto scores = score_task(*runner_, run_, t, [this] { return asked_to_leave(); });
      if (!scores) return;
      for (const auto& [metric, value] : *scores) m.tasks.emplace_back(t.name + "/" + metric, value);
    }
  }

  Replicas& replicas() {
    if (!replicas_) replicas_.emplace(*runner_);
    return *replicas_;
  }
  void compare_replicas(int64_t step) { replicas().compare(step); }
  void enter_phase(std::string_view p) {
    if (compares_weights_ && p == "update") replicas().compare_weights(done_ + 1);
    if (hooks_.phase) hooks_.phase(p);
  }
  // An evaluation after the step has shown that the loss is finite.
  void check_before_save(int64_t step) {
    batches_->check_training();
    if (evaluated_ != step) probe_.check(*runner_, control_, step);
  }

  // A full disk is no reason to fear for what was saved before: the line says so.
  template <class Write>
  void or_say_what_stays(Write&& write) const {
    try {
      write();
    } catch (const Error& e) {
      throw Error(fmt::format("step {}: {}; {}", done_, e.what(), saves_->what_stays()), e.fault);
    }
  }

  double mfu_of(double tokens_per_s) const {
    if (options_.peak_flops <= 0) return 0;
    double peak = options_.peak_flops * double(comms_.world());
    return tokens_per_s * step_flops_per_token(run_) / peak;
  }

  Report report_of(const StepResult& r) const {
    const Ledger& ledger = runner_->arena().ledger();
    Report mine{.peak = ledger.peaks(), .at_peak = ledger.at_peak(), .peak_total = ledger.peak_total()};
    for (size_t k = 0; k < kCollectives; k++) mine.wire[k] = r.comm[k].wire;
    mine.comm_s = r.comm_s;
    mine.leaving = asked_to_leave();
    return mine;
  }

  // Memory of the rank that takes the most, wire bytes of the one that moves the most, mean wait.
  Report worst(const StepResult& r) {
    if (comms_.world() == 1) return report_of(r);
    if (r.posted) {
      const std::span<const std::byte> told = runner_->posted()->told();
      std::memcpy(reports_.data(), told.data(), told.size());
    } else {
      const Report mine = report_of(r);
      gather_bytes(control_, std::as_bytes(std::span(&mine, 1)), std::as_writable_bytes(std::span(reports_)));
    }
    for (const Report& one : reports_) told_to_leave_ = told_to_leave_ || one.leaving;
    Report all = *std::max_element(reports_.begin(), reports_.end(), [](const Report& a, const Report& b) {
      return a.peak_total < b.peak_total;
    });
    all.comm_s = 0;
    for (const Report& one : reports_) {
      all.comm_s += one.comm_s / double(reports_.size());
      for (size_t k = 0; k < kCollectives; k++) all.wire[k] = std::max(all.wire[k], one.wire[k]);
    }
    return all;
  }

  StepMetrics metrics_of(const StepResult& r) {
    StepMetrics m;
    m.step = done_, m.loss = r.loss, m.grad_norm = r.grad_norm, m.lr = r.lr, m.tokens = r.tokens;
    if (runner_->step_end().loss_scale().active()) m.loss_scale = r.loss_scale;
    m.skipped = r.skipped;
    if (run_.moe.aux_loss > 0) m.aux_loss = r.aux_loss;
    if (run_.moe.z_loss > 0) m.z_loss = r.z_loss;
    for (const LayerRouting& l : runner_->step_end().routing()) {
      m.expert_load.push_back(l.max_load());
      if (run_.layout.ep > 1) m.ep_load.push_back(l.max_load(run_.layout.ep));
      m.dropped.push_back(double(l.dropped) / double(std::max<int64_t>(1, l.choices())));
    }
    if (r.noise) m.noise_measured = true, m.noise_scale = runner_->step_end().noise().scale().sequences();
    m.checkpoint_stall_s = saves_->take_stall_s(), m.checkpoint_write_s = saves_->take_write_s();
    m.step_s = r.seconds,  // Time is for positions, whether or not they have a target.
        m.tokens_per_s = double(global_at(run_.batch, done_) * run_.data.seq_len) / r.seconds;
    m.mfu = mfu_of(m.tokens_per_s);
    m.hfu = m.mfu * (1 + recompute_flops_per_token(run_) / step_flops_per_token(run_));
    const Report all = worst(r);
    m.peak = all.peak, m.peak_total = all.peak_total, m.at_peak = all.at_peak;
    m.data_s = r.data_s, m.forward_s = r.forward_s, m.backward_s = r.backward_s, m.norm_s = r.norm_s;
    m.update_s = r.update_s;
    m.other_s = r.seconds - r.data_s - r.forward_s - r.backward_s - r.norm_s - r.update_s;
    if (comms_.world() == 1) return m;
    m.comm_s = all.comm_s;
    for (size_t k = 0; k < kCollectives; k++)
      if (all.wire[k] > 0) m.comm_bytes.emplace_back(name_of(Collective(k)), all.wire[k]);
    return m;
  }

  const RunSpec& run_;
  const Schedule& schedule_;
  std::vector<Schedule> staged_;  // by stage of batch.ramp; none: one batch
  const TrainOptions& options_;
  const TrainHooks& hooks_;
  StepTrace trace_;
  CommSet comms_;
  Communicator& control_;
  std::optional<RunLock> lock_;
  std::optional<Batches> batches_;
  std::optional<StageRunner> runner_;
  std::optional<Replicas> replicas_;  // since they were first compared
  std::optional<RunFiles> files_;
  std::optional<EventFile> events_;  // rank 0
  std::optional<RoutingFile> routing_;
  std::optional<SpikeFile> spikes_;  // rank 0, if the run looks for spikes
  FillBatch fill_;
  bool compares_weights_ = false;  // before each update
  int64_t evaluated_ = -1;         // last step that an evaluation with a finite loss followed
  double eval_loss_ = 0;           // its loss
  std::optional<double> best_loss_;
  RunPlace place_;               // in the data, before the first step of the run
  nlohmann::json branched_;      // from which run, and at which step; null: not a branch
  nlohmann::json base_;          // base_identity(), once a save wants it
  std::vector<Report> reports_;  // by rank
  LossProbe probe_;
  std::optional<Saves> saves_;
  int64_t done_ = 0, steps_here_ = 0;
  std::string algorithms_;  // as written last
  bool told_to_leave_ = false;
  std::vector<double> speeds_;
  TrainSummary summary_;
};

}  // namespace

TrainSummary train(const RunSpec& run, const Schedule& schedule, Device& device, CommFactory& factory,
                   const TrainOptions& options, const TrainHooks& hooks) {
  Trainer trainer(run, schedule, device, factory, options, hooks);
  try {
    return trainer.train();
  } catch (const std::exception& e) {
    trainer.failed(e.what());
    // Before the trainer goes: it waits for collectives under way, which only this brings to an end.
    factory.fail(e.what());
    throw;
  }
}

}  // namespace trireme
