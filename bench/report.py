#!/usr/bin/env python3
"""Measures everything that bench/README.md speaks of, and writes one table.

    python3 bench/report.py                                     # or: make bench
    python3 bench/report.py --peer-python ~/goldens-venv/bin/python --model gpt2-124m --precision bf16 --threads 2

Writes report.md and report.json (default: build/bench/) and prints the table. Needs only the built programs and
Python's standard library; PyTorch's lines need a Python that has torch. Each line says what share of the processors
other processes used while it was measured: above some 5 % the line says more about them than about trireme.
"""

import argparse
import dataclasses
import datetime
import json
import platform
from pathlib import Path

from collectives import collectives
from encode import encode
from pipeline import pipeline
from ranks import overlap, ranks
from recompute import recompute
from startup import startup
from step import MODELS, ROOT
from tensor_parallel import tensor_parallel
from training import training

# Each: (options) -> list of Section. A new one goes at the end.
SECTIONS = [training, startup, encode, collectives, tensor_parallel, ranks, overlap, pipeline, recompute]


def processor():
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.machine()


def markdown(section):
    columns = list(section.lines[0]) if section.lines else []
    # A column that no line fills is left out.
    columns = [c for c in columns if any(line[c] != "-" for line in section.lines)]
    rows = [columns, ["---"] * len(columns), *([str(line[c]) for c in columns] for line in section.lines)]
    table = "\n".join("| " + " | ".join(row) + " |" for row in rows)
    note = f"\n\n{section.note}" if section.note else ""
    return f"## {section.title}\n\n`{section.command}`\n\n{table}{note}\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--section", nargs="+", choices=[s.__name__ for s in SECTIONS],
                        default=[s.__name__ for s in SECTIONS], help="what to measure (default: all)")
    parser.add_argument("--model", nargs="+", choices=MODELS, default=["gpt2-6x384", "gpt2-124m"])
    parser.add_argument("--precision", nargs="+", choices=["f32", "bf16"], default=["f32", "bf16"])
    parser.add_argument("--threads", nargs="+", type=int, default=[2, 1])
    parser.add_argument("--steps", type=int, default=10, help="timed steps of a process (default 10)")
    parser.add_argument("--warmup", type=int, default=3, help="steps before them (default 3)")
    parser.add_argument("--rounds", type=int, default=2, help="times that trireme and the peers take turns")
    parser.add_argument("--peer-python", default="", help="a Python that has torch; without it no peer is measured")
    parser.add_argument("--peer-modes", nargs="+", choices=["eager", "compile"], default=["eager", "compile"])
    build = ROOT / "build" / "release"
    parser.add_argument("--trireme", type=Path, default=build / "trireme", help="default: build/release/trireme")
    parser.add_argument("--step-ops", type=Path, default=build / "bench" / "trireme_step_ops")
    parser.add_argument("--collectives", type=Path, default=build / "bench" / "trireme_collectives")
    parser.add_argument("--overlap", type=Path, default=build / "bench" / "trireme_overlap")
    parser.add_argument("--pipeline", type=Path, default=build / "bench" / "trireme_pipeline")
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "bench", help="folder for the report")
    options = parser.parse_args()

    begin = datetime.datetime.now(datetime.timezone.utc)
    sections = [part for s in SECTIONS if s.__name__ in options.section for part in s(options)]
    head = f"# Benchmarks: {processor()}, {begin:%Y-%m-%d %H:%M} UTC\n"
    text = "\n".join([head, *map(markdown, sections)])
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / "report.md").write_text(text)
    (options.out / "report.json").write_text(json.dumps(
        {"processor": processor(), "date": begin.isoformat(), "sections": list(map(dataclasses.asdict, sections))},
        indent=1) + "\n")
    print(text)
    print(f"written: {options.out / 'report.md'}, {options.out / 'report.json'}")


if __name__ == "__main__":
    main()
