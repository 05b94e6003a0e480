#!/usr/bin/env python3
"""The sweep behind the demo's recipe: which tokenizer, model, learning rate and batch learn most in the demo's time.

    python3 bench/demo_recipe.py --out sweep.json --plot sweep.svg
    python3 bench/demo_recipe.py --run vocab=1024,layers=4,hidden=192,lr=6e-3,batch=8 --cpu-seconds 320
    python3 bench/demo_recipe.py --times times.json --only-times          # on a quiet machine; then without --only-times

Every run gets the same processor seconds on one thread: a few steps of each are timed first, then as many steps as fit
are trained. Other programs slow a step, so --times keeps the seconds of a quiet machine. Then only the
training may share the machine, for losses do not depend on it. The text is the demo's own:
`trireme demo` writes it to runs/demo/text, and --text names another folder. One file in 25 is held out.
Results of different tokenizers are compared in bits per byte of the held-out text. "below bigram" is in nats per token,
the demo's own comparison with an interpolated Kneser-Ney bigram of the same tokens.
A run that is in --out already is not repeated.
"""
import argparse
import json
import math
import os
import resource
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
KEYS = {"vocab": 1024, "layers": 4, "hidden": 192, "heads": 4, "lr": 6e-3, "batch": 8, "seq": 256, "momentum": 0.9,
        "optimizer": "muon"}
SWEEP = [{}, {"vocab": 512}, {"vocab": 2048}, {"vocab": 4096}, {"lr": 4e-3}, {"lr": 9e-3}, {"batch": 4}, {"batch": 16},
         {"layers": 3}, {"layers": 6}, {"hidden": 128, "lr": 8e-3}, {"hidden": 256, "lr": 5e-3},
         {"optimizer": "adamw", "lr": 3e-3}]
RUN = """[model]
arch = "qwen3"
vocab = {vocab}
layers = {layers}
hidden = {hidden}
heads = {heads}
kv_heads = 2
ffn = {ffn}
tied = true
[data]
train = "{data}/train"
valid = "{data}/valid"
tokenizer = "{data}/tokenizer.json"
seq_len = {seq}
[batch]
global = {batch}
micro = {batch}
[precision]
compute = "{precision}"
[optimizer]
name = "{optimizer}"
lr = {lr}
momentum = {momentum}
schedule = "linear"
warmup = 20
[train]
steps = {steps}
dir = "{folder}"
checkpoint_every = 0
threads = {threads}
tensorboard = false
"""


class Sweep:
    def __init__(self, options, work):
        self.options, self.work, self.data = options, work, {}

    def call(self, *words):
        """Runs trireme; returns (what it printed, processor seconds)."""
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        environment = dict(os.environ, OMP_WAIT_POLICY="passive")
        done = subprocess.run([str(self.options.trireme), *map(str, words)], capture_output=True, text=True,
                              env=environment)
        if done.returncode != 0:
            sys.exit(f"{' '.join(map(str, words))}: exit {done.returncode}: {done.stderr[-1000:]}")
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        return done.stdout, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime

    def tokens(self, vocab):
        """(folder of shards, held-out bytes, held-out tokens), made once for each size of vocabulary."""
        if vocab in self.data:
            return self.data[vocab]
        parts = {"train": self.work / "text/train", "valid": self.work / "text/valid"}
        if not parts["train"].exists():
            for folder in parts.values():
                folder.mkdir(parents=True)
            for i, file in enumerate(sorted(p for p in self.options.text.rglob("*") if p.is_file())):
                shutil.copy(file, parts["valid" if i % 25 == 7 else "train"] / f"{i:05d}-{file.name}")
        data = self.work / f"tokens-{vocab}"
        self.call("tokenize", parts["train"], "--out", data, "--vocab", vocab, "--hold-out", 0)
        held = self.work / f"held-{vocab}"
        self.call("tokenize", parts["valid"], "--out", held, "--tokenizer", data / "tokenizer.json", "--hold-out", 0)
        for end in ("bin", "idx"):
            (held / f"train.{end}").rename(data / f"valid.{end}")
        held_bytes = sum(p.stat().st_size for p in parts["valid"].iterdir())
        self.data[vocab] = data, held_bytes, (data / "valid.bin").stat().st_size / 2
        return self.data[vocab]

    def train(self, run, steps):
        folder = self.work / "run"
        shutil.rmtree(folder, ignore_errors=True)
        file = self.work / "run.toml"
        ffn = 32 * round(8 / 3 * run["hidden"] / 32)
        data = self.tokens(run["vocab"])[0]
        file.write_text(RUN.format(**run, ffn=ffn, data=data, steps=steps, folder=folder,
                                   threads=self.options.threads, precision=self.options.precision))
        return self.call("train", file)[1], file

    def step_seconds(self, run):
        """Processor seconds of a step: the lowest of three."""
        return min((self.train(run, 14)[0] - self.train(run, 2)[0]) / 12 for _ in range(3))

    def measure(self, run, step):
        steps = max(30, int(self.options.cpu_seconds / step))
        used, file = self.train(run, steps)
        loss = json.loads(self.call("eval", file, "--json")[0])["loss"]
        data, held_bytes, held_tokens = self.tokens(run["vocab"])
        bigram = kneser_ney(data, run["vocab"])
        return {**run, "step_cpu_s": step, "steps": steps, "tokens": steps * run["batch"] * run["seq"], "cpu_s": used,
                "loss": loss, "below_bigram": bigram - loss, "bits_per_byte": loss * held_tokens / held_bytes / math.log(2)}


