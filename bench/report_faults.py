#!/usr/bin/env python3
"""Plants real faults in short runs and checks that `trireme report` names each, and none in clean runs.

    bench/report_faults.py build/release/trireme RUN.toml [--only NAME]

RUN.toml is a small run of one CPU rank whose data exists. Faults that need other hardware (wrong placement, a falling
clock, a slow disk, slow input) are planted in files by tests/unit/report/diagnoses_test.cc. Run it on a quiet machine.
"""
import argparse
import json
import os
import subprocess
import sys
import tempfile

BASE = ["train.checkpoint_every=0", "batch.global=16", "batch.micro=8"]  # without a fault; later sets win
FAULTS = {
    "serialised_communication": ["layout.dp=2", "layout.bucket_mb=1000", "batch.micro=1", "batch.global=2",
                                 "data.seq_len=32", "model.hidden=512", "model.heads=8", "model.ffn=1536",
                                 "optimizer.name=adamw", "optimizer.lr=1e-3"],
    "microbatch_too_small": ["batch.micro=1", "data.seq_len=32", "batch.global=32"],
    "checkpoints_too_frequent": ["train.checkpoint_every=1", "train.async_save=false"],
    "needless_recompute": ["layout.recompute=full"],
    "straggler": ["layout.dp=2"],
    "launch_overhead": ["model.hidden=16", "model.ffn=16", "model.heads=1", "model.kv_heads=1", "batch.micro=1",
                        "data.seq_len=8"],
}
CLEAN = {
    "one rank": [],
    "two replicas": ["layout.dp=2"],
    "two stages": ["layout.pp=2"],
    "large microbatch": ["batch.micro=16"],
    "long sequences": ["data.seq_len=256"],
}


def found_in(args, sets, slow_rank):
    with tempfile.TemporaryDirectory() as folder:
        command = [args.trireme, "train", args.run, "--trace-steps", "20-25", "--set", f'train.dir="{folder}/run"',
                   "--set", "train.steps=40"]
        for one in BASE + sets:
            command += ["--set", one]
        # A process that computes on the last core slows the rank that is bound to it.
        busy = subprocess.Popen(["taskset", "-c", str(os.cpu_count() - 1), sys.executable, "-c", "while True: pass"]) \
            if slow_rank else None
        try:
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        finally:
            if busy:
                busy.kill()
                busy.wait()
        report = json.loads(subprocess.run([args.trireme, "report", f"{folder}/run", "--json"], check=True,
                                           capture_output=True).stdout)
        return ({c["id"]: c["number"] for c in report["checked"] if c["found"]},
                {c["id"]: c["number"] for c in report["checked"]})


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("trireme")
    parser.add_argument("run")
    parser.add_argument("--only")
    args = parser.parse_args()
    missed, invented = 0, 0
    for fault, sets in FAULTS.items():
        if args.only in (None, fault):
            found, numbers = found_in(args, sets, fault == "straggler")
            missed += fault not in found
            print(f"{fault:<26} {'found' if fault in found else 'MISSED: ' + numbers.get(fault, '-')}  {found}", flush=True)
    for name, sets in CLEAN.items():
        if args.only in (None, name):
            found, _ = found_in(args, sets, False)
            invented += bool(found)
            print(f"clean: {name:<19} {'INVENTED' if found else 'none'}  {found or ''}", flush=True)
    print(f"{missed} faults missed, {invented} clean runs with a finding")
    return 1 if missed or invented else 0


if __name__ == "__main__":
    sys.exit(main())
