#!/usr/bin/env python3
"""Times trireme's training step on the models of tools/peer_step.py, and prints the same JSON lines.

    python3 bench/step.py --model llama-6x384 --precision f32 bf16 --threads 2

Trains on random tokens in a temporary folder, one microbatch a step. Needs only build/release/trireme and
Python's standard library. Run it and the peer one after the other on a machine that does nothing else:
bench/README.md.
"""

import argparse
import array
import itertools
import json
import platform
import random
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tools"))
from peer_step import MODELS, forward_flops  # noqa: E402


def write_shard(path, vocab, tokens):
    """A raw uint16 .bin: tokens and nothing else."""
    assert vocab <= 65536
    draw = random.Random(1)
    ids = array.array("H", (draw.randrange(vocab) for _ in range(tokens)))
    if sys.byteorder == "big":
        ids.byteswap()
    path.write_bytes(ids.tobytes())


def run_file(m, folder, precision, threads, steps):
    shard = folder / "random.bin"
    return f"""
[model]
arch = "{m["arch"]}"
vocab = {m["vocab"]}
layers = {m["layers"]}
hidden = {m["hidden"]}
heads = {m["heads"]}
ffn = {m["ffn"]}
[data]
train = "{shard}"
valid = "{shard}"
seq_len = {m["seq"]}
[batch]
global = {m["batch"]}
micro = {m["batch"]}
[precision]
compute = "{precision}"
[optimizer]
lr = 1e-4
schedule = "constant"
warmup = 0
[train]
steps = {steps}
threads = {threads}
dir = "{folder / "run"}"
checkpoint_every = 0
eval_batches = 1
"""


def measure(args, model, precision, threads):
    m = MODELS[model]
    with tempfile.TemporaryDirectory(dir=args.scratch) as temporary:
        folder = Path(temporary)
        write_shard(folder / "random.bin", m["vocab"], 64 * m["batch"] * m["seq"] + 1)
        run = folder / "run.toml"
        run.write_text(run_file(m, folder, precision, threads, args.warmup + args.steps))
        done = subprocess.run([args.trireme, "train", run, "--json"], capture_output=True, text=True)
        if done.returncode != 0:
            sys.exit(f"{model} {precision}: trireme ended with {done.returncode}: {done.stderr.strip()}")
        lines = (folder / "run" / "metrics.jsonl").read_text().splitlines()
    rows = [row for row in map(json.loads, lines) if "step_s" in row]
    timed = [row["step_s"] for row in rows[args.warmup:]]
    median = statistics.median(timed)
    print(json.dumps({
        "model": model, "precision": precision, "mode": "trireme", "threads": threads, "batch": m["batch"],
        "seq": m["seq"], "step_s": round(median, 4), "step_s_min": round(min(timed), 4),
        "tokens_per_s": round(m["batch"] * m["seq"] / median, 1),
        "gflops_per_s": round(3 * forward_flops(m) / median / 1e9, 1),
        "all_step_s": [round(s, 4) for s in timed], "first_loss": round(rows[0]["loss"], 4),
        "last_loss": round(rows[-1]["loss"], 4), "machine": platform.machine()}), flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", nargs="+", choices=MODELS, default=["llama-6x384"])
    parser.add_argument("--precision", nargs="+", choices=["f32", "bf16"], default=["f32", "bf16"])
    parser.add_argument("--threads", nargs="+", type=int, default=[2])
    parser.add_argument("--steps", type=int, default=10, help="timed steps (default 10)")
    parser.add_argument("--warmup", type=int, default=3, help="steps before them (default 3)")
    parser.add_argument("--trireme", type=Path, default=ROOT / "build" / "release" / "trireme",
                        help="the binary (default: build/release/trireme)")
    parser.add_argument("--scratch", type=Path,
                        help="folder for the temporary run, whose checkpoint takes 12 bytes a parameter")
    args = parser.parse_args()
    for model, precision, threads in itertools.product(args.model, args.precision, args.threads):
        measure(args, model, precision, threads)


if __name__ == "__main__":
    main()
