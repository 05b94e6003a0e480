"""tp = 2 ranks of one thread against one rank of two threads: the same processors, the same model and batch."""

import json
import tempfile
from pathlib import Path

from lines import Load, Section, median, percent, run
from step import MODELS, run_file, write_shard

# 384 and 768 wide; vocabularies small enough that the blocks, not the head, are most of a step.
WIDTHS = {"llama-6x384": MODELS["llama-6x384"],
          "llama-4x768": dict(MODELS["llama-6x384"], layers=4, hidden=768, heads=12, ffn=2048)}
WAYS = {"1 rank x 2 threads": ("threads=2",),
        "tp = 2": ("threads=1", "tp=2"),
        "tp = 2, sequence": ("threads=1", "tp=2", "sequence=true")}


def step_seconds(options, model, precision, way):
    """Seconds of every step of a run of `trireme train`, the first ones left out."""
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        m = WIDTHS[model]
        write_shard(folder / "random.bin", m["vocab"], 64 * m["batch"] * m["seq"] + 1)
        path = folder / "run.toml"
        path.write_text(run_file(m, folder, precision, 1, options.warmup + options.steps))
        sets = [f"{'train' if s.startswith('threads') else 'layout'}.{s}" for s in WAYS[way]]
        run([options.trireme, "train", path] + [word for s in sets for word in ("--set", s)])
        lines = (folder / "run" / "metrics.jsonl").read_text().splitlines()
        return [json.loads(line)["step_s"] for line in lines][options.warmup:]


def tensor_parallel(options):
    lines = []
    for model, m in WIDTHS.items():
        for precision in options.precision:
            with Load() as load:
                seconds = {way: [] for way in WAYS}
                for _ in range(options.rounds):  # in turn, so that a busy minute meets all
                    for way in WAYS:
                        seconds[way] += step_seconds(options, model, precision, way)
            first = median(seconds["1 rank x 2 threads"])
            for way in WAYS:
                step = median(seconds[way])
                lines.append({"model": model, "precision": precision, "ranks": way, "step ms": round(1e3 * step, 1),
                              "tokens/s": round(m["batch"] * m["seq"] / step), "of one rank's": percent(first / step),
                              "others' CPU": percent(load.others)})
    return [Section("Tensor parallelism on the same processors", "make bench", lines,
                    "Thread backend, one microbatch a step; median of all steps after the warm-up.")]
