// trireme estimate: memory, time and money of a run in closed form, before a layout is chosen.
#include <array>

#include "cli/cli.h"
#include "cli/estimate_roofline.h"
#include "cli/used_keys.h"

namespace trireme::cli {
namespace {

void reject_unread(const CLI::App& verb, const RunRequest& request, bool roofline) {
  static constexpr std::array kOfWalls = {"--all",       "--arithmetic", "--tokens", "--mfu",    "--reach",
                                          "--price",     "--budget",     "--pp",     "--chunks", "--zero",
                                          "--recompute", "--ep",         "--top-k",  "--mtbf",   "--save"};
  static constexpr std::array kOfRoofline = {"--svg", "--context", "--batch"};
  refuse_sets_without_run(request);
  if (roofline) refuse_given(verb, kOfWalls, "--roofline does not read it; leave it out");
  if (!roofline) refuse_given(verb, kOfRoofline, "only --roofline reads it");
  refuse_size_of_shape(verb);
  if (!request.file.empty())
    refuse_given(verb, kInPlaceOfRun, "the run file has its own; --set changes its keys");
}

}  // namespace

void add_estimate(CLI::App& app) {
  CLI::App* verb = app.add_subcommand(
      "estimate",
      "memory, time and money of a run in closed form, with the arithmetic; or its rooflines\n"
      "example: trireme estimate --model llama3-70B --cluster H100 --gpus 64 --mfu 0.4 --arithmetic");
  auto request = std::make_shared<RunRequest>();
  request->add_to(*verb);
  verb->get_option("RUN")->required(false);
  auto subject = std::make_shared<PlanSubject>();
  subject->add_to(*verb);
  auto walls = std::make_shared<WallsRequest>();
  walls->add_to(*verb);
  auto roofline = std::make_shared<RooflineRequest>();
  roofline->add_to(*verb);
  auto svg = std::make_shared<std::string>();
  verb->add_option("--svg", *svg, "--roofline: SVG file of the picture");
  verb->callback([request, subject, walls, roofline, svg, verb] {
    reject_unread(*verb, *request, roofline->wanted);
    check_set_keys("estimate", *request);
    if (roofline->wanted) return estimate_roofline(*roofline, *subject, *walls, *request, *svg);
    estimate_walls(*walls, *subject, *request);
  });
}

}  // namespace trireme::cli
