#!/usr/bin/env python3
"""Seconds until nanoGPT's final held-out loss: nanoGPT itself and trireme, one after the other on this machine.

    python3 bench/time_to_loss.py --text input.txt.gz                           # trireme alone
    python3 bench/time_to_loss.py --text input.txt.gz --nanogpt ~/nanoGPT --python ~/venv/bin/python
    python3 bench/time_to_loss.py --text input.txt.gz --best bench/time_to_loss_best.toml

--text: Karpathy's tiny Shakespeare, plain or gzipped: `input.txt` of
https://github.com/karpathy/char-rnn/tree/master/data/tinyshakespeare (1,115,394 bytes). The first 90 % of the
characters train, the rest is held out; the vocabulary is the 65 characters, as nanoGPT's prepare.py makes them.
--nanogpt: a checkout of https://github.com/karpathy/nanoGPT. It is copied, and its README's CPU command runs in the
copy, with a Python that has torch and numpy.

Held-out loss covers the whole held-out split for both: the mean over all windows of 64 characters, one after the other,
a last partial one left out. (nanoGPT's own estimate, of 20 random batches, is printed too.)
Seconds: the sum of all training steps, without the start and without evaluations, for both. The whole command is
printed too.
"""

import argparse
import array
import gzip
import json
import os
import pickle
import platform
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from datetime import date
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "bench"))
from lines import Load, percent  # noqa: E402

NANOGPT = ("config/train_shakespeare_char.py --device=cpu --compile=False --eval_iters=20 --log_interval=1 "
           "--block_size=64 --batch_size=12 --n_layer=4 --n_head=4 --n_embd=128 --max_iters=2000 "
           "--lr_decay_iters=2000 --dropout=0.0").split()
EVAL_EVERY = 250  # nanoGPT's eval_interval in that configuration: such a step's time holds an evaluation

# Runs with nanoGPT's Python, in its folder: the loss of its checkpoint over the whole held-out split.
NANOGPT_LOSS = """
import numpy, torch
from model import GPT, GPTConfig
saved = torch.load("out-shakespeare-char/ckpt.pt", map_location="cpu")
model = GPT(GPTConfig(**saved["model_args"]))
model.load_state_dict({k.removeprefix("_orig_mod."): v for k, v in saved["model"].items()})
model.eval()
ids = torch.from_numpy(numpy.fromfile("data/shakespeare_char/val.bin", dtype=numpy.uint16).astype(numpy.int64))
n = (len(ids) - 1) // 64
x, y = ids[:n * 64].view(n, 64), ids[1:n * 64 + 1].view(n, 64)
total = 0.0
with torch.no_grad():
    for i in range(0, n, 64):
        total += model(x[i:i + 64], y[i:i + 64])[1].item() * len(x[i:i + 64])
print(saved["iter_num"], total / n, sum(p.numel() for p in model.parameters()))
"""


def read_text(path):
    data = Path(path).read_bytes()
    return (gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data).decode()


def shards(text):
    """(characters, ids of the training split, ids of the held-out split), as nanoGPT's prepare.py."""
    chars = sorted(set(text))
    number = {c: i for i, c in enumerate(chars)}
    cut = int(len(text) * 0.9)
    return chars, *(array.array("H", (number[c] for c in part)) for part in (text[:cut], text[cut:]))


def write_ids(path, ids):
    ids = array.array("H", ids)
    if sys.byteorder == "big":
        ids.byteswap()
    path.write_bytes(ids.tobytes())


def run_nanogpt(source, python, chars, train, valid, threads, work):
    """Runs nanoGPT's README command in a copy of its folder; returns a dict of results."""
    here = work / "nanoGPT"
    shutil.copytree(source, here, ignore=shutil.ignore_patterns(".git", "out-*"))
    data = here / "data/shakespeare_char"
    write_ids(data / "train.bin", train)
    write_ids(data / "val.bin", valid)
    meta = {"vocab_size": len(chars), "itos": dict(enumerate(chars)), "stoi": {c: i for i, c in enumerate(chars)}}
    (data / "meta.pkl").write_bytes(pickle.dumps(meta))
    environment = dict(os.environ, OMP_NUM_THREADS=str(threads))
    begin = time.monotonic()
    out = subprocess.run([python, "train.py", *NANOGPT], cwd=here, env=environment, capture_output=True, text=True)
    wall = time.monotonic() - begin
    if out.returncode != 0:
        sys.exit(f"nanoGPT ended with {out.returncode}: {out.stderr[-2000:]}")
    steps = [(int(i), float(ms) / 1e3) for i, ms in re.findall(r"^iter (\d+): .*time ([0-9.]+)ms", out.stdout, re.M)]
    plain = [s for i, s in steps if i % EVAL_EVERY != 0]
    usual = statistics.median(plain)
    own = [float(v) for v in re.findall(r"^step \d+: .*val loss ([0-9.]+)", out.stdout, re.M)]
    checked = subprocess.run([python, "-c", NANOGPT_LOSS], cwd=here, env=environment, capture_output=True, text=True)
    if checked.returncode != 0:
        sys.exit(f"nanoGPT's checkpoint could not be evaluated: {checked.stderr[-2000:]}")
    step, loss, parameters = checked.stdout.splitlines()[-1].split()  # nanoGPT prints another line before
    return {"what": "nanoGPT", "steps": len(steps) - 1, "loss": float(loss), "own_estimate": own[-1],
            "checkpoint_step": int(step), "parameters": int(parameters), "step_ms": 1e3 * usual,
            "seconds": sum(plain) + usual * (len(steps) - len(plain)), "whole_command_s": wall}


