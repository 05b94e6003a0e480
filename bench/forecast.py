#!/usr/bin/env python3
"""Forecast step times beside real ones: random layouts of two ranks, drawn from a seed.

    build/release/trireme bench --out build/bench/this.toml
    python3 bench/forecast.py --cluster build/bench/this.toml --count 50

Each layout is planned (`plan --json`) and trained for some steps on random tokens (`train`); the line says the
expected time, the median of the measured steps without the first two, and the error. At the end the median and
the 90th percentile of the errors' magnitudes, beside the roof's. On a machine that others use --prefix gives a
training run its priority ("nice -n -20"; under "chrt -f" the kernel keeps up to 5 % of each core for others that
want it, 50 ms at once). What other processes took is counted, and where it is more than --quiet the run is
repeated, up to --tries times, and the least disturbed one counts. Clocks move: right before and behind each layout one
fixed run is timed, and a line of errors of its own has each layout's time divided by what that run took then, over what it took right
behind bench (else over its median): what is left of an error when drift is not in it. --bench N measures the machine anew before each N layouts; the
cluster file's name then has a number. --passes N goes through all layouts N times, minutes apart, and takes medians of
each one's forecasts and times. The last column says whether
memory and bytes on the wire were equal (rows of experts divided over ranks depend on what their router chose).
How full their fullest rank is no forecast knows: these runs are fresh, so forecasts are those of an untrained router
(layout.ep_load = "untrained"), and lines of errors of their own have them of a balanced one and at the load that was then measured.
--out keeps a JSON line a measurement, so that a part can be run at a time (--begin, --count; --count 0 --bench 1 measures the machine alone);
--report prints the table of such a file and measures nothing; with --cluster its layouts are forecast anew, with
--again each by the cluster file that it was forecast with.
Needs Python's standard library only.
"""

