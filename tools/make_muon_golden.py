#!/usr/bin/env python3
"""Writes tests/unit/optim/golden/muon.json: ten steps of torch.optim.Muon on small matrices.

Weights and gradients are those of `value()`, which the test computes too; the file holds what the weights are
after the last step. "bf16": as torch.optim.Muon is; "f32": the same code, its Newton-Schulz steps in f32.
Environment: tools/make_goldens.py.

    ~/goldens-venv/bin/python tools/make_muon_golden.py
"""

import json
from pathlib import Path

import numpy
import torch
from torch.optim import _muon

SHAPES = [(12, 20), (20, 12), (16, 16), (1, 9), (9, 1), (1, 1), (5, 33)]
STEPS, LR, DECAY, MOMENTUM = 10, 0.02, 0.1, 0.95


def value(matrix, step, i):
    """In [-1, 1): step 0 is the weight, then the gradients. A hash of 32 bits (Murmur3's last mix)."""
    h = (matrix * 1000003 + step * 10007 + i * 97 + 12345) % 2**32
    h ^= h >> 16
    h = h * 0x85EBCA6B % 2**32
    h ^= h >> 13
    h = h * 0xC2B2AE35 % 2**32
    h ^= h >> 16
    return h / 2**31 - 1


def matrix_of(matrix, step):
    rows, cols = SHAPES[matrix]
    flat = [value(matrix, step, i) for i in range(rows * cols)]
    return torch.tensor(flat, dtype=torch.float64).to(torch.float32).reshape(rows, cols)


def run(adjust, nesterov):
    weights = [torch.nn.Parameter(matrix_of(m, 0)) for m in range(len(SHAPES))]
    muon = torch.optim.Muon(weights, lr=LR, weight_decay=DECAY, momentum=MOMENTUM, nesterov=nesterov,
                            adjust_lr_fn=adjust)
    for step in range(1, STEPS + 1):
        for m, w in enumerate(weights):
            w.grad = matrix_of(m, step)
        muon.step()
    return [[float(numpy.float32(x)) for x in w.detach().reshape(-1).tolist()] for w in weights]


class InF32:
    """torch, with f32 under the name of bf16."""
    bfloat16 = torch.float32

    def __getattr__(self, name):
        return getattr(torch, name)


def main():
    torch.set_num_threads(1)
    cases = []
    for products in ("bf16", "f32"):
        real = _muon.torch
        if products == "f32":
            _muon.torch = InF32()
        for adjust in ("original", "match_rms_adamw"):
            for nesterov in (True, False):
                cases.append({"products": products, "adjust": adjust, "nesterov": nesterov,
                              "weights": run(adjust, nesterov)})
        _muon.torch = real
    golden = {"torch": torch.__version__.split("+")[0], "shapes": SHAPES, "steps": STEPS, "lr": LR,
              "weight_decay": DECAY, "momentum": MOMENTUM, "cases": cases}
    out = Path(__file__).resolve().parent.parent / "tests/unit/optim/golden/muon.json"
    out.parent.mkdir(exist_ok=True)
    out.write_text(json.dumps(golden, separators=(",", ":")) + "\n")
    print(f"{out}: {out.stat().st_size} bytes")


if __name__ == "__main__":
    main()
