#!/usr/bin/env python3
"""Whether activations move alike at every width when optimizer.lr = "auto" (Yang et al. 2022, arXiv 2203.03466, D.1).

    python3 bench/coordinate_check.py --text input.txt.gz --out coordinates.json --svg coordinates.svg
    python3 bench/coordinate_check.py --text input.txt.gz --optimizer muon --widths 128 256 512 1024

Needs numpy. For each width, trireme trains a model of two blocks on the bytes of the text for some steps, from the
same seed, and saves each step. A forward pass in numpy runs a fixed piece of the text through each step's weights.
Its loss at the first step must be trireme's own evaluation of it within 1e-4, so both compute the same model.

The table has, per kind of layer, the mean over elements of |h_t - h_0|: the change of the layer's output since the
start, after step t. The exponent is the slope of log(change) over log(width), by least squares. A kind drifts if the
size of its exponent is --limit or more.
"""

import argparse
import json
import math
import os
import shutil
import subprocess
import sys
import tempfile
from datetime import date
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "bench"))
import plot  # noqa: E402
from time_to_loss import read_text, write_ids  # noqa: E402

try:
    import numpy as np
except ModuleNotFoundError:
    sys.exit("coordinate_check.py needs numpy: run it with a Python that has it")

SEQ, HEAD_DIM, LAYERS, TOKENS = 64, 64, 2, 256


def read_weights(folder):
    """{parameter name: f32 array} of a checkpoint that one rank wrote."""
    weights = {}
    for path in sorted(Path(folder).glob("*.safetensors")):
        with open(path, "rb") as f:
            size = int.from_bytes(f.read(8), "little")
            header = json.loads(f.read(size))
        data = np.memmap(path, np.uint8, "r", 8 + size)
        for name, entry in header.items():
            if name.endswith("/master"):
                begin, end = entry["data_offsets"]
                weights[name.removesuffix("/master")] = data[begin:end].view(np.float32).reshape(entry["shape"])
    return weights


def rms_norm(x, weight):
    return x / np.sqrt(np.mean(x * x, -1, keepdims=True) + 1e-5) * weight


def rotate(x):
    """Rotary positions, x: [S, heads, HEAD_DIM]."""
    half = HEAD_DIM // 2
    angle = np.outer(np.arange(len(x)), 10000.0 ** (-np.arange(half) / half))[:, None, :]
    a, b = x[..., :half], x[..., half:]
    return np.concatenate([a * np.cos(angle) - b * np.sin(angle), b * np.cos(angle) + a * np.sin(angle)], -1)


def forward(w, ids):
    """Outputs of every kind of layer on ids [SEQ + 1], and the mean loss."""
    out = {}
    x = w["embed.tokens.weight"][ids[:-1]].astype(np.float64)
    out["embedding"] = x
    mask = np.triu(np.full((SEQ, SEQ), -np.inf), 1)
    for i in range(LAYERS):
        b = f"blocks.{i}."
        n = rms_norm(x, w[b + "norm1.weight"])
        q, k, v = (n @ w[f"{b}attn.{p}.weight"].T for p in "qkv")
        qh, kh, vh = (t.reshape(SEQ, -1, HEAD_DIM) for t in (q, k, v))
        scores = np.einsum("shd,thd->hst", rotate(qh), rotate(kh)) / math.sqrt(HEAD_DIM) + mask
        p = np.exp(scores - scores.max(-1, keepdims=True))
        p /= p.sum(-1, keepdims=True)
        a = np.einsum("hst,thd->shd", p, vh).reshape(SEQ, -1) @ w[b + "attn.o.weight"].T
        x = x + a
        n = rms_norm(x, w[b + "norm2.weight"])
        gate, up = (n @ w[f"{b}mlp.{p}.weight"].T for p in ("gate", "up"))
        m = (gate / (1 + np.exp(-gate)) * up) @ w[b + "mlp.down.weight"].T
        x = x + m
        for name, value in {"q": q, "k": k, "v": v, "attention": a, "gate": gate, "up": up, "feed-forward": m}.items():
            out.setdefault(name, []).append(value)
    norm = next(n for n in w if "norm" in n and not n.startswith("blocks."))
    logits = rms_norm(x, w[norm]) @ w["head.weight"].T
    out["logits"] = logits
    top = logits.max(-1, keepdims=True)
    log_sum = np.log(np.exp(logits - top).sum(-1)) + top[:, 0]
    loss = float(np.mean(log_sum - logits[np.arange(SEQ), ids[1:]]))
    return {k: np.concatenate([np.ravel(t) for t in v]) if isinstance(v, list) else np.ravel(v)
            for k, v in out.items()}, loss


