#!/usr/bin/env python3
"""A checked forecast: a ladder of small runs, the loss that it forecasts for four times its largest FLOPs, and the runs.

    python3 bench/scaling_forecast.py --hours 1 --work build/forecast --out forecast.json
    python3 bench/scaling_forecast.py --flops 5e13 --law law.json        # designed for a law of an earlier ladder

1. Cuts files (default: Python's standard library) into pieces of some 2,000 bytes, of which 5 % are held out, so that
   both parts have one distribution. Tokenizes them (default: bytes), plans and trains a ladder (scale plan, run).
2. Fits the law and writes the forecast into WORK/forecast.json, before any test run starts.
3. Trains test runs of --times the largest FLOPs at the best size, with --seeds seeds, and compares.

Controls: the straight line of log loss over log FLOPs through the best runs of the two largest levels. Everything that is
finished is kept, so that the same command resumes.
"""

import argparse
import json
import math
import os
import random
import subprocess
import sys
import sysconfig
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
BASE = """[model]
vocab = {vocab}
layers = 4
hidden = 128
heads = 4
[data]
train = "{work}/data/train"
valid = "{work}/data/valid"
seq_len = {seq}
[precision]
compute = "f32"
[train]
tensorboard = false
eval_batches = {eval_batches}
dir = "{work}/base"
"""


def call(*words):
    done = subprocess.run([str(w) for w in words], stdout=subprocess.PIPE, text=True)
    if done.returncode != 0:
        sys.exit(f"{' '.join(str(w) for w in words)}: exit code {done.returncode}")
    return done.stdout


def parameters(vocab, layers):
    """Counts a member of the base's family: width 32 per layer, gated feed-forward of 8/3 width in proportion, own head."""
    hidden = 32 * layers
    ffn = round(512 * layers / 4)
    return 2 * vocab * hidden + layers * (4 * hidden * hidden + 3 * hidden * ffn + 2 * hidden) + hidden


def line_through(ladder, rows, flops):
    """log loss over log FLOPs through the best runs of the two largest levels."""
    best = {}
    for item in ladder["items"]:
        if item["point"]:
            level = min(ladder["levels"], key=lambda c: abs(math.log(c / item["C"])))
            best[level] = min(best.get(level, math.inf), rows[item["name"]])
    (c0, l0), (c1, l1) = sorted(best.items())[-2:]
    slope = math.log(l1 / l0) / math.log(c1 / c0)
    return l1 * (flops / c1) ** slope


def held_out(folder):
    lines = [json.loads(line) for line in (Path(folder) / "metrics.jsonl").read_text().splitlines()]
    return [line["eval_loss"] for line in lines if line.get("eval_loss") is not None][-1]


def pieces(o, size=2000):
    """Writes JSON Lines: paragraphs joined to pieces of `size` bytes or more, in shuffled order."""
    found = []
    for file in sorted(Path(o.text).rglob(f"*{o.ext}")):
        piece = ""
        for paragraph in file.read_bytes().decode("utf-8", "replace").split("\n\n"):
            piece += paragraph + "\n\n"
            if len(piece) >= size:
                found.append(piece)
                piece = ""
        if piece.strip():
            found.append(piece)
    random.Random(1).shuffle(found)
    with (o.work / "pieces.jsonl").open("w") as f:
        f.writelines(json.dumps({"text": p}) + "\n" for p in found)


def prepare(o):
    if not (o.work / "data/train.bin").exists():
        pieces(o)
        call(o.trireme, "tokenize", o.work / "pieces.jsonl", "--vocab", o.vocab, "--out", o.work / "data")
    (o.work / "base.toml").write_text(
        BASE.format(vocab=o.vocab, work=o.work, seq=o.seq, eval_batches=o.eval_batches))
    if not (o.work / "ladder/ladder.json").exists():
        budget = ["--flops", o.flops] if o.flops else ["--hours", o.hours]
        law = ["--law", o.law] if o.law else []
        print(call(o.trireme, "scale", "plan", o.work / "base.toml", *budget, *law, "--batch", o.batch,
                   "--least-runs", 12, "--least-steps", o.least_steps, "--out", o.work / "ladder"))
    call(o.trireme, "scale", "run", o.work / "ladder", "--parallel", o.parallel)


