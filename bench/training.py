"""Whole training steps beside PyTorch's, and the operations inside them beside the machine's roof."""

import itertools
import json
import tempfile
from pathlib import Path

from lines import Load, Section, median, percent, run
from step import MODELS, ROOT, forward_flops, run_file

PEER = ROOT / "tools" / "peer_step.py"
# trireme's bf16 keeps masters and moments in f32: PyTorch's autocast is the same precision. Its pure bf16, weights
# and moments too, is less work and less exact; it stands in the table, and not in the ratio.
PEER_PRECISIONS = {"f32": ["f32"], "bf16": ["autocast", "bf16"]}
SAME_PRECISION = {"f32": "f32", "bf16": "autocast"}
# Ops that a roof of bytes binds; the others are bound by arithmetic.
ARITHMETIC = {"matmul", "attention", "attention_backward"}


def ours(options, model, precision, threads):
    """One process of trireme_step_ops: its JSON."""
    with tempfile.TemporaryDirectory() as temporary:
        path = Path(temporary) / "run.toml"
        path.write_text(run_file(MODELS[model], Path(temporary), precision, threads, options.steps))
        return json.loads(run([options.step_ops, path, "--steps", options.steps, "--warmup", options.warmup]))


def peer(options, model, precision, mode, threads):
    return json.loads(run([options.peer_python, PEER, f"--model={model}", f"--precision={precision}", f"--mode={mode}",
                           f"--threads={threads}", f"--steps={options.steps}", f"--warmup={options.warmup}"]))


def rounds(options, model, precision, threads):
    """trireme and every peer in turn, `rounds` times: (trireme's JSONs, {(precision, mode): all step seconds})."""
    mine, peers = [], {}
    for _ in range(options.rounds):
        mine.append(ours(options, model, precision, threads))
        if not options.peer_python:
            continue
        for other, mode in itertools.product(PEER_PRECISIONS[precision], options.peer_modes):
            seconds = peer(options, model, other, mode, threads)["all_step_s"]
            peers.setdefault((other, mode), []).extend(seconds)
    return mine, peers


def floor_s(result, model):
    """Seconds that no program can go below: the model's FLOPs at the measured peak and, after them, the optimizer's
    bytes at the measured bandwidth."""
    update = sum(op["bytes"] for op in result["ops"] if op["op"] == "adamw")
    peak = result["peaks"][result["compute"]]
    return 3 * forward_flops(MODELS[model]) / peak + update / result["peaks"]["memory"]


def step_line(options, model, precision, threads, mine, peers, others):
    m = MODELS[model]
    tokens, flops = m["batch"] * m["seq"], 3 * forward_flops(m)
    step = median([s for result in mine for s in result["step_s"]])
    peak = max(result["peaks"][precision] for result in mine)
    line = {"model": model, "precision": precision, "threads": threads, "step ms": round(1e3 * step, 1),
            "floor ms": round(1e3 * min(floor_s(result, model) for result in mine), 1),
            "tokens/s": round(tokens / step), "GFLOP/s": round(flops / step / 1e9, 1),
            "FMA peak": round(peak / 1e9, 1), "MFU": percent(flops / step / peak),
            "MFU beside": percent(median([flops / s / p for result in mine
                                          for s, p in zip(result["step_s"], result["peak_beside"])]))}
    for other, mode in itertools.product(["f32", "autocast", "bf16"], ["eager", "compile"]):
        seconds = peers.get((other, mode))
        line[f"torch {other} {mode}"] = round(tokens / median(seconds)) if seconds else "-"
    same = [median(s) for (other, _), s in peers.items() if other == SAME_PRECISION[precision]]
    line["x torch, same precision"] = round(min(same) / step, 2) if same else "-"
    line["x torch, any"] = round(min(map(median, peers.values())) / step, 2) if peers else "-"
    line["others' CPU"] = percent(others)
    return line


def op_lines(model, precision, threads, result, others):
    """Ops of a step by name: achieved rate inside the step, floor, and share of the roof that binds it."""
    totals = {}
    for op in result["ops"]:
        t = totals.setdefault(op["op"], {"s": 0, "flops": 0, "bytes": 0})
        for key in t:
            t[key] += op[key]
    peaks = result["peaks"]
    lines = []
    for name, t in sorted(totals.items(), key=lambda item: -item[1]["s"]):
        floor = max(t["flops"] / peaks[precision] if name in ARITHMETIC else 0, t["bytes"] / peaks["memory"])
        lines.append({"model": model, "precision": precision, "threads": threads, "op": name,
                      "ms a step": round(1e3 * t["s"], 2), "floor ms": round(1e3 * floor, 2),
                      "GFLOP/s": round(t["flops"] / t["s"] / 1e9, 1), "GB/s": round(t["bytes"] / t["s"] / 1e9, 1),
                      "roof": f'{peaks[precision] / 1e9:.0f} GFLOP/s' if name in ARITHMETIC
                      else f'{peaks["memory"] / 1e9:.0f} GB/s',
                      "of the roof": percent(floor / t["s"]), "others' CPU": percent(others)})
    return lines


def training(options):
    """Sections: training steps, and the operations inside those of trireme."""
    steps, ops = [], []
    for model, precision, threads in itertools.product(options.model, options.precision, options.threads):
        with Load() as load:
            mine, peers = rounds(options, model, precision, threads)
        steps.append(step_line(options, model, precision, threads, mine, peers, load.others))
        ops += op_lines(model, precision, threads, mine[-1], load.others)
    note = "" if options.peer_python else "No peer: give a Python that has torch, PEER_PYTHON=... (bench/README.md)."
    return [Section("Training steps", "make bench PEER_PYTHON=python-with-torch", steps, note),
            Section("Operations inside those steps", "make bench", ops,
                    "A roof of bytes may be passed where operands still lie in a cache.")]
