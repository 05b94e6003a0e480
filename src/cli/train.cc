// trireme train RUN.toml: asks plan for the forecast, refuses or writes it into the run folder, then trains.
#include "base/say.h"
#include "train/trainer.h"

#include <fmt/core.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <mutex>

#include "base/counted.h"
#include "base/json.h"
#include "base/machine.h"
#include "cli/auto_layout.h"
#include "cli/cli.h"
#include "cli/harness_texts.h"
#include "cli/run_facts.h"
#include "cli/run_samples.h"
#include "cli/source.h"
#include "cli/training.h"
#include "comm/mpi/mpi_world.h"
#include "forecast/remedies.h"
#include "spec/toml.h"
#include "train/event_file.h"

namespace trireme::cli {

namespace {

// A cluster file may describe other machines than this one, whose processors train all the same.
void refuse_foreign_memory(const RunSpec& run, const Forecast& f, int64_t ranks_here) {
  if (run.cluster.file.empty() || run.train.device != "cpu") return;
  const Machine here = read_machine();
  const int64_t memory = here.memory_limit > 0 ? std::min(here.memory, here.memory_limit) : here.memory;
  if (memory <= 0 || f.host_bytes() <= memory / ranks_here) return;
  bad_request(
      "this machine has {} of memory, and each of the {} ranks that train on it needs {}: "
      "cluster.file, {}, describes other machines: `trireme plan` forecasts them, and the run trains there",
      exact_bytes(memory), ranks_here, exact_bytes(f.host_bytes()), run.cluster.file);
}

}  // namespace

TrainingSetup prepare_training(const RunSpec& run, const PrecisionSpec& asked, const ClusterSpec& cluster,
                               int64_t ranks_here) {
  TrainingSetup t;
  refuse_foreign_shards(run, run.data.valid);
  int threads = rank_threads_of(run);
  t.cluster = cluster;
  t.schedule = schedule_of(run);
  t.forecast = forecast(run, t.schedule, t.cluster, threads);
  find_remedies(t.forecast, run, asked, t.cluster, threads);
  if (std::string why = why_not(run, t.forecast); !why.empty()) throw Error(why, Fault::request);
  refuse_foreign_memory(run, t.forecast, ranks_here);
  t.device = {.threads = threads,
              .spin = ranks_here * (threads + 1) <= threads_of(RunSpec()),
              .bind = run.train.bind == "auto" && run.train.device == "cpu",
              .deterministic = run.train.deterministic,
              .ordered = run.train.comm == "nccl",
              .require_fp8 = run.precision.fp8_kernels == "required",
              .sm90_attention = run.train.attention == "sm90",
              .graphs = run.train.graphs == "on"};
  t.options.arena_bytes = t.forecast.booking.arena_bytes;
  t.options.launches = t.forecast.booking.launches;
  t.options.mtbf_s = t.cluster.mtbf_s(run.world());
  t.options.machine = t.cluster.name;
  t.options.cluster = t.cluster;
  t.options.peak_flops = t.cluster.peak_flops(run.precision.compute);
  t.options.forecast_json = to_json(run, t.forecast) + "\n";
  t.options.tasks = train_tasks_of(run);
  t.options.facts_json = run_facts_json(run, t.cluster, threads);
  t.options.algorithms_cache = measured_cluster_path().replace_filename("algorithms.txt");
  return t;
}

namespace {

std::string step_text(const StepMetrics& m) {
  std::string s =
      fmt::format("step {}  loss {:.4f}  {} tokens/s", m.step, m.loss, human_count(m.tokens_per_s));
  if (m.loss_scale) s += fmt::format("  loss scale {}{}", *m.loss_scale, m.skipped ? " (skipped)" : "");
  if (m.aux_loss) s += fmt::format("  aux loss {:.4f}", *m.aux_loss);
  if (m.z_loss) s += fmt::format("  z loss {:.4f}", *m.z_loss);
  if (!m.expert_load.empty()) {
    s += fmt::format("  load {:.2f}", *std::max_element(m.expert_load.begin(), m.expert_load.end()));
    const double dropped = *std::max_element(m.dropped.begin(), m.dropped.end());
    if (dropped > 0) s += fmt::format("  dropped {:.1f} %", dropped * 100);
  }
  if (m.mfu > 0) s += fmt::format("  MFU {:.1f} %", m.mfu * 100);
  s += "  memory " + human_bytes(m.peak_total);
  if (m.eval_loss) s += fmt::format("  held-out loss {:.4f}", *m.eval_loss);
  return s;
}

}  // namespace

TrainSummary train_with_progress(const RunSpec& run, TrainingSetup& t, bool quiet, ProcessWorld* world) {
  std::optional<Progress> bar;
  std::timed_mutex bar_mutex;  // warnings come from a thread of their own
  TrainHooks hooks;
  hooks.warn = [&](const std::string& line) {
    // Who holds the bar may be the one who hangs: a second is enough for everybody else.
    std::unique_lock lock(bar_mutex, std::chrono::seconds(1));
    // A rank that is slow is warned of; any other line ends the run.
    const char* kind = line.starts_with("warning: ") ? "straggler" : "failure";
    if (!world || world->rank() == 0) append_event(run.train.dir, kind, {{"text", line}});
    if (bar && lock)
      bar->note(visible(line));
    else
      say("{}\n", visible(line));
  };
  hooks.note = [&](const std::string& line) {
    if (quiet) return;
    std::lock_guard lock(bar_mutex);
    if (bar)
      bar->note(visible(line));
    else
      say("{}\n", visible(line));
  };
  if (const std::string again = recompute_text(run, t.forecast); !again.empty() && !quiet) say("{}", again);
  hooks.start = [&](int64_t done) {
    std::lock_guard lock(bar_mutex);
    if (quiet) return;
    if (const std::string time = time_line(run, t.forecast, done); t.says_time && !time.empty())
      say("forecast: {}{}\n", time,
          t.forecast.expected ? "" : "; `trireme plan` says why no more is expected");
    if (!t.head.empty() && done < run.train.steps) say("{}\n", t.head);
    bar.emplace("train", run.train.steps,
                Progress::Options{.begin = done, .line_every = run.train.log_every});
  };
  hooks.eval = [&](int64_t step, int64_t done, int64_t all) {
    if (quiet) return;
    std::lock_guard lock(bar_mutex);
    bar->update(step - 1, fmt::format("step {}  held-out windows {} of {}", step, done, all));
  };
  std::optional<RunSamples> samples;
  if (run.train.sample_every > 0) {
    samples.emplace(run);
    hooks.sample = [&](int64_t step, const fs::path& checkpoint) {
      hooks.note(samples->write(step, checkpoint));
    };
  }
  hooks.step = [&](const StepMetrics& m) {
    if (quiet) return;
    std::lock_guard lock(bar_mutex);
    bar->update(m.step, step_text(m));
    if (const std::string row = t.row ? t.row(m) : ""; !row.empty()) bar->note(row);
    if (m.eval_loss && !t.row)
      bar->note(fmt::format("step {}: held-out loss {:.4f} nats per token", m.step, *m.eval_loss));
    for (const auto& [name, score] : m.tasks)
      bar->note(fmt::format("step {}: {} {:.4f}", m.step, name, score));
  };
  install_interrupt_handlers();
  TrainSummary s = world ? train_on_process(run, t.schedule, t.device, t.options, hooks, *world)
                         : train_on_threads(run, t.schedule, t.device, t.options, hooks);
  if (bar) bar->finish();
  return s;
}

namespace {

void tell(const RunSpec& run, const TrainSummary& s, bool json) {
  if (json) {
    nlohmann::ordered_json j = {{"steps", s.last_step},           {"finished", s.ending == Ending::done},
                                {"tokens_per_s", s.tokens_per_s}, {"mfu", s.mfu},
                                {"peak_bytes", s.peak_bytes},     {"seconds", s.seconds},
                                {"checkpoint", nullptr}};
    if (!s.checkpoint.empty()) j["checkpoint"] = s.checkpoint.string();
    if (s.last_step >= s.first_step) j["loss"] = s.loss;
    if (s.eval_loss) j["eval_loss"] = *s.eval_loss;
    if (s.last_stall_s) j["last_checkpoint_stall_s"] = *s.last_stall_s;
    if (s.last_write_s) j["last_checkpoint_write_s"] = *s.last_write_s;
    if (run.precision.compute == "f16" || run.train.spikes != "off") j["skipped_steps"] = s.skipped;
    put_text(stdout, j.dump(2) + "\n");
  } else {
    const bool before = s.ending == Ending::done && s.last_step < s.first_step;  // by an earlier call
    const std::string speed =
        s.last_step > s.first_step + 1
            ? fmt::format(", in the median of {} {} tokens/s{}",
                          counted(s.last_step - s.first_step + 1, "step"), human_count(s.tokens_per_s),
                          s.mfu > 0 ? fmt::format(" and MFU {:.1f} %", 100 * s.mfu) : "")
            : "";
    trireme::tell("{} at step {} of {}{}; {}\n",
                  before                     ? "nothing left to do: done before,"
                  : s.ending == Ending::done ? "done"
                                             : "interrupted",
                  s.last_step, run.train.steps, speed,
                  s.checkpoint.empty() ? "no step was finished, so there is nothing to save"
                                       : fmt::format("checkpoint {}; report: trireme report {}",
                                                     s.checkpoint.string(), run.train.dir));
  }
}

void end(const RunSpec& run, const TrainSummary& s, bool json) {
  tell(run, s, json);
  if (s.ending == Ending::interrupted)
    throw Error(fmt::format("interrupted at step {} of {}; the same command goes on from there", s.last_step,
                            run.train.steps),
                Fault::interrupted);
}

// Measuring is for the forecast's sake alone: of the time that there is it takes a quarter at most.
Measuring measuring_until(const Deadline& deadline) {
  Measuring how;
  const double left = deadline.seconds_left();
  if (std::isfinite(left)) how.until = Deadline::after(std::max(0.0, left / 4));
  return how;
}

}  // namespace

void train_here(const RunRequest& request, const Deadline& deadline) {
  if (const AutoWish wish = auto_wish_of(request); wish.any())  // before the choice, which is made once
    wait_without_spinning(wish.ranks > 1 ? wish.ranks : threads_of(RunSpec()));
  const Measuring how = measuring_until(deadline);
  ChosenRun chosen = load_or_choose(request, true, how);
  RunSpec run = std::move(chosen.run);
  if (!chosen.note.empty() && !request.json) say("{}\n", chosen.note);
  if (run.train.comm == "mpi" && !TRIREME_HAS_MPI) join_mpi_world();  // says so
  if (run.train.comm == "mpi")
    bad_request(
        "train.comm = \"mpi\": its ranks are processes: start them as `mpirun -n {} trireme train ...` or "
        "with "
        "srun, or give \"thread\"",
        run.world());
  if (run.train.comm == "nccl")
    bad_request(
        "train.comm = \"nccl\": its ranks are processes, one a GPU: start them as `mpirun -n {} trireme "
        "train "
        "...`, with srun, or with RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT in the environment of each",
        run.world());
  wait_without_spinning(run.world());
  const ClusterSpec cluster = cluster_of(run, how);
  find_own_schedule(run, cluster);
  run = choose_recompute(run, cluster, rank_threads_of(run));
  TrainingSetup t = prepare_training(run, chosen.asked, cluster, run.world());
  t.options.deadline = deadline;
  tell_notes(run, request.file);  // of a run that starts
  end(run, train_with_progress(run, t, request.json), request.json);
}

namespace {

void train_in(TrainingJob& job, const Deadline& deadline, const RunRequest& request) {
  const bool first = job.world->rank() == 0, json = request.json;
  if (first) tell_notes(job.run, request.file);
  job.setup.options.deadline = deadline;
  const TrainSummary s = train_with_progress(job.run, job.setup, json || !first, job.world.get());
  try {
    if (first) return end(job.run, s, json);
  } catch (const Error& e) {
    // Said while all are here: when the first process has left, mpirun ends the others.
    say("trireme: {}\n", visible(e.what()));
  }
  if (s.ending == Ending::interrupted) throw Error("", Fault::interrupted);
}

// Of a request that is wrong the words count: then its processes meet, and one says what is wrong.
bool wants_nccl(const RunRequest& request) {
  try {
    return load_run(request.file, request.sets, {.nearest = true}).train.comm == "nccl";
  } catch (const Error&) {
    if (std::count(request.sets.begin(), request.sets.end(), "train.comm=nccl") > 0) return true;
    std::error_code ec;
    return fs::is_regular_file(request.file, ec) &&
           read_text(request.file).find("comm = \"nccl\"") != std::string::npos;
  }
}

Deadline deadline_of(const std::string& stop_after) {
  if (stop_after.empty()) return {};
  return Deadline::after(parse_duration("--stop-after", stop_after));
}

}  // namespace

void add_train(CLI::App& app) {
  CLI::App* verb =
      app.add_subcommand("train",
                         "trains; resumes by itself from the newest complete checkpoint in its run "
                         "folder\nexample: trireme train configs/run/demo.toml --set train.dir=runs/mine");
  auto request = std::make_shared<RunRequest>();
  auto stop_after = std::make_shared<std::string>();
  request->add_to(*verb);
  verb->add_option("--stop-after", *stop_after,
                   "saves and leaves (exit code 3) after this long: 55m, 90s, 2h");
  auto trace_steps = std::make_shared<std::string>();
  verb->add_option("--trace-steps", *trace_steps,
                   "records these steps op by op into trace.json: 3-5 (as train.trace_steps)");
  auto branch = std::make_shared<std::string>();
  verb->add_option(
      "--branch", *branch,
      "checkpoint of another run whose weights, moments and step the run starts from: RUN, RUN@STEP "
      "or RUN@best (as train.branch)");
  auto relaunches = std::make_shared<int64_t>(-1);
  CLI::Option* supervised =
      verb->add_option(
              "--supervise", *relaunches,
              "runs as a child that is launched again when it fails or is killed, at most N times per hour")
          ->type_name("N");
  auto backoff = std::make_shared<std::string>("0.5s");
  auto backoff_max = std::make_shared<std::string>("30s");
  verb->add_option(
      "--backoff", *backoff,
      "with --supervise: pause before the first relaunch (default: 0.5s); each further pause is twice as "
      "long, until a checkpoint is newer");
  verb->add_option("--backoff-max", *backoff_max, "with --supervise: longest pause (default: 30s)");
  auto launcher = std::make_shared<std::string>();
  verb->add_option(
          "--launcher", *launcher,
          "with --supervise: what launches the child; \"mpirun -n WORLD\" where train.comm is mpi or nccl")
      ->type_name("COMMAND");
  verb->callback([=] {
    Deadline deadline;
    std::optional<Launched> started = launched();
    if (!started && wants_nccl(*request)) started = launched_without_mpi();
    try {
      deadline = deadline_of(*stop_after);
      if (supervised->count() > 0 && *relaunches < 1)
        bad_request("--supervise = {}: give how often to launch it again per hour, 1 or more", *relaunches);
      const RestartLimits restarts{.per_hour = *relaunches,
                                   .first_pause_s = parse_duration("--backoff", *backoff),
                                   .most_pause_s = parse_duration("--backoff-max", *backoff_max)};
      if (supervised->count() > 0) supervise_and_exit(*request, restarts, *launcher, deadline, started);
      if (verb->count("--backoff") + verb->count("--backoff-max") > 0)
        bad_request("--backoff and --backoff-max go with --supervise N: give N too, or leave them out");
      if (!launcher->empty()) bad_request("--launcher goes with --supervise N: give both, or neither");
    } catch (const Error& e) {
      throw said_by_one(e, started);
    }
    install_interrupt_handlers();  // a signal during the preparations is a signal to this run too
    if (!branch->empty()) request->sets.push_back("train.branch=" + toml_string(*branch));
    if (!trace_steps->empty()) request->sets.push_back("train.trace_steps=" + *trace_steps);
    if (started && started->size != 1 && auto_wish_of(*request).any())
      throw said_by_one(Error("layout = \"auto\" and batch.micro = \"auto\" choose for rank threads of one "
                              "machine, and this is one of several processes: give the layout",
                              Fault::request),
                        started);
    const std::unique_ptr<TrainingJob> job = started ? join_training(*request, *started) : nullptr;
    job ? train_in(*job, deadline, *request) : train_here(*request, deadline);
  });
}

}  // namespace trireme::cli
