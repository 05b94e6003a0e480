"""Seconds from the command to the end of the first step: `trireme train` as a user starts it."""

import subprocess
import tempfile
import time
from pathlib import Path

from lines import Load, Section, median, percent
from step import MODELS, run_file, write_shard


def seconds_to_first_step(options, model, precision):
    m = MODELS[model]
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        write_shard(folder / "random.bin", m["vocab"], 64 * m["batch"] * m["seq"] + 1)
        path = folder / "run.toml"
        path.write_text(run_file(m, folder, precision, 0, 1000))
        metrics = folder / "run" / "metrics.jsonl"
        begin = time.monotonic()
        process = subprocess.Popen([options.trireme, "train", path], stdout=subprocess.DEVNULL,
                                   stderr=subprocess.DEVNULL)
        try:
            while not (metrics.exists() and metrics.stat().st_size > 0):
                if process.poll() is not None:
                    raise SystemExit(f"trireme train ended with {process.returncode} before its first step")
                time.sleep(0.002)
            return time.monotonic() - begin
        finally:
            process.kill()  # nothing of this run is wanted: no checkpoint is written
            process.wait()


def startup(options):
    lines = []
    for model in options.model:
        with Load() as load:
            seconds = [seconds_to_first_step(options, model, "bf16") for _ in range(3)]
        lines.append({"model": model, "precision": "bf16", "seconds": round(median(seconds), 2),
                      "least": round(min(seconds), 2), "others' CPU": percent(load.others)})
    return [Section("Start-up to the first step", "make bench", lines,
                    "From starting `trireme train` to the first line of metrics.jsonl; median of 3.")]