def train(options, work, width, steps, sets):
    """Trains, saving each step; returns its metrics."""
    shutil.rmtree(work / "run", ignore_errors=True)
    keys = {"model.arch": "llama", "model.vocab": TOKENS, "model.layers": LAYERS, "model.hidden": width,
            "model.heads": width // HEAD_DIM, "model.ffn": 2 * width, "data.train": work / "train.bin",
            "data.valid": work / "valid.bin", "data.seq_len": SEQ, "batch.global": options.batch,
            "batch.micro": options.batch, "precision.compute": "f32", "optimizer.name": options.optimizer,
            "optimizer.schedule": "constant", "optimizer.warmup": 0, "train.steps": steps, "train.dir": work / "run",
            "train.checkpoint_every": 1, "train.keep": steps + 1, "train.tensorboard": "false", "train.spikes": "off",
            "train.threads": options.threads, **sets}
    words = [str(options.trireme), "train", str(work / "empty.toml")]
    for key, value in keys.items():
        words += ["--set", f"{key}={value}"]
    for extra in options.sets:
        words += ["--set", extra]
    done = subprocess.run(words, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"trireme ended with {done.returncode}: {done.stderr[-2000:]}")
    return [json.loads(line) for line in (work / "run/metrics.jsonl").read_text().splitlines()]


def changes(options, work, width, ids):
    """{kind: [mean |h_t - h_0| after step 1, 2, ...]}"""
    metrics = train(options, work, width, 1, {"optimizer.lr": 0})  # saves the initial weights
    weights = read_weights(work / "run/checkpoints/step-00000001")
    first, loss = forward(weights, ids)
    own = [m["eval_loss"] for m in metrics if "eval_loss" in m][-1]
    if abs(own - loss) > 1e-4:
        sys.exit(f"width {width}: numpy's loss is {loss:.6f}, trireme's {own:.6f}: not the same model")
    train(options, work, width, options.steps, {})
    out = {}
    for step in range(1, options.steps + 1):
        now, _ = forward(read_weights(work / f"run/checkpoints/step-{step:08d}"), ids)
        for kind, value in now.items():
            out.setdefault(kind, []).append(float(np.mean(np.abs(value - first[kind]))))
    return out


def slope(xs, ys):
    """Least-squares slope of log y over log x."""
    x, y = np.log(xs), np.log(ys)
    return float(np.sum((x - x.mean()) * (y - y.mean())) / np.sum((x - x.mean()) ** 2))


def report(options, found):
    widths = sorted(found)
    print(f"{date.today()}: {options.optimizer}, steps 1 to {options.steps} of {options.batch} x {SEQ} tokens"
          f"{''.join(', ' + s for s in options.sets)}; mean |change of output| after step {options.steps}\n")
    print("| output | " + " | ".join(str(w) for w in widths) + " | exponent, step 1 | exponent, last step | |")
    print("|---" * (len(widths) + 4) + "|")
    exponents, drifts = {}, []
    for kind in found[widths[0]]:
        by_step = [slope(widths, [found[w][kind][s] for w in widths]) for s in range(options.steps)]
        exponents[kind] = by_step
        drift = abs(by_step[-1]) >= options.limit
        if drift:
            drifts.append(kind)
        print(f"| {kind} | " + " | ".join(f"{found[w][kind][-1]:.3g}" for w in widths) +
              f" | {by_step[0]:+.2f} | {by_step[-1]:+.2f} | {'drift' if drift else 'no drift'} |")
    print(f"\ndrift (an exponent of size {options.limit:g} or more after step {options.steps}): "
          f"{', '.join(drifts) or 'none'}")
    return exponents


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--text", required=True, help="any text of 200 kB or more, plain or gzipped; its bytes are tokens")
    parser.add_argument("--trireme", default=ROOT / "build/release/trireme", type=Path)
    parser.add_argument("--optimizer", default="adamw", choices=["adamw", "muon"])
    parser.add_argument("--widths", type=int, nargs="+", default=[128, 256, 512, 1024, 2048])
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--batch", type=int, default=8, help="sequences of 64 tokens in a step")
    parser.add_argument("--limit", type=float, default=0.1)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--set", default=[], action="append", dest="sets", help="key=value, for each run")
    parser.add_argument("--work", type=Path, help="folder for runs (default: a temporary one)")
    parser.add_argument("--out", type=Path, help="JSON file of all numbers")
    parser.add_argument("--svg", type=Path, help="plot of the changes after the last step over width")
    options = parser.parse_args()
    if any(w % HEAD_DIM for w in options.widths):
        sys.exit(f"--widths: must be multiples of {HEAD_DIM}, the width of a head")
    data = read_text(options.text).encode()
    found = {}
    with tempfile.TemporaryDirectory(dir=options.work) as folder:
        work = Path(folder)
        (work / "empty.toml").write_text("")
        write_ids(work / "train.bin", list(data[:150000]))
        write_ids(work / "valid.bin", list(data[150000:150000 + SEQ + 1]))
        ids = np.frombuffer(data[150000:150000 + SEQ + 1], np.uint8).astype(int)
        for width in options.widths:
            found[width] = changes(options, work, width, ids)
            print(f"width {width} done", file=sys.stderr)
    exponents = report(options, found)
    if options.out:
        options.out.write_text(json.dumps({"optimizer": options.optimizer, "sets": options.sets,
                                           "change": found,
                                           "exponents": exponents}, indent=2) + "\n")
    if options.svg:
        options.svg.write_text(plot.svg(f"{options.optimizer}: change of outputs after step {options.steps}",
                                        "width", "mean |change|",
                                        {k: [(w, found[w][k][-1]) for w in sorted(found)] for k in exponents}))


if __name__ == "__main__":
    main()
