"""What recompute and offload cost: steps of the same model and batch in turn, beside the FLOPs that plan forecasts."""

import json
import shutil
import tempfile
from pathlib import Path

from lines import Load, Section, median, percent, run
from step import MODELS, run_file, write_shard

MODEL = "llama-6x384"
ALL = '["n1","qkv","o","mid","n2","u","a"]'
# The first of each is what the others are measured against: one rank of two threads, tp = 2 of one thread each.
WAYS = [
    {"none": (), "selective (n1, n2, a)": ("recompute=selective",),
     "selective (all seven)": ("recompute=selective", f"recompute_tensors={ALL}"), "full": ("recompute=full",),
     "full, inputs in a file": ("recompute=full", "offload=inputs"), "state in a file": ("offload=state",)},
    {"tp = 2, none": ("tp=2",), "tp = 2, full": ("tp=2", "recompute=full"),
     "tp = 2, full, sharded": ("tp=2", "recompute=full", "recompute_shard=true")}]


class Runs:
    """Runs of one precision in a folder, all beside the same measured machine."""

    def __init__(self, options, folder, precision):
        self.options, self.folder, self.precision = options, folder, precision
        m = MODELS[MODEL]
        write_shard(folder / "random.bin", m["vocab"], 64 * m["batch"] * m["seq"] + 1)
        run([options.trireme, "bench", "--out", folder / "cluster.toml"])

    def command(self, verb, sets):
        steps = self.options.warmup + self.options.steps
        path = self.folder / "run.toml"
        path.write_text(run_file(MODELS[MODEL], self.folder, self.precision, 1 if "tp=2" in sets else 2, steps))
        words = [f"cluster.file={self.folder / 'cluster.toml'}", *(f"layout.{s}" for s in sets)]
        return [self.options.trireme, verb, path, *(word for s in words for word in ("--set", s))]

    def forecast(self, sets):
        return json.loads(run([*self.command("plan", sets), "--json"]))["candidates"][0]

    def step_seconds(self, sets):
        shutil.rmtree(self.folder / "run", ignore_errors=True)
        run(self.command("train", sets))
        lines = (self.folder / "run" / "metrics.jsonl").read_text().splitlines()
        return [json.loads(line)["step_s"] for line in lines][self.options.warmup:]


def line_of(precision, way, plan, base, seconds, base_seconds, load):
    disk = plan.get("disk", {"bytes_read": 0, "bytes_written": 0})
    return {"precision": precision, "way": way, "step ms": round(1e3 * median(seconds), 1),
            "least": round(1e3 * min(seconds), 1), "of none's": percent(median(seconds) / median(base_seconds)),
            "plan's time of none's": percent(plan["step_s"] / base["step_s"]),
            "FLOPs of none's": percent(plan["hardware_flops"] / base["hardware_flops"]),
            "activations MiB": round(plan["memory"]["activations"] / 2**20, 1),
            "optimizer MiB": round(plan["memory"]["optimizer"] / 2**20, 1),
            "disk MiB": round((disk["bytes_read"] + disk["bytes_written"]) / 2**20, 1),
            "others' CPU": percent(load.others)}


def recompute(options):
    lines = []
    for precision in options.precision:
        with tempfile.TemporaryDirectory() as temporary, Load() as load:
            runs = Runs(options, Path(temporary), precision)
            ways = {way: sets for group in WAYS for way, sets in group.items()}
            told = {way: runs.forecast(sets) for way, sets in ways.items()}
            seconds = {way: [] for way in ways}
            for _ in range(options.rounds):  # in turn, so that a busy minute meets all
                for way, sets in ways.items():
                    seconds[way] += runs.step_seconds(sets)
        for group in WAYS:
            first = next(iter(group))
            lines += [line_of(precision, way, told[way], told[first], seconds[way], seconds[first], load)
                      for way in group]
    return [Section("Recompute and offload", "python3 bench/report.py --section recompute", lines,
                    "One rank of two threads, and tp = 2 of one thread each; one microbatch a step; memory and disk of a "
                    "rank as plan forecasts them, which is what runs take.")]
