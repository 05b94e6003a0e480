#!/usr/bin/env python3
"""What compute waits for over a link that delays: the schedule's own timeline, and nothing that could have been hidden.

    tests/overlap/exposed_test.py TRIREME_OVERLAP

Real steps of 2 and 3 rank threads whose ops sleep until a block's forward takes its pace, so that compute is longer than
communication whatever else the machine does. Medians over the steps; nothing is tried again. For plain data parallelism and ZeRO 3:

  measured waits = the replay of the step's tape with the link's alpha and beta, within 5 %;
  waits beyond the first gather and the last reduction, which nothing hides, <= 5 % of the waits without overlap (every
  collective in turn).

ZeRO 3 has one wait between a microbatch's two passes, 1 of 3 (layers + 2) collectives; with layout.reshard_last = false
(--keep-last) it has none, however few the layers.
"""
import json
import statistics
import subprocess
import sys

# Slow enough that some milliseconds until a thread is woken, on a machine with other work, are little beside a wait.
LINK = ["--alpha=1e-4", "--beta=6.4e-7"]
CASES = [  # ranks, ms of a block's forward, arguments
    (2, 80, ["--zero=0"]),
    (3, 100, ["--zero=0"]),
    (2, 80, ["--zero=3", "--layers=8"]),
    (3, 160, ["--zero=3", "--layers=8"]),
    (2, 80, ["--zero=3", "--keep-last", "--layers=2"]),
    (3, 160, ["--zero=3", "--keep-last", "--layers=3"]),
    (3, 320, ["--zero=3", "--keep-last", "--layers=2", "--microbatches=2"]),
]


def main():
    failed = 0
    for ranks, pace, case in CASES:
        command = [sys.argv[1], f"--ranks={ranks}", f"--pace={pace}", "--steps=7", *LINK, *case]
        x = json.loads(subprocess.run(command, check=True, capture_output=True, text=True, timeout=300).stdout)
        # Each step beside its own replay: how long its ranks computed is another from step to step.
        ratio, beyond = statistics.median(x["ratios"]), x["beyond_ends_s"] / x["comm_s"]
        longer = x["compute_s"] > x["comm_s"]
        ok = longer and abs(ratio - 1) <= 0.05 and beyond <= 0.05
        failed += not ok
        print(f"{'ok' if ok else 'FAILED'}: {ranks} ranks {' '.join(case)}: compute {1e3 * x['compute_s']:.0f} ms, link "
              f"{1e3 * x['comm_s']:.0f} ms; waits {1e3 * x['measured_s']:.1f} ms; over its timeline's {ratio:.3f} "
              f"({min(x['ratios']):.3f} to {max(x['ratios']):.3f}); beyond the ends {100 * beyond:.1f} % of the link's", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