def kneser_ney(data, vocab):
    """Held-out nats per token of src/text/bigram.h's model."""
    import array
    from collections import Counter
    train, valid = (array.array("H", (data / f"{name}.bin").read_bytes()) for name in ("train", "valid"))
    pairs = Counter(zip(train[:-1], train[1:]))
    once, twice = (sum(1 for c in pairs.values() if c == n) for n in (1, 2))
    cut = min(0.9, max(0.1, once / max(1, once + 2 * twice)))
    count, after, before = Counter(), Counter(), Counter()
    for (u, w), c in pairs.items():
        count[u] += c
        after[u] += 1
        before[w] += 1
    nll = 0.0
    for u, w in zip(valid[:-1], valid[1:]):
        q = (before[w] + 1) / (len(pairs) + vocab)
        nll -= math.log((max(pairs.get((u, w), 0) - cut, 0) + cut * after[u] * q) / count[u] if count[u] else q)
    return nll / (len(valid) - 1)


def name_of(run):
    return " ".join(f"{k}={run[k]:g}" if not isinstance(run[k], str) else run[k] for k in KEYS if run[k] != KEYS[k])


def table(results):
    lines = ["| differs from the demo's recipe in | steps | tokens | loss | below bigram | bits per byte |",
             "|---|---|---|---|---|---|"]
    for r in sorted(results, key=lambda r: r["bits_per_byte"]):
        lines.append(f"| {name_of(r) or 'nothing'} | {r['steps']} | {r['tokens'] / 1e6:.2f} M | {r['loss']:.4f} "
                     f"| {r['below_bigram']:.3f} | {r['bits_per_byte']:.4f} |")
    return "\n".join(lines)


def plot(results, file):
    """Bars of bits per byte, best first."""
    rows = sorted(results, key=lambda r: r["bits_per_byte"])
    low = min(r["bits_per_byte"] for r in rows) - 0.05
    high = max(r["bits_per_byte"] for r in rows)
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" width="720" height="{40 + 24 * len(rows)}" '
           'font-family="sans-serif" font-size="12"><rect width="100%" height="100%" fill="#fff"/>'
           f'<text x="12" y="22">Bits per held-out byte after the same processor seconds (bars begin at {low:.2f})</text>']
    for i, r in enumerate(rows):
        y, width = 36 + 24 * i, 380 * (r["bits_per_byte"] - low) / (high - low)
        out.append(f'<text x="12" y="{y + 13}">{name_of(r) or "the recipe"}</text>'
                   f'<rect x="210" y="{y}" width="{width:.1f}" height="18" fill="{"#4477aa" if name_of(r) else "#ee6677"}"/>'
                   f'<text x="{216 + width:.1f}" y="{y + 13}">{r["bits_per_byte"]:.4f}</text>')
    file.write_text("\n".join(out) + "\n</svg>\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--text", type=Path, default=ROOT / "runs/demo/text")
    parser.add_argument("--trireme", type=Path, default=ROOT / "build/release/trireme")
    parser.add_argument("--cpu-seconds", type=float, default=320, help="per run; the demo has some 380 on two cores")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--precision", default="f32")
    parser.add_argument("--run", action="append", help="key=value,...: this instead of the sweep; may be repeated")
    parser.add_argument("--out", type=Path, help="JSON file; runs that it has are not repeated")
    parser.add_argument("--times", type=Path, help="JSON file of processor seconds per step; what it lacks is timed")
    parser.add_argument("--only-times", action="store_true", help="ends after the timing")
    parser.add_argument("--plot", type=Path, help="SVG file")
    options = parser.parse_args()
    if not options.text.is_dir():
        sys.exit(f"--text {options.text}: no such folder; `trireme demo` writes the demo's text there")
    sweep = SWEEP
    if options.run:
        sweep = [{k: type(KEYS[k])(float(v)) if not isinstance(KEYS[k], str) else v
                  for k, v in (pair.split("=") for pair in run.split(","))} for run in options.run]
    results = json.loads(options.out.read_text()) if options.out and options.out.exists() else []
    with tempfile.TemporaryDirectory() as folder:
        runner = Sweep(options, Path(folder))
        times = json.loads(options.times.read_text()) if options.times and options.times.exists() else {}
        runs = [{**KEYS, **change} for change in sweep]
        # A learning rate changes no time.
        shape = lambda run: " ".join(f"{k}={run[k]}" for k in KEYS if k not in ("lr", "momentum"))  # noqa: E731
        for run in runs:
            if shape(run) not in times:
                times[shape(run)] = runner.step_seconds(run)
                print(f"{shape(run)}: {times[shape(run)]:.4f} processor seconds per step", flush=True)
        if options.times:
            options.times.write_text(json.dumps(times, indent=1) + "\n")
        if options.only_times:
            return
        for run in runs:
            if any(all(r[k] == run[k] for k in KEYS) for r in results):
                continue
            results.append(runner.measure(run, times[shape(run)]))
            print(table(results[-1:]).splitlines()[-1], flush=True)
            if options.out:
                options.out.write_text(json.dumps(results, indent=1) + "\n")
    print("\n" + table(results))
    if options.plot:
        plot(results, options.plot)


if __name__ == "__main__":
    main()
