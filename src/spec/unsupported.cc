// Runs that contradict nothing and that cannot be run. A text continues "KEY: VALUE" (Problem).
#include <fmt/format.h>

#include "base/error_lines.h"
#include "spec/batch_ramp.h"
#include "spec/complaint.h"
#include "spec/run_schedule.h"
#include "spec/supported.h"

namespace trireme {
namespace {

using Problems = std::vector<Problem>;

// Where no rank's gradients are of a part of the batch that is whole replicas (optim/noise_scale.h).
void refuse_noise_scale(const RunSpec& run, bool apart, Problems& out) {
  const LayoutSpec& l = run.layout;
  if (run.train.noise_scale == 0) return;
  auto refuse = [&](bool unsupported, std::vector<std::string> keys, std::string_view why) {
    keys.insert(keys.begin(), "train.noise_scale");
    if (unsupported) out.push_back({keys, fmt::format("is not supported by this version; {}", why)});
  };
  refuse(l.pp > 1 && run.model.tied, {"layout.pp", "model.tied"},
         "two stages have summands of a tied table's gradient: give 0, layout.pp = 1, or model.tied = false");
  refuse(has_copies(run), {"layout.schedule"},
         "two ranks have each stage, and each half of its gradient: give 0, or another "
         "layout.schedule, such as \"dualpipe-v\"");
  if (!apart) return;
  const int64_t replica = l.cp * l.tp;
  const size_t dp = l.order.find("dp");
  refuse(
      l.dp > 1 && replica > 1 && (dp > l.order.find("tp") || dp > l.order.find("cp")), {"layout.order"},
      "beside experts over ep or tp the ranks of a replica are neighbours: give 0, or a layout.order with dp "
      "before cp and tp");
  refuse(l.ep % replica != 0 && replica % l.ep != 0, {"layout.ep", "layout.cp", "layout.tp"},
         fmt::format("the ranks of ep are no whole replicas, nor a part of one: give 0, or a layout.ep that "
                     "divides cp * tp = {} or is a multiple of it",
                     replica));
  refuse(l.ep % (replica * l.dp) == 0 && smallest_batch(run.batch) == run.batch.micro * l.dp,
         {"layout.ep", "batch.global"},
         "experts' gradients are only there of the whole batch: give 0, a smaller layout.ep, or more "
         "microbatches "
         "a step");
}

// Combinations that cannot be, whatever the version.
void refuse_invalid(const RunSpec& run, bool apart, Problems& out) {
  const LayoutSpec& l = run.layout;
  auto refuse = [&](bool invalid, std::vector<std::string> keys, std::string text) {
    if (invalid) out.push_back({std::move(keys), std::move(text)});
  };
  refuse(l.ep > 1 && !run.model.moe(), {"layout.ep", "model.experts"},
         "divides experts, and the model has none; give 1, or model.experts");
  refuse(apart && l.ep > 1 && run.model.experts % l.ep != 0, {"layout.ep", "model.experts"},
         fmt::format("does not divide model.experts = {}", run.model.experts));
  const int64_t routed = run.data.seq_len / l.cp;  // tokens of a sequence
  refuse(apart && l.tp > 1 && routed % l.tp != 0, {"layout.tp", "data.seq_len", "layout.cp"},
         fmt::format(
             "does not divide data.seq_len{} = {}: with experts each rank of tp routes an equal part of a "
             "sequence",
             l.cp > 1 ? " / layout.cp" : "", routed));
  const bool cuda = run.train.device == "cuda", nccl = run.train.comm == "nccl";
  refuse(
      cuda && run.train.comm == "mpi", {"train.comm", "train.device"},
      "moves memory of the host, and train.device = \"cuda\" has its own; give \"nccl\", or \"thread\" for "
      "ranks of one process");
  refuse(!cuda && run.layout.tp_chunks > 1, {"layout.tp_chunks", "train.device"},
         "costs time on a CPU, whose cores both multiply and add up; give 1, or train.device = \"cuda\"");
  refuse(!cuda && run.train.graphs == "on", {"train.graphs", "train.device"},
         "keeps launches of a GPU; give \"auto\", \"off\", or train.device = \"cuda\"");
  refuse(!cuda && run.train.attention != "auto", {"train.attention", "train.device"},
         "is a kernel of a GPU; give \"auto\", or train.device = \"cuda\"");
  refuse(run.precision.fp8_kernels == "required" && (!cuda || run.precision.fp8 == "none"),
         {"precision.fp8_kernels", "precision.fp8", "train.device"},
         "needs a GPU's 8-bit kernels; give \"auto\", or train.device = \"cuda\" and precision.fp8");
  refuse(!run.train.deterministic && run.world() > 1,
         {"train.deterministic", "layout.dp", "layout.tp", "layout.pp", "layout.cp"},
         "lets ranks that compute the same choose differently; give true, or one rank");
  refuse(nccl && !cuda, {"train.comm", "train.device"},
         "moves memory of GPUs; give train.device = \"cuda\", or \"thread\" or \"mpi\"");
  refuse(nccl && cuda && run.train.sum_order != "auto", {"train.sum_order", "train.comm"},
         "cannot be had with train.comm = \"nccl\", where NCCL chooses the order; give \"auto\"");
}

// Combinations with adapters, whose base has no gradient and no master copy.
void refuse_with_lora(const RunSpec& run, Problems& out) {
  if (!run.lora.active()) return;
  auto refuse = [&](bool unsupported, std::string key, std::string_view works) {
    if (unsupported)
      out.push_back(
          {{"lora.rank", std::move(key)}, fmt::format("is not supported by this version; {}", works)});
  };
  refuse(run.optimizer.name == "muon", "optimizer.name",
         "Muon trains hidden matrices, not adapters: give 0, or optimizer.name = \"adamw\"");
  refuse(run.precision.fp8 != "none", "precision.fp8",
         "adapters want inputs that 8-bit products do not keep: give 0, or precision.fp8 = \"none\"");
  refuse(run.layout.offloads_state(), "layout.offload",
         "the state of adapters is small: give 0, or layout.offload = \"none\" or \"inputs\"");
  refuse(run.optimizer.post_validation != "off", "optimizer.post_validation", "give 0, or \"off\"");
  refuse(run.train.noise_scale > 0, "train.noise_scale", "give 0, or train.noise_scale = 0");
  refuse(run.moe.bias_rate > 0, "moe.bias_rate",
         "it moves the base model's routers: give 0, or moe.bias_rate = 0");
}

// One line for each limit that a later version lifts: drop the line with the limit.
void refuse_limits(const RunSpec& run, bool apart, Problems& out) {
  const LayoutSpec& l = run.layout;
  auto refuse = [&](bool unsupported, std::vector<std::string> keys, std::string_view works) {
    if (unsupported)
      out.push_back({std::move(keys), fmt::format("is not supported by this version; {}", works)});
  };
  refuse(apart && l.shard_group > 0, {"layout.shard_group", "layout.ep", "layout.tp"},
         "beside ep or tp, experts have one shard group: give 0");
  refuse(l.offloads_state() && run.optimizer.name == "muon", {"layout.offload", "optimizer.name"},
         "Muon's momentum is read matrix by matrix, from memory: give \"none\" or \"inputs\", or "
         "optimizer.name = \"adamw\"");
  refuse(
      has_copies(run) && run.model.moe() && run.moe.unit == "global" &&
          (run.moe.aux_loss > 0 || run.moe.capacity > 0),
      {"moe.unit", "layout.schedule"},
      "two ranks have each stage, and each knows the choices of half the microbatches: give \"sequence\" or "
      "\"microbatch\", or another layout.schedule, such as \"dualpipe-v\"");
  const PrecisionSpec& p = run.precision;
  const bool small = p.moments != "f32";
  refuse(small && run.optimizer.name == "muon", {"precision.moments", "optimizer.name"},
         "Muon's momentum is f32: give \"f32\", or optimizer.name = \"adamw\"");
  refuse(small && l.offloads_state(), {"precision.moments", "layout.offload"},
         "offloaded state is f32: give \"f32\", or layout.offload = \"none\" or \"inputs\"");
  refuse(small && run.train.device != "cpu", {"precision.moments", "train.device"},
         "the GPU's update has f32 moments: give \"f32\", or train.device = \"cpu\"");
  const bool posted = run.optimizer.post_validation != "off";
  refuse(posted && run.train.spikes == "rollback", {"optimizer.post_validation", "train.spikes"},
         "a posted step ends inside the next one, which has begun with its weights: give \"off\", or "
         "train.spikes = \"skip\"");
  const std::string post = "optimizer.post_validation";
  const bool ramps = !run.batch.ramp.empty();
  refuse(ramps && has_own_schedule(l), {"batch.ramp", "layout.schedule"},
         "a schedule that is searched or read from a file has one number of microbatches: give [], or a "
         "layout.schedule by name");
  refuse(ramps && posted, {post, "batch.ramp"},
         "a posted step ends at one place of one schedule, and each batch has its own: give \"off\", or "
         "batch.ramp = []");
  refuse(posted && run.moe.bias_rate > 0, {post, "moe.bias_rate"},
         "biases of routers move by the whole batch's choices, which a step that is not settled does not "
         "know: give \"off\", or moe.bias_rate = 0");
  refuse(posted && l.offloads_state(), {post, "layout.offload"},
         "the state before a step would lie in the memory that offloading it frees: give \"off\", or "
         "layout.offload = \"none\" or \"inputs\"");
  refuse(posted && run.train.noise_scale > 0, {post, "train.noise_scale"},
         "the noise scale is measured before a step: give \"off\", or train.noise_scale = 0");
  refuse(posted && run.optimizer.name == "muon", {post, "optimizer.name"},
         "the state before a step is kept of AdamW alone: give \"off\", or optimizer.name = \"adamw\"");
  refuse_noise_scale(run, apart, out);
  refuse_with_lora(run, out);
  refuse(p.compute == "fp8", {"precision.compute"},
         "give \"auto\", \"bf16\", \"f32\" or \"f16\"; linear layers multiply 8-bit floats by precision.fp8");
  refuse(p.fp8 == "delayed" && posted, {post, "precision.fp8"},
         "scales of a step follow from the one before, which is not settled yet: give \"off\", or "
         "precision.fp8 = \"current\" or \"block\"");
}

}  // namespace

std::vector<Problem> unsupported_of(const RunSpec& run) {
  Problems out;
  const bool apart =
      run.model.moe() && (run.layout.ep > 1 || run.layout.tp > 1);  // replicas of experts: along edp
  refuse_invalid(run, apart, out);
  refuse_limits(run, apart, out);
  return out;
}

void refuse_unsupported(const RunSpec& run) {
  std::vector<std::string> lines;
  for (const Problem& p : unsupported_of(run)) lines.push_back(text_of(run, p));
  if (!lines.empty()) throw ErrorLines(std::move(lines));
}

}  // namespace trireme