def run_trireme(program, recipe, train, valid, threads, work, sets=()):
    """Trains by a run file; returns the same dict."""
    here = work / Path(recipe).stem
    here.mkdir()
    write_ids(here / "train.bin", train)
    write_ids(here / "valid.bin", valid)
    fixed = [f"data.train={here}/train.bin", f"data.valid={here}/valid.bin", f"train.threads={threads}"]

    def command(folder, *more):
        words = [str(program), "train", str(recipe)]
        for s in [*fixed, f"train.dir={here}/{folder}", *sets, *more]:
            words += ["--set", s]
        return words

    def call(words):
        done = subprocess.run(words, capture_output=True, text=True)
        if done.returncode != 0:
            sys.exit(f"trireme ended with {done.returncode}: {done.stderr[-2000:]}")

    # The first run on a machine measures it once, for an hour's forecasts.
    call(command("first", "train.steps=1", "optimizer.warmup=0"))
    begin = time.monotonic()
    call(command("run"))
    wall = time.monotonic() - begin
    lines = [json.loads(line) for line in (here / "run/metrics.jsonl").read_text().splitlines()]
    steps = [m for m in lines if "step_s" in m]
    losses = [(m["step"], m["eval_loss"]) for m in lines if "eval_loss" in m]
    forecast = json.loads((here / "run/forecast.json").read_text())
    update = statistics.median(m["time"]["update"] for m in steps)
    return {"what": f"trireme, {Path(recipe).name}", "steps": len(steps), "loss": losses[-1][1], "losses": losses,
            "parameters": forecast.get("parameters"), "step_ms": 1e3 * statistics.median(m["step_s"] for m in steps),
            "mfu": statistics.median(m["mfu"] for m in steps), "update_ms": 1e3 * update,
            "seconds": sum(m["step_s"] for m in steps), "whole_command_s": wall}


def report(runs, target):
    print(f"| run | steps | ms a step | training | whole command | held-out loss |")
    print("|---|---|---|---|---|---|")
    for r in runs:
        own = f" (own estimate {r['own_estimate']:.3f})" if "own_estimate" in r else ""
        print(f"| {r['what']} | {r['steps']} | {r['step_ms']:.2f} | {r['seconds']:.2f} s | {r['whole_command_s']:.1f} s "
              f"| {r['loss']:.4f}{own} |")
    peer = [r for r in runs if r["what"] == "nanoGPT"]
    for r in runs:
        if r in peer or not peer or "best" in r["what"]:
            continue
        words = "reached" if r["loss"] <= target else "NOT reached"
        print(f"\n{r['what']}: {target:.4f} {words}, {peer[0]['seconds'] / r['seconds']:.1f} times sooner than nanoGPT by "
              f"training steps, {peer[0]['whole_command_s'] / r['whole_command_s']:.1f} times by the whole command")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--text", required=True, help="tiny Shakespeare, plain or gzipped")
    parser.add_argument("--trireme", default=ROOT / "build/release/trireme", type=Path)
    parser.add_argument("--recipe", default=[], action="append", type=Path,
                        help="run file (default: bench/time_to_loss.toml); repeat it for several")
    parser.add_argument("--best", type=Path, help="run file of the model that is to reach --best-loss, run last")
    parser.add_argument("--best-loss", type=float, default=1.5)
    parser.add_argument("--nanogpt", type=Path, help="checkout of nanoGPT; without it only trireme runs")
    parser.add_argument("--python", default=sys.executable, help="Python with torch and numpy, for nanoGPT")
    parser.add_argument("--target", type=float, default=1.886, help="loss to reach where nanoGPT does not run")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--set", default=[], action="append", dest="sets", help="key=value, for each recipe")
    parser.add_argument("--out", type=Path, help="JSON file of all numbers")
    options = parser.parse_args()
    chars, train, valid = shards(read_text(options.text))
    runs = []
    with tempfile.TemporaryDirectory() as folder, Load() as load:
        work = Path(folder)
        if options.nanogpt:
            runs.append(run_nanogpt(options.nanogpt, options.python, chars, train, valid, options.threads, work))
        for recipe in options.recipe or [ROOT / "bench/time_to_loss.toml"]:
            runs.append(run_trireme(options.trireme, recipe, train, valid, options.threads, work, options.sets))
        if options.best:
            runs.append(run_trireme(options.trireme, options.best, train, valid, options.threads, work))
    target = runs[0]["loss"] if options.nanogpt else options.target
    model = next((line.split(":")[1].strip() for line in open("/proc/cpuinfo") if line.startswith("model name")),
                 platform.machine())
    print(f"{date.today()}, {model}, {options.threads} threads; other processes used {percent(load.others)} of the "
          f"processors\n")
    report(runs, target)
    if options.best:
        r = runs[-1]
        words = "reached" if r["loss"] <= options.best_loss else "NOT reached"
        print(f"\n{r['what']}: {options.best_loss} {words} in {r['seconds'] / 60:.2f} minutes of training")
    if options.out:
        options.out.write_text(json.dumps({"runs": runs, "target": target, "others": load.others}, indent=2) + "\n")


if __name__ == "__main__":
    main()
