#!/usr/bin/env python3
"""Writes tests/golden/lora: adapters of tests/golden/llama2 by PEFT and PyTorch.

The folder holds an adapter that PEFT saved, and golden.safetensors: logits, loss and each factor's gradient on the
case's first batch, and the factors after five steps of AdamW. All is computed in f64 and kept in f32.
B starts as noise, so that no gradient is zero. Environment: tools/make_goldens.py, and peft 0.21.2.

    ~/goldens-venv/bin/python tools/make_lora_golden.py
"""

import json
from pathlib import Path

import torch
import torch.nn.functional as F
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file, save_file
from transformers import LlamaForCausalLM

GOLDENS = Path(__file__).resolve().parent.parent / "tests/golden"
BASE, OUT = GOLDENS / "llama2", GOLDENS / "lora"
STEPS, RANK, ALPHA = 5, 3, 7.5
TARGETS = ["q_proj", "v_proj", "o_proj", "gate_proj", "down_proj"]
PREFIX = "base_model.model."


def short(name):
    """The file's name of a factor: PEFT leaves the adapter's name, "default", out."""
    return name.replace(".default", "")


def step(model, ids, targets):
    model.zero_grad(set_to_none=True)
    logits = model(input_ids=ids.long()).logits
    losses = F.cross_entropy(logits.flatten(0, 1), targets.long().flatten(), ignore_index=-1, reduction="none")
    loss = losses.sum() / (targets >= 0).sum()
    loss.backward()
    return logits.detach(), loss.detach()


def main():
    torch.set_num_threads(1)
    torch.manual_seed(41)
    base = LlamaForCausalLM.from_pretrained(BASE, dtype=torch.float32)
    config = LoraConfig(r=RANK, lora_alpha=ALPHA, target_modules=TARGETS, task_type="CAUSAL_LM")
    model = get_peft_model(base, config)
    factors = {n: p for n, p in model.named_parameters() if p.requires_grad}
    for name, p in factors.items():
        torch.nn.init.normal_(p, std=0.2 if "lora_A" in name else 0.05)
    model.peft_config["default"].base_model_name_or_path = "tests/golden/llama2"
    model.save_pretrained(OUT)
    (OUT / "README.md").unlink(missing_ok=True)

    data = load_file(BASE / "golden.safetensors")
    optimizer = json.loads((BASE / "meta.json").read_text())["optimizer"]
    model = model.double()
    factors = {n: p for n, p in model.named_parameters() if p.requires_grad}
    logits, loss = step(model, data["input_ids"], data["targets"])
    out = {"logits": logits, "loss": loss.reshape(1)}
    out |= {"grad." + short(n): p.grad for n, p in factors.items()}
    adamw = torch.optim.AdamW(factors.values(), lr=optimizer["lr"], betas=tuple(optimizer["betas"]),
                              eps=optimizer["eps"], weight_decay=optimizer["weight_decay"], foreach=False)
    losses = []
    for i in range(STEPS):
        losses.append(step(model, data["steps.input_ids"][i], data["steps.targets"][i])[1])
        torch.nn.utils.clip_grad_norm_(factors.values(), optimizer["clip_norm"])
        adamw.step()
    out["steps.loss"] = torch.stack(losses)
    out |= {"final." + short(n): p.detach() for n, p in factors.items()}
    save_file({n: t.float().contiguous() for n, t in out.items()}, OUT / "golden.safetensors")
    for f in sorted(OUT.iterdir()):
        print(f, f.stat().st_size, "bytes")


if __name__ == "__main__":
    main()
