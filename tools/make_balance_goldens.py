#!/usr/bin/env python3
"""Writes tests/golden/<case>/balance.safetensors: what balancing losses of routers add, in double precision.

Runs in make_goldens.py's environment, over its cases of experts; --check compares instead. The oracle of that
tool (a loop over all experts and all tokens, f64, autograd) gets two terms more, sums over layers (docs/moe.md):

    aux: 0.5 times the mean over units of E sum_e f_e P_e, units of equal size: each sequence, or the whole batch
    z:   0.05 times the mean over tokens of logsumexp(logits)^2

For the whole batch the first must be what transformers' load_balancing_loss_func says of each layer.
"""

import argparse
import filecmp
import sys
import tempfile
from pathlib import Path

import torch
from safetensors.torch import save_file
from transformers.models.mixtral.modeling_mixtral import load_balancing_loss_func

import golden_oracle
import make_goldens

AUX, Z = 0.5, 0.05
CASES = ("mixtral", "qwen2_moe")


def with_logits(config, w, p, y, seen, experts_of):
    gate = p + ("block_sparse_moe." if config["model_type"] == "mixtral" else "mlp.") + "gate.weight"
    seen.append(y @ w[gate].T)
    return experts_of(config, w, p, y)


def aux_of(logits, k, whole):
    """logits [B, S, E] of a layer."""
    share, experts = logits.softmax(-1), logits.shape[-1]
    chosen = torch.zeros_like(share).scatter(-1, share.topk(k, dim=-1).indices, 1.0)
    dims = (0, 1) if whole else (1,)
    aux = experts * (chosen.mean(dims) * share.mean(dims)).sum(-1).mean()
    if whole:
        theirs = load_balancing_loss_func((logits.detach().flatten(0, 1).float(),), experts, k)
        if abs(aux.item() / theirs.item() - 1) > 1e-6:
            sys.exit(f"transformers' loss is {theirs.item()}, ours {aux.item()}")
    return aux


def compute(case):
    config = case["config"]
    ids, targets = make_goldens.make_batches(case["seed"], config["vocab_size"], make_goldens.STEPS + 1)
    model = make_goldens.build(config)
    make_goldens.fill(model, case["seed"])
    names = make_goldens.published(config, {n: p.detach().clone() for n, p in model.named_parameters()})
    out, original = {}, golden_oracle.experts_of
    for unit in ("sequence", "microbatch"):
        seen = []
        golden_oracle.experts_of = lambda *a: with_logits(*a, seen, original)
        w = {n: t.double().requires_grad_() for n, t in names.items()}
        logits = golden_oracle.llama_logits(config, w, ids[0].long())
        golden_oracle.experts_of = original
        loss = golden_oracle.token_losses(logits, targets[0].long()).sum() / (targets[0] >= 0).sum()
        k = config["num_experts_per_tok"]
        aux = AUX * sum(aux_of(layer, k, unit == "microbatch") for layer in seen)
        z = Z * sum(layer.logsumexp(-1).pow(2).mean() for layer in seen)
        (loss + aux + z).backward()
        out.update({f"{unit}.loss": loss.view(1), f"{unit}.aux": aux.view(1), f"{unit}.z": z.view(1)})
        out.update({f"{unit}.grad.{n}": t.grad.float() for n, t in w.items() if t.grad is not None})
    return {n: t.detach().contiguous() for n, t in out.items()}


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 if any byte differs")
    args = parser.parse_args()
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    kept = Path(__file__).resolve().parents[1] / "tests" / "golden"
    with tempfile.TemporaryDirectory() as temporary:
        for name in CASES:
            path = Path(temporary) / f"{name}.safetensors" if args.check else kept / name / "balance.safetensors"
            save_file(compute(make_goldens.CASES[name]), path, metadata={"format": "pt"})
            path.chmod(0o644)
            if args.check and not filecmp.cmp(path, kept / name / "balance.safetensors", shallow=False):
                sys.exit(f"differs: {name}")


if __name__ == "__main__":
    main()
