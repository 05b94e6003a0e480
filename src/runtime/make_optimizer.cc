#include "runtime/make_optimizer.h"

#include "optim/muon.h"

namespace trireme {

std::unique_ptr<Optimizer> make_optimizer(const RunSpec& run, const ParamSet& set, const Sharing& sharing,
                                          Device& device, Arena& arena) {
  const OptimizerSpec& o = run.optimizer;
  const double others_lr = o.name == "muon" && o.adamw_lr > 0 ? o.adamw_lr : o.lr;
  const AdamWOptions adamw{.beta1 = o.betas[0],
                           .beta2 = o.betas[1],
                           .eps = o.eps,
                           .weight_decay = o.weight_decay,
                           .moments = dtype_from_name(run.precision.moments),
                           .seed = uint64_t(run.train.seed),
                           .embed_lr = o.embed_lr > 0 && others_lr > 0 ? o.embed_lr / others_lr : 1,
                           .tied = run.model.tied};
  if (o.name == "adamw") return make_adamw(adamw);
  if (o.name != "muon")
    bad_request("optimizer.name = \"{}\": no optimizer; use \"adamw\" or \"muon\"", o.name);
  // In f16 the products are f32's: updates are as small as gradients, and bf16 would cost bits for nothing.
  return make_muon({.momentum = o.momentum,
                    .nesterov = o.nesterov,
                    .adjust = lr_adjust_from_name(o.adjust_lr),
                    .weight_decay = o.weight_decay,
                    .dtype = run.precision.compute == "bf16" ? DType::bf16 : DType::f32,
                    .adamw = adamw,
                    .adamw_lr = o.adamw_lr > 0 && o.lr > 0 ? o.adamw_lr / o.lr : 1},
                   set,
                   {.place = sharing.place,
                    .expert_place = sharing.expert_place,
                    .shard = sharing.replicating.shard,
                    .expert_shard = sharing.experts.shard,
                    .tp = sharing.tp.group},
                   device, arena);
}

}  // namespace trireme
