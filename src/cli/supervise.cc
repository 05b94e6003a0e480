// trireme train --supervise N: the parent of the run.
#include <unistd.h>

#include <cstdlib>
#include <sstream>

#include "base/printable.h"
#include "base/say.h"
#include "cli/training.h"
#include "train/event_file.h"
#include "train/supervisor.h"

namespace trireme::cli {
namespace {

// Without the options that are the parent's, each as "--name value" or "--name=value".
std::vector<std::string> childs_words() {
  const std::vector<std::string> words = own_command_line();
  std::vector<std::string> kept;
  for (size_t i = 1; i < words.size(); i++) {
    bool parents = false;
    for (std::string_view name :
         {"--supervise", "--backoff", "--backoff-max", "--launcher", "--stop-after"}) {
      parents = words[i] == name || words[i].starts_with(std::string(name) + "=");
      if (!parents) continue;
      if (words[i] == name) i++;
      break;
    }
    if (!parents) kept.push_back(words[i]);
  }
  return kept;
}

std::vector<std::string> words_of(const std::string& text) {
  std::istringstream in(text);
  std::vector<std::string> words;
  for (std::string word; in >> word;) words.push_back(word);
  return words;
}

// OpenMPI's daemons notice after minutes that a machine has gone, and mpirun waits for it meanwhile; so,
// within seconds. What the environment says goes before.
void notice_lost_machines() {
  for (auto [name, value] : {std::pair("time", "3"), {"intvl", "1"}, {"probes", "3"}})
    ::setenv(fmt::format("OMPI_MCA_oob_tcp_keepalive_{}", name).c_str(), value, 0);
}

}  // namespace

void supervise_and_exit(const RunRequest& request, const RestartLimits& restarts, const std::string& launcher,
                        const Deadline& deadline, const std::optional<Launched>& started) {
  const RunSpec run = load_run(request.file, request.sets, {.nearest = true});  // what is wrong is told once
  refuse(run);
  // Each rank that the environment places has a supervisor of its own, and they meet again where they met.
  const bool placed = started && started->tcp;
  if (started && !placed)
    bad_request("--supervise launches mpirun or srun itself: start it without them, and give --launcher");
  if (placed && !launcher.empty())
    bad_request(
        "--launcher \"{}\": the environment says that this is rank {} of {}, which --supervise launches "
        "itself: leave --launcher out, or unset RANK and start one supervisor for all ranks",
        printable(launcher), started->rank, started->size);
  SuperviseOptions o;
  o.command = words_of(launcher);
  if (launcher.empty() && !placed && run.train.comm != "thread")
    o.command = {"mpirun", "-n", std::to_string(run.world())};
  o.launcher = !o.command.empty();
  if (o.launcher) notice_lost_machines();
  o.command.push_back(fs::read_symlink("/proc/self/exe").string());
  for (std::string& word : childs_words()) o.command.push_back(std::move(word));
  if (deadline.seconds_left() < 1e300) {
    o.command.insert(o.command.end(), {"--stop-after", ""});
    o.deadline_at = int(o.command.size()) - 1;
  }
  o.deadline = deadline;
  o.run_dir = run.train.dir;
  o.restarts = restarts;
  const std::string who = placed && started->size > 1 ? fmt::format("rank {}: ", started->rank) : "";
  o.say = [&](const std::string& line) {
    say("{}{}\n", who, line);
    if (started && started->rank != 0) return;
    const bool again = line.starts_with("supervise: relaunch ");
    append_event(run.train.dir, again ? "restart" : "failure", {{"text", line}});
  };
  std::exit(supervise(o));
}

}  // namespace trireme::cli
