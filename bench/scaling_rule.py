#!/usr/bin/env python3
"""How far optimizer.lr = "auto" is from the best learning rate of a sweep, at models of about 1, 5 and 30 M parameters.

    python3 bench/scaling_rule.py --text input.txt.gz --work build/scaling --out scaling.json --svg scaling.svg
    python3 bench/scaling_rule.py --text input.txt.gz --work build/scaling --sizes 1M 5M --optimizer muon

The tokens are the characters of the text; the last tenth is held out. For each size the first run has
optimizer.lr = "auto". The other runs have its learning rates times each of --factors. The gap is the rule's held-out
loss over the lowest loss of the sweep. The rule's constants were found at 1M; 5M and 30M check them.

A run that is finished is kept in WORK/results.jsonl and never repeated; one that was interrupted resumes from its
checkpoint. Losses do not depend on the number of threads.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import time
import tomllib
from datetime import date
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "bench"))
import plot  # noqa: E402
from time_to_loss import read_text, shards, write_ids  # noqa: E402

# layers, hidden, heads, ffn, sequences in a step, tokens of a sequence
SIZES = {"1M": (4, 128, 4, 336, 12, 64), "5M": (6, 256, 4, 688, 12, 64), "30M": (9, 512, 8, 1408, 12, 64)}
RATES = ("lr", "adamw_lr", "embed_lr")


def parameters(vocab, size):
    """Count for the default architecture: own head, gated feed-forward, two norms per block."""
    layers, hidden, _, ffn, _, _ = SIZES[size]
    return 2 * vocab * hidden + layers * (4 * hidden * hidden + 3 * hidden * ffn + 2 * hidden) + hidden


def run(options, vocab, size, factor, rates):
    """Trains; returns a dict of results. rates: {key: value}, none for the rule's own."""
    layers, hidden, heads, ffn, batch, seq = SIZES[size]
    folder = options.work / f"{size}-{options.optimizer}-{options.steps}-{factor:g}"
    keys = {"model.vocab": vocab, "model.layers": layers, "model.hidden": hidden, "model.heads": heads,
            "model.ffn": ffn, "data.train": options.work / "train.bin", "data.valid": options.work / "valid.bin",
            "data.seq_len": seq, "batch.global": batch, "batch.micro": batch, "precision.compute": "f32",
            "optimizer.name": options.optimizer, "optimizer.warmup": options.steps // 10,
            "train.steps": options.steps, "train.dir": folder, "train.checkpoint_every": 100,
            "train.eval_batches": options.eval_batches, "train.tensorboard": "false",
            "train.threads": options.threads, **{f"optimizer.{k}": v for k, v in rates.items()}}
    words = [str(options.trireme), "train", str(options.work / "empty.toml")]
    for key, value in keys.items():
        words += ["--set", f"{key}={value}"]
    for extra in options.sets:
        words += ["--set", extra]
    begin = time.monotonic()
    done = subprocess.run(words, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"trireme ended with {done.returncode}: {done.stderr[-2000:]}")
    metrics = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    plan = tomllib.loads((folder / "plan.toml").read_text())
    shutil.rmtree(folder / "checkpoints", ignore_errors=True)
    return {"size": size, "optimizer": options.optimizer, "steps": options.steps, "sets": options.sets,
            "eval_batches": options.eval_batches, "factor": factor, "parameters": parameters(vocab, size),
            "rates": {k: plan["optimizer"][k] for k in RATES},
            "loss": [m["eval_loss"] for m in metrics if "eval_loss" in m][-1], "seconds": time.monotonic() - begin}


def key_of(r):
    return (r["size"], r["optimizer"], r["steps"], r["eval_batches"], tuple(r["sets"]), r["factor"])


def sweep(options, vocab, size):
    """Results of every factor, in the order of factors; finished ones from the file."""
    file = options.work / "results.jsonl"
    known = {key_of(r): r for r in map(json.loads, file.read_text().splitlines())} if file.exists() else {}

    def result(factor, rates):
        key = (size, options.optimizer, options.steps, options.eval_batches, tuple(options.sets), factor)
        if key not in known:
            known[key] = run(options, vocab, size, factor, rates)
            with open(file, "a") as f:
                f.write(json.dumps(known[key]) + "\n")
            print(f"{size} x {factor:g}: {known[key]['loss']:.4f} in {known[key]['seconds']:.0f} s", file=sys.stderr)
        return known[key]

    rule = result(1, {"lr": "auto"})
    return [rule if f == 1 else result(f, {k: f"{v * f:.4g}" for k, v in rule["rates"].items()})
            for f in sorted({1.0, *options.factors})]


def report(options, found):
    print(f"{date.today()}: {options.optimizer}, {options.steps} steps of 12 x 64 tokens"
          f"{''.join(', ' + s for s in options.sets)}; held-out loss by factor on the rule's learning rates\n")
    factors = [r["factor"] for r in next(iter(found.values()))]
    print("| size | parameters | width | lr of the rule | " + " | ".join(f"x {f:g}" for f in factors) + " | best at | gap |")
    print("|---" * (len(factors) + 6) + "|")
    for size, results in found.items():
        rule = next(r for r in results if r["factor"] == 1)
        best = min(results, key=lambda r: r["loss"])
        gap = rule["loss"] / best["loss"] - 1
        count = f"{rule['parameters'] / 1e6:.2f} M"
        edge = " (edge of the sweep)" if best["factor"] in (factors[0], factors[-1]) else ""
        print(f"| {size} | {count} | {SIZES[size][1]} | {rule['rates']['lr']:g} | "
              + " | ".join(f"{r['loss']:.4f}" for r in results) + f" | x {best['factor']:g}{edge} | {100 * gap:.2f} % |")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--text", required=True, help="such as tiny Shakespeare, plain or gzipped")
    parser.add_argument("--work", required=True, type=Path, help="folder of the runs and of their results")
    parser.add_argument("--trireme", default=ROOT / "build/release/trireme", type=Path)
    parser.add_argument("--optimizer", default="adamw", choices=["adamw", "muon"])
    parser.add_argument("--sizes", nargs="+", default=list(SIZES), choices=list(SIZES))
    parser.add_argument("--factors", nargs="+", type=float, default=[0.5, 0.7, 1, 1.4, 2])
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--eval-batches", type=int, default=0, help="microbatches of held-out text; 0 = all of it")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--set", default=[], action="append", dest="sets", help="key=value, for each run")
    parser.add_argument("--out", type=Path, help="JSON file of all numbers")
    parser.add_argument("--svg", type=Path, help="plot of loss over learning rate")
    options = parser.parse_args()
    options.work.mkdir(parents=True, exist_ok=True)
    options.work = options.work.resolve()
    chars, train, valid = shards(read_text(options.text))
    write_ids(options.work / "train.bin", train)
    write_ids(options.work / "valid.bin", valid)
    (options.work / "empty.toml").write_text("")
    found = {size: sweep(options, len(chars), size) for size in options.sizes}
    report(options, found)
    if options.out:
        options.out.write_text(json.dumps(found, indent=2) + "\n")
    if options.svg:
        options.svg.write_text(plot.svg(f"{options.optimizer}: held-out loss after {options.steps} steps",
                                        "factor on the rule's learning rates", "held-out loss (nats per character)",
                                        {s: [(r["factor"], r["loss"]) for r in rs] for s, rs in found.items()},
                                        log_y=False))


if __name__ == "__main__":
    main()
