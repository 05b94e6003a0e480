#!/usr/bin/env python3
"""Measures what tracing costs a traced step: every second step of one run is traced.

    bench/trace_cost.py build/release/trireme RUN.toml [--steps 400] [--set key=value ...]

Prints the median over neighbouring pairs of traced / untraced step time, and the middle half of the ratios. Pairs are
neighbours in time, so that other processes disturb both sides alike.
"""
import argparse
import json
import statistics
import subprocess
import tempfile


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("trireme")
    parser.add_argument("run")
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--set", action="append", default=[])
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        traced = set(range(10, args.steps, 2))
        command = [args.trireme, "train", args.run, "--set", f"train.steps={args.steps}", "--set",
                   f'train.dir="{folder}/run"', "--set", "train.checkpoint_every=0", "--trace-steps",
                   ",".join(map(str, sorted(traced)))]
        for one in args.set:
            command += ["--set", one]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        seconds = {}
        with open(f"{folder}/run/metrics.jsonl") as lines:
            for line in lines:
                step = json.loads(line)
                seconds[step["step"]] = step["step_s"]
        ratios = sorted(2 * seconds[s] / (seconds[s - 1] + seconds[s + 1]) for s in traced if s + 1 in seconds)
        quarter = len(ratios) // 4
        print(f"{len(ratios)} traced steps: {100 * (statistics.median(ratios) - 1):+.2f} % per traced step "
              f"(middle half {100 * (ratios[quarter] - 1):+.2f} to {100 * (ratios[-quarter - 1] - 1):+.2f} %)")


if __name__ == "__main__":
    main()
