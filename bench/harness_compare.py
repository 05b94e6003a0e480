#!/usr/bin/env python3
"""Compares `trireme eval --tasks` with lm-evaluation-harness, on the same folder, files and precision.

    bench/harness_compare.py TRIREME MODEL [TASK.yaml ...] [--fewshot N] [--limit N] [--device cpu]

MODEL is a Hugging Face folder. Without tasks, those in bench/harness run, on documents that make_data.py writes.
The Python that runs this has lm_eval, torch and transformers. Exit code 1 if a score differs by more than 0.2 points
(of perplexities and bits per byte: 0.2 percent).
"""
import argparse
import json
import pathlib
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent


def ours(args, task, run):
    command = [args.trireme, "eval", str(run), "--tasks", str(task), "--json"]
    command += ["--fewshot", str(args.fewshot)] if args.fewshot is not None else []
    command += ["--limit", str(args.limit)] if args.limit else []
    return json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, cwd=task.parent).stdout)


def theirs(args, task, model):
    import os

    import lm_eval
    import yaml
    os.chdir(task.parent)
    config = yaml.safe_load(task.read_text(encoding="utf-8"))
    return lm_eval.simple_evaluate(model=model, tasks=[config], num_fewshot=args.fewshot, limit=args.limit,
                                   bootstrap_iters=0)["results"][config["task"]]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trireme", type=lambda p: str(pathlib.Path(p).resolve()))
    parser.add_argument("model", type=lambda p: pathlib.Path(p).resolve())
    parser.add_argument("tasks", nargs="*", type=lambda p: pathlib.Path(p).resolve())
    parser.add_argument("--fewshot", type=int)
    parser.add_argument("--limit", type=int)
    parser.add_argument("--device", default="cpu")
    args = parser.parse_args()
    if not args.tasks:
        subprocess.run([sys.executable, str(HERE / "harness" / "make_data.py")], check=True)
        args.tasks = sorted((HERE / "harness").glob("*.yaml"))
    from lm_eval.models.huggingface import HFLM
    model = HFLM(pretrained=str(args.model), dtype="float32", device=args.device, batch_size=8)
    worst = 0
    with tempfile.TemporaryDirectory() as folder:
        run = pathlib.Path(folder) / "run.toml"
        run.write_text(f'[model]\nfrom = "{args.model}"\n[precision]\ncompute = "f32"\n'
                       f'[train]\ndir = "{folder}/run"\ndevice = "{args.device}"\n', encoding="utf-8")
        for task in args.tasks:
            own, other = ours(args, task, run)["results"], theirs(args, task, model)
            for key, value in own.items():
                if "_stderr" in key or not isinstance(other.get(key), (int, float)):
                    continue
                share = key.split(",")[0] in ("acc", "acc_norm", "acc_bytes", "exact_match")
                points = abs(value - other[key]) * 100 if share else abs(value / other[key] - 1) * 100
                worst = max(worst, points)
                print(f"{task.stem:12} {key:32} trireme {value:10.5f}  lm-eval {other[key]:10.5f}  apart {points:.4f}",
                      flush=True)
    print(f"largest difference {worst:.4f} points")
    return 1 if worst > 0.2 else 0


if __name__ == "__main__":
    sys.exit(main())