import argparse
import array
import json
import os
import random
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def draw(seed):
    """Sections of a run file. One axis is divided by two; model, batch, type and ZeRO are free of it."""
    r = random.Random(seed)
    axis = r.choice(["dp", "dp", "tp", "cp", "pp", "ep"])
    arch = "mixtral" if axis == "ep" else r.choice(["llama", "llama", "gpt2", "qwen2", "mixtral"])
    if axis == "tp" and arch == "mixtral":
        arch = "llama"
    hidden = r.choice([64, 96, 128, 192, 256, 320, 384, 512, 640, 768])
    head = 32 if hidden % 64 or r.random() < 0.3 else 64
    model = {"arch": arch, "vocab": r.choice([512, 1000, 2048, 4096]), "layers": r.choice([2, 2, 3, 4]),
             "hidden": hidden, "heads": hidden // head, "ffn": r.choice([2, 3, 4]) * hidden}
    if model["heads"] % 2 and axis == "tp" or axis == "cp" and model["heads"] % 2:
        model["heads"] *= 2 if head == 64 else 1
        if model["heads"] % 2:
            model["heads"] = 2
    model["kv_heads"] = model["heads"]
    if arch == "mixtral":
        model.update(experts=4, experts_per_token=2, moe_ffn=r.choice([1, 2]) * hidden)
    micro, microbatches = r.choice([1, 2, 4]), r.choice([1, 1, 2, 3])
    layout = {axis: 2}
    if axis == "ep":
        layout = {"dp": 2, "ep": 2}
    if axis == "pp":
        model["layers"] = r.choice([2, 4])
        layout["schedule"] = r.choice(["1f1b", "gpipe", "zb-h1"])
        microbatches = r.choice([2, 3, 4])
    if axis == "tp":
        layout["sequence"] = r.random() < 0.5
    if axis == "cp":
        layout["cp_method"] = r.choice(["ring", "ulysses"])
    if axis in ("dp", "cp"):
        layout["zero"] = r.choice([0, 1, 2, 3])
    layout["recompute"] = r.choice(["none", "none", "selective", "full"])
    replicas = layout.get("dp", 1)
    return {"model": model, "data": {"seq_len": r.choice([64, 128, 256])},
            "batch": {"micro": micro, "global": micro * microbatches * replicas}, "layout": layout,
            "precision": {"compute": "f32" if arch == "mixtral" and r.random() < 0.5 else r.choice(["f32", "bf16"])}}


def text(value):
    return json.dumps(value) if isinstance(value, (str, bool)) else str(value)


def run_file(sections, shard, folder, steps, cluster):
    sections = json.loads(json.dumps(sections))
    sections["data"].update(train=str(shard), valid=str(shard))
    sections["optimizer"] = {"lr": 1e-4, "schedule": "constant", "warmup": 0}
    sections["train"] = {"steps": steps, "dir": str(folder / "run"), "checkpoint_every": 0, "eval_batches": 1}
    sections["cluster"] = {"file": str(cluster)}
    return "".join(f"[{name}]\n" + "".join(f"{k} = {text(v)}\n" for k, v in keys.items())
                   for name, keys in sections.items())


def program(args, *words, before=()):
    done = subprocess.run([*before, args.trireme, *words], capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"trireme {' '.join(map(str, words))} ended with {done.returncode}: {done.stderr.strip()}")
    return done.stdout


def busy_seconds():
    """Of all processors, since the machine began; None where the system does not say."""
    try:
        ticks = [int(n) for n in Path("/proc/stat").read_text().split("\n")[0].split()[1:9]]
    except (OSError, ValueError):
        return None
    return (sum(ticks) - ticks[3] - ticks[4]) / os.sysconf("SC_CLK_TCK")


def watched(run):
    """What run() gives, and the share of all processors that others had meanwhile (a virtual machine's neighbours too)."""
    def others():
        own = resource.getrusage(resource.RUSAGE_CHILDREN)
        busy = busy_seconds()
        return None if busy is None else busy - own.ru_utime - own.ru_stime
    begin, before = time.monotonic(), others()
    out = run()
    if before is None:
        return out, 0.0
    return out, max(0.0, (others() - before) / (os.cpu_count() * (time.monotonic() - begin)))


def undisturbed(args, run):
    """Of up to --tries the first in which others had at most --quiet, or the least disturbed; with their share."""
    best = None
    for _ in range(args.tries):
        out, others = watched(run)
        if best is None or others < best[1]:
            best = out, others
        if others <= args.quiet:
            break
    return best


def write_shard(path):
    draws = random.Random(1)
    ids = array.array("H", (draws.randrange(512) for _ in range(200000)))
    if sys.byteorder == "big":
        ids.byteswap()
    path.write_bytes(ids.tobytes())


REFERENCE = {"model": {"arch": "llama", "vocab": 1000, "layers": 2, "hidden": 256, "heads": 4, "kv_heads": 4, "ffn": 768},
             "data": {"seq_len": 128}, "batch": {"micro": 2, "global": 4}, "layout": {"dp": 2},
             "precision": {"compute": "f32"}}


def steps_of(args, sections, steps):
    """Seconds of the steps but the first two, and the last line of the metrics; its ep_load is the steps' median."""
    with tempfile.TemporaryDirectory(dir=args.scratch) as temporary:
        folder = Path(temporary)
        write_shard(folder / "random.bin")
        run = folder / "run.toml"
        run.write_text(run_file(sections, folder / "random.bin", folder, steps, args.cluster))
        program(args, "train", run, "--json", before=args.prefix.split())
        lines = [json.loads(line) for line in (folder / "run" / "metrics.jsonl").read_text().splitlines()]
    if "ep_load" in lines[-1]:
        lines[-1]["ep_load"] = statistics.median(statistics.mean(s["ep_load"]) for s in lines[2:])
    return [s["step_s"] for s in lines[2:]], lines[-1]


def reference(args):
    return undisturbed(args, lambda: statistics.median(steps_of(args, REFERENCE, 26)[0]))[0]


def beside(cluster):
    """The file that keeps what the fixed run took behind bench."""
    return cluster.with_suffix(".reference")


def measure_machine(args, number):
    """A new cluster file, and what the fixed run takes right behind it."""
    file = args.named.with_stem(f"{args.named.stem}-{args.begin}-{number}")
    command = ["bench", "--out", file]
    def run():
        begin = time.monotonic()
        program(args, *command, before=args.prefix.split())
        return file.read_text(), time.monotonic() - begin
    (text_of, took), others = undisturbed(args, run)
    file.write_text(text_of)
    args.cluster = file
    args.last = args.bench_reference = reference(args)
    beside(file).write_text(f"{args.last}\n")
    print(f"bench: {took:.1f} s, others {100 * others:.1f} %, then the fixed run {1e3 * args.last:.1f} ms", flush=True)


def planned(args, sections, cluster):
    with tempfile.TemporaryDirectory(dir=args.scratch) as temporary:
        folder = Path(temporary)
        write_shard(folder / "random.bin")
        run = folder / "run.toml"
        run.write_text(run_file(sections, folder / "random.bin", folder, 100, cluster))
        return json.loads(program(args, "plan", run, "--json"))["candidates"][0]


def loaded(args, sections, cluster, load):
    """The plan where the fullest rank of experts has so many means, or is "untrained"; None where nothing is divided so."""
    if not load or sections["layout"].get("ep", 1) == 1:
        return None
    load = load if isinstance(load, str) else max(1.0, round(load, 4))
    return planned(args, {**sections, "layout": {**sections["layout"], "ep_load": load}}, cluster)


def forecasts(args, sections, cluster, load):
    """The balanced plan, and what a line of JSON says of the others; load: as it was measured."""
    plan = planned(args, sections, cluster)
    expected = loaded(args, sections, cluster, "untrained")
    routed = loaded(args, sections, cluster, load)
    return plan, {"expected_s": (expected or plan)["step_s"], "balanced_s": plan["step_s"], "roof_s": plan["roof_s"],
                  "routed_s": routed and routed["step_s"], "expected_load": expected and expected["untrained"]}


def measure(args, seed):
    sections = draw(seed)
    before = args.last or reference(args)
    plan = planned(args, sections, args.cluster)
    steps = 2 + max(5, min(40, int(args.seconds / plan["step_s"])))
    (seconds, last), others = undisturbed(args, lambda: steps_of(args, sections, steps))
    args.last = reference(args)
    wire = {name: w["bytes"] for name, w in plan["wire"].items() if w["bytes"]}
    measured = {name: n for name, n in last.get("comm_bytes", {}).items() if n}
    same = wire == measured and plan["memory"]["total"] == last["peak_bytes"]["total"]
    _, said = forecasts(args, sections, args.cluster, last.get("ep_load"))
    return {"seed": seed, "draw": sections, **said, "ep_load": last.get("ep_load"),
            "measured_s": statistics.median(seconds), "steps": len(seconds), "bytes_equal": same,
            "reference_s": (before + args.last) / 2, "bench_reference_s": args.bench_reference, "others": others,
            "cluster": str(args.cluster)}


def line_of(row):
    d = row["draw"]
    layout = " ".join(f"{k}={v}" for k, v in d["layout"].items())
    error = row["expected_s"] / row["measured_s"] - 1
    return (f"| {row['seed']} | {d['model']['arch']} {d['model']['layers']}x{d['model']['hidden']} "
            f"{d['precision']['compute']} | {layout} | {1e3 * row['roof_s']:.1f} | {1e3 * row['expected_s']:.1f} | "
            f"{1e3 * row['measured_s']:.1f} | {100 * error:+.1f} % | {'equal' if row['bytes_equal'] else '-'} |")


def percentile(values, share):
    values = sorted(values)
    return values[min(len(values) - 1, int(share * len(values)))]


def over_passes(rows):
    """One row a layout: medians over its measurements and forecasts; bytes equal in all of them."""
    layouts = {}
    for row in rows:
        layouts.setdefault(row["seed"], []).append(row)
    seconds = ("expected_s", "balanced_s", "routed_s", "roof_s", "measured_s", "clocked_s")
    return [dict(of[0], bytes_equal=all(r["bytes_equal"] for r in of),
                 **{key: statistics.median(r[key] for r in of) for key in seconds}) for of in layouts.values()]


def kind_of(row):
    layout = row["draw"]["layout"]
    return next(axis for axis in ("pp", "ep", "cp", "tp", "dp") if layout.get(axis, 1) > 1)


def summary(rows, name, what, key="measured_s"):
    errors = [abs(r[name] / r[key] - 1) for r in rows]
    return (f"{what}: {len(rows)} layouts, error median {100 * statistics.median(errors):.1f} %, "
            f"90th percentile {100 * percentile(errors, 0.9):.1f} %, "
            f"mean of forecast / measured {statistics.mean(r[name] / r[key] for r in rows):.3f}")


def report(measured):
    usual = statistics.median(r["reference_s"] for r in measured)
    for r in measured:
        r["balanced_s"] = r.get("balanced_s") or r["expected_s"]
        r["routed_s"] = r.get("routed_s") or r["expected_s"]
        r["clocked_s"] = r["measured_s"] * (r.get("bench_reference_s") or usual) / r["reference_s"]
    rows = over_passes(measured)
    if len(measured) > len(rows):
        print(f"medians of {len(measured) / len(rows):.3g} measurements a layout\n")
    print("| seed | model | layout | roof ms | expected ms | measured ms | error | bytes |")
    print("|---|---|---|---|---|---|---|---|")
    for row in rows:
        print(line_of(row))
    print(summary(rows, "expected_s", "expected"))
    print(summary(rows, "expected_s", "expected, without drift since bench", "clocked_s"))
    print(summary(rows, "balanced_s", "expected, a balanced router"))
    print(summary(rows, "routed_s", "expected, experts' ranks as full as they were"))
    print(summary(rows, "roof_s", "roof"))
    if len(measured) > len(rows):
        print(summary(measured, "expected_s", "each measurement by itself"))
        print(summary(measured, "routed_s", "each by itself, experts' ranks as full as they were"))
    for kind in ("dp", "tp", "cp", "ep", "pp"):
        if of := [r for r in rows if kind_of(r) == kind]:
            print(summary(of, "expected_s", f"expected, {kind}"))
            if kind == "ep":
                print(summary(of, "balanced_s", "expected, ep, a balanced router"))
                print(summary(of, "routed_s", "expected, ep, experts' ranks as full as they were"))
                for r in of:
                    if r.get("ep_load") and r.get("expected_load"):
                        e = r["expected_load"]
                        print(f"seed {r['seed']}: fullest rank {r['ep_load']:.3f} means, expected {e['ep_load']:.3f} "
                              f"({e['low']:.3f} to {e['high']:.3f})")
    spread = sorted(r["reference_s"] / usual for r in measured)
    print(f"the fixed run beside them: {spread[0]:.2f} to {spread[-1]:.2f} of its median")
    if all(r.get("bench_reference_s") for r in measured):
        drift = [r["reference_s"] / r["bench_reference_s"] - 1 for r in measured]
        print(f"drift since bench, of the fixed run: median {100 * statistics.median(drift):+.1f} %, of magnitudes "
              f"{100 * statistics.median(map(abs, drift)):.1f} %, 90th percentile {100 * percentile(map(abs, drift), 0.9):.1f} %")
    if all("others" in r for r in measured):
        others = [r["others"] for r in measured]
        print(f"others had, median and most: {100 * statistics.median(others):.1f} and {100 * max(others):.1f} % of the processors")


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--trireme", default=ROOT / "build/release/trireme", type=Path)
    p.add_argument("--cluster", type=Path, help="cluster file that bench wrote")
    p.add_argument("--begin", type=int, default=1, help="first seed")
    p.add_argument("--count", type=int, default=50, help="layouts")
    p.add_argument("--passes", type=int, default=1, help="times that every layout is measured")
    p.add_argument("--seconds", type=float, default=3, help="of training, each")
    p.add_argument("--prefix", default="", help="words before each training run, as a priority: \"nice -n -20\"")
    p.add_argument("--out", type=Path, help="file of JSON lines to add to")
    p.add_argument("--scratch", help="folder for temporary files")
    p.add_argument("--report", type=Path, help="print the table of such a file")
    p.add_argument("--again", action="store_true", help="with --report: forecast each layout anew by its own cluster file")
    p.add_argument("--bench", type=int, default=0, help="measure the machine before each so many layouts; 0: --cluster as it is")
    p.add_argument("--quiet", type=float, default=0.03, help="share of the processors that others may have meanwhile")
    p.add_argument("--tries", type=int, default=3, help="times that a disturbed run is made")
    args = p.parse_args()
    if args.scratch:
        os.makedirs(args.scratch, exist_ok=True)
    args.named = args.cluster = args.cluster and args.cluster.resolve()
    if args.report:
        rows = [json.loads(line) for line in args.report.read_text().splitlines()]
        plans = {}
        for row in rows:
            cluster = row["cluster"] if args.again else args.cluster
            if not cluster:
                continue
            of = row["seed"], str(cluster)
            if of not in plans:
                plans[of] = forecasts(args, row["draw"], cluster, row.get("ep_load"))[1]
            row.update(plans[of])
        return report(rows)
    if not args.cluster:
        p.error("--cluster is missing: trireme bench --out FILE writes one")
    rows, args.last, args.bench_reference = [], None, None
    if beside(args.cluster).exists():
        args.bench_reference = float(beside(args.cluster).read_text())
    if args.bench and args.count == 0:
        return measure_machine(args, 0)
    for i, seed in enumerate(list(range(args.begin, args.begin + args.count)) * args.passes):
        if args.bench and i % args.bench == 0:
            measure_machine(args, i // args.bench)
        rows.append(measure(args, seed))
        print(line_of(rows[-1]), flush=True)
        if args.out:
            with args.out.open("a") as f:
                f.write(json.dumps(rows[-1]) + "\n")
    report(rows)


if __name__ == "__main__":
    main()