def forecast(o):
    """The test run's size and tokens, and its forecast; written once, before it starts."""
    file = o.work / "forecast.json"
    if file.exists():
        return json.loads(file.read_text())
    ladder = json.loads((o.work / "ladder/ladder.json").read_text())
    points = [i for i in ladder["items"] if i["point"]]
    flops = o.times * max(i["C"] for i in points)
    call(o.trireme, "scale", "fit", o.work / "ladder", "--out", o.work / "law.json", "--pictures", o.work / "pictures",
         "--forecast", flops)
    best = json.loads(call(o.trireme, "scale", "optimum", "--law", o.work / "law.json", "--flops", flops, "--json"))
    layers = min(range(1, 40), key=lambda n: abs(math.log(parameters(o.vocab, n) / best["chinchilla"]["N"])))
    n = parameters(o.vocab, layers)
    d = flops / (6 * n)
    fit = json.loads(call(o.trireme, "scale", "fit", o.work / "ladder", "--forecast", f"{n},{d}", "--json"))
    rows = {i["name"]: held_out(i["dir"]) for i in points}
    told = fit["forecasts"][0]
    result = {"flops": flops, "runs": len(points), "layers": layers, "N": n, "D": d, "loss": told["loss"],
              "interval": told["interval"], "line": line_through(ladder, rows, flops), "law": fit["law"]}
    file.write_text(json.dumps(result, indent=1) + "\n")
    return result


def test_run(o, told, seed):
    folder = o.work / f"test-{seed}"
    ladder = json.loads((o.work / "ladder/ladder.json").read_text())
    largest = [i for i in ladder["items"] if i["point"]][-1]["name"]
    text = (o.work / "ladder" / f"{largest}.toml").read_text()
    warmup = int(text.split("warmup = ")[1].split()[0])
    steps = round(told["D"] / (o.batch * o.seq))
    hidden = 32 * told["layers"]
    sets = {"model.layers": told["layers"], "model.hidden": hidden, "model.heads": told["layers"],
            "model.ffn": round(512 * told["layers"] / 4), "batch.global": o.batch, "train.steps": steps,
            "optimizer.schedule": "wsd", "optimizer.warmup": warmup, "train.seed": seed, "train.dir": folder,
            "train.threads": max(1, len(os.sched_getaffinity(0)) // o.parallel), "train.checkpoint_every": 200}
    words = [o.trireme, "train", o.work / "base.toml"]
    for key, value in sets.items():
        words += ["--set", f"{key}={value}"]
    call(*words)
    return held_out(folder)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hours", type=float, default=1, help="hours of this machine for the ladder")
    parser.add_argument("--flops", help="instead: FLOPs of the whole ladder")
    parser.add_argument("--law", type=Path, help="law that the ladder is best for (default: Besiroglu's)")
    parser.add_argument("--batch", type=int, default=16, help="sequences of a step, of every run")
    parser.add_argument("--least-steps", type=int, default=150)
    parser.add_argument("--times", type=float, default=4, help="test FLOPs over the ladder's largest")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--parallel", type=int, default=1, help="runs at once, each with its share of the cores")
    parser.add_argument("--text", default=sysconfig.get_paths()["stdlib"])
    parser.add_argument("--ext", default=".py")
    parser.add_argument("--vocab", type=int, default=257, help="257: bytes")
    parser.add_argument("--seq", type=int, default=128)
    parser.add_argument("--eval-batches", type=int, default=64)
    parser.add_argument("--trireme", type=Path, default=ROOT / "build/release/trireme")
    parser.add_argument("--work", type=Path, default=Path("build/forecast"))
    parser.add_argument("--out", type=Path, default=Path("forecast.json"))
    o = parser.parse_args()
    o.work.mkdir(parents=True, exist_ok=True)
    prepare(o)
    told = forecast(o)
    low, high = told["interval"]
    print(f"forecast at {told['flops']:.3g} FLOPs: {told['loss']:.4f}, a run within [{low:.4f}, {high:.4f}]; "
          f"the straight line: {told['line']:.4f}", flush=True)
    with ThreadPoolExecutor(o.parallel) as pool:
        losses = []
        for seed, loss in zip(range(1, o.seeds + 1),
                              pool.map(lambda s: test_run(o, told, s), range(1, o.seeds + 1))):
            losses.append(loss)
            print(f"seed {seed}: {loss:.4f}, {'inside' if low <= loss <= high else 'OUTSIDE'}; error "
                  f"{told['loss'] - loss:+.4f}, error of the line {told['line'] - loss:+.4f}", flush=True)
    o.out.write_text(json.dumps({**told, "losses": losses}, indent=1) + "\n")


if __name__ == "__main__":
    main()
