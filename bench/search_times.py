#!/usr/bin/env python3
"""User seconds of `trireme search` for every named model.

    python3 bench/search_times.py build/release/trireme --gpus 64 --clusters h100-p5,A100-80GB

Each search runs on one core, twice; the smaller figure counts. Prints a Markdown table of those above --list
seconds and the quantiles of all. Exits with 0 whatever the figures are.
"""
import argparse
import os
import re
import subprocess
import time


def seconds(command):
    before = os.times().children_user
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return os.times().children_user - before, done.returncode


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("trireme")
    parser.add_argument("--gpus", default="64")
    parser.add_argument("--clusters", default="h100-p5,A100-80GB")
    parser.add_argument("--batch", default="256")
    parser.add_argument("--seq", default="4096")
    parser.add_argument("--list", type=float, default=1.0)
    o = parser.parse_args()
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    unknown = subprocess.run([o.trireme, "search", "--model", "no-such-model-name"], capture_output=True, text=True, check=False)
    models = re.search(r"or one of: (.*)", unknown.stderr).group(1).strip().split(", ")
    rows = []
    for model in models:
        for cluster in o.clusters.split(","):
            command = [o.trireme, "search", "--model", model, "--cluster", cluster, "--gpus", o.gpus,
                       "--global-batch", o.batch, "--seq", o.seq]
            first, code = seconds(command)
            best = min(first, seconds(command)[0])
            if code in (0, 2):  # 2: nothing fits, or the model has no such positions
                rows.append((best, model, cluster, code))
    rows.sort(reverse=True)
    all_s = sorted(r[0] for r in rows)
    print(time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()), f"{o.gpus} GPUs, {o.batch} sequences of {o.seq} tokens")
    print(f"\n{len(rows)} searches: median {all_s[len(all_s) // 2]:.2f} s, "
          f"9 of 10 below {all_s[int(0.9 * len(all_s))]:.2f} s, the longest {all_s[-1]:.2f} s\n")
    print("| model | cluster | s |\n|---|---|---|")
    for s, model, cluster, code in rows:
        if s > o.list:
            print(f"| {model} | {cluster} | {s:.2f}{' (nothing fits)' if code == 2 else ''} |")


if __name__ == "__main__":
    main()
