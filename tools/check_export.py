#!/usr/bin/env python3
"""Checks by hand that what trireme exports is what transformers loads.

    ~/goldens-venv/bin/python tools/check_export.py        # the environment of tools/make_goldens.py

For every case of tests/golden, in f32, bf16 and f16 (training, of f16, in f32):
  1. `trireme convert` of the case's own folder: transformers must load the export without a missing or
     unexpected key, every tensor bit-equal to the case's, and give the golden logits.
  2. `trireme train` some steps from that folder on random tokens, then `trireme eval` and `trireme convert`:
     transformers' loss of the export on the same windows must be the loss that trireme's eval says.
Exits 1 if anything differs, and prints a line for each check.
"""

import argparse
import array
import json
import random
import subprocess
import sys
import tempfile
from pathlib import Path

import torch
import torch.nn.functional as F
import transformers
from safetensors.torch import load_file

ROOT = Path(__file__).resolve().parents[1]
SEQ, TRAIN_STEPS = 37, 5
# The weights of a case are bf16 numbers, so those exports are exact, and f16 but for numbers below 2^-16; its
# logits reach 5.
LOGITS_BOUND = 1e-5
# Of a loss near 5. The export keeps f32 masters (f32) or rounds them (bf16); eval computes in the run's type.
LOSS_BOUND = {"f32": 1e-6, "bf16": 2e-3, "f16": 1e-3}


def run_file(case, shard, folder, compute):
    return f"""
[model]
from = "{case}"
[data]
train = "{shard}"
valid = "{shard}"
seq_len = {SEQ}
[batch]
global = 4
micro = 2
[precision]
compute = "{compute}"
[optimizer]
lr = 1e-3
warmup = 2
[train]
steps = {TRAIN_STEPS}
threads = 1
dir = "{folder}"
"""


def call(*command):
    done = subprocess.run([str(c) for c in command], capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"{' '.join(map(str, command))}: exit code {done.returncode}: {done.stderr.strip()}")
    return done.stdout


def load(folder):
    """The model in f32 whatever the file's type, and what transformers says of its keys."""
    model, info = transformers.AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, attn_implementation="eager", experts_implementation="eager",
        output_loading_info=True)
    complaints = {k: list(v) for k, v in info.items() if v}
    return model.eval(), complaints


def same_tensors(export, case):
    ours = load_file(export / "model.safetensors")
    theirs = {}
    for shard in sorted(case.glob("model*.safetensors")):
        theirs.update(load_file(shard))
    return ours.keys() == theirs.keys() and all(
        torch.equal(ours[n], t.to(ours[n].dtype)) for n, t in theirs.items())


def loss_of(model, ids):
    """Mean loss over sequential windows of SEQ, targets shifted by one, as `trireme eval` counts."""
    windows = (len(ids) - 1) // SEQ
    inputs = torch.tensor(ids[: windows * SEQ]).view(windows, SEQ)
    targets = torch.tensor(ids[1 : windows * SEQ + 1])
    with torch.no_grad():
        logits = model(input_ids=inputs).logits.double()
    return F.cross_entropy(logits.flatten(0, 1), targets).item()


def check(case, dtype, trireme, folder):
    """[(what, holds, detail)] of one golden case in one type."""
    vocab = json.loads((case / "config.json").read_text())["vocab_size"]
    draw = random.Random(7)
    ids = [draw.randrange(vocab) for _ in range(40 * SEQ + 5)]
    shard, run = folder / "random.bin", folder / "run.toml"
    shard.write_bytes(array.array("H", ids).tobytes())
    run.write_text(run_file(case, shard, folder / "run", "bf16" if dtype == "bf16" else "f32"))

    call(trireme, "convert", run, "--to", folder / "before", "--dtype", dtype)
    model, complaints = load(folder / "before")
    golden = load_file(case / "golden.safetensors")
    with torch.no_grad():
        logits = model(input_ids=golden["input_ids"].long()).logits
    error = (logits - golden["logits"]).abs().max().item()
    results = [("loads, every key known", not complaints, str(complaints or "")),
               ("tensors bit-equal", same_tensors(folder / "before", case), ""),
               ("logits", error <= LOGITS_BOUND, f"max difference {error:.1e}")]

    call(trireme, "train", run)
    said = json.loads(call(trireme, "eval", run, "--json"))["loss"]
    call(trireme, "convert", run, "--to", folder / "after", "--dtype", dtype)
    model, complaints = load(folder / "after")
    loss, before = loss_of(model, ids), loss_of(load(folder / "before")[0], ids)
    apart = abs(loss / said - 1)
    results.append(("trained: loads, every key known", not complaints, str(complaints or "")))
    results.append(("trained: loss", apart <= LOSS_BOUND[dtype],
                    f"{loss:.7f}, eval says {said:.7f}, apart {apart:.1e}; untrained {before:.4f}"))
    results.append(("trained: has moved", abs(loss - before) > 1e-3, ""))
    return results


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trireme", type=Path, default=ROOT / "build" / "release" / "trireme",
                        help="the binary (default: build/release/trireme)")
    parser.add_argument("--golden", type=Path, default=ROOT / "tests" / "golden")
    args = parser.parse_args()
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    failed = False
    for case in sorted(p.parent for p in args.golden.glob("*/golden.safetensors")):
        for dtype in ("f32", "bf16", "f16"):
            with tempfile.TemporaryDirectory() as temporary:
                for what, holds, detail in check(case, dtype, args.trireme, Path(temporary)):
                    failed |= not holds
                    print(f"{'ok  ' if holds else 'FAIL'} {case.name} {dtype}: {what} {detail}".rstrip(),
                          flush=True)
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
