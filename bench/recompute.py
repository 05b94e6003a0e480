"""What recompute and offload cost: steps of the same model and batch in turn, beside the FLOPs that plan forecasts."""

import json
import shutil
import tempfile
from pathlib import Path

from lines import Load, Section, median, percent, run
from step import MODELS, run_file, write_shard

MODEL = "llama-6x384"
ALL = '["n1","qkv","o","mid","n2","u","a"]'
# The first of each list is what the others are measured against: one rank of two threads, tp = 2 of one thread.
WAYS = [
    {"none": (), "selective (n1, n2, a)": ("recompute=selective",),
     "selective (all seven)": ("recompute=selective", f"recompute_tensors={ALL}"), "full": ("recompute=full",),
     "full, inputs in a file": ("recompute=full", "offload=inputs"), "state in a file": ("offload=state",)},
    {"tp = 2, none": ("tp=2",), "tp = 2, full": ("tp=2", "recompute=full"),
     "tp = 2, full, sharded": ("tp=2", "recompute=full", "recompute_shard=true")}]


def steps_of(options, folder, precision, sets):
    """Lines of a run's metrics, the first ones left out, and what plan says of it."""
    path = folder / "run.toml"
    threads = 1 if "tp=2" in sets else 2
    path.write_text(run_file(MODELS[MODEL], folder, precision, threads, options.warmup + options.steps))
    words = [word for s in sets for word in ("--set", f"layout.{s}")]
    shutil.rmtree(folder / "run", ignore_errors=True)
    forecast = json.loads(run([options.trireme, "plan", path, "--json", *words]))["candidates"][0]
    run([options.trireme, "train", path, *words])
    lines = (folder / "run" / "metrics.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines][options.warmup:], forecast


def recompute(options):
    rows = []
    for precision in options.precision:
        seconds, told = {}, {}
        with tempfile.TemporaryDirectory() as temporary, Load() as load:
            folder, m = Path(temporary), MODELS[MODEL]
            write_shard(folder / "random.bin", m["vocab"], 64 * m["batch"] * m["seq"] + 1)
            for _ in range(options.rounds):  # in turn, so that a busy minute meets all
                for ways in WAYS:
                    for way, sets in ways.items():
                        lines, told[way] = steps_of(options, folder, precision, sets)
                        seconds.setdefault(way, []).extend(line["step_s"] for line in lines)
        for ways in WAYS:
            first = next(iter(ways))
            for way in ways:
                plan, mib = told[way], 1 / 2**20
                disk = plan.get("disk", {"bytes_read": 0, "bytes_written": 0})
                rows.append({
                    "precision": precision, "way": way, "step ms": round(1e3 * median(seconds[way]), 1),
                    "least": round(1e3 * min(seconds[way]), 1),
                    "of none's": percent(median(seconds[way]) / median(seconds[first])),
                    "FLOPs of none's": percent(plan["hardware_flops"] / told[first]["hardware_flops"]),
                    "activations MiB": round(plan["memory"]["activations"] * mib, 1),
                    "optimizer MiB": round(plan["memory"]["optimizer"] * mib, 1),
                    "disk MiB": round((disk["bytes_read"] + disk["bytes_written"]) * mib, 1),
                    "others' CPU": percent(load.others)})
    return [Section("Recompute and offload", "python3 bench/report.py --section recompute", rows,
                    "One rank of two threads, and tp = 2 of one thread each; one microbatch a step; memory and disk of a "
                    "rank as plan forecasts them, which is what runs take.")]
