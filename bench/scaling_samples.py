#!/usr/bin/env python3
"""T2 on trained models: samples at inference against size, on a task with exact success probabilities (PAPERS 2.7 B).

    python3 bench/scaling_samples.py --ladder build/forecast/ladder --tasks tasks.txt --work build/samples

Each problem is a place in a text that no model was trained on: 64 characters of prompt, and the next 3 to 8
characters as the answer. A model's success probability is its likelihood of that answer, so pass@k is exact:
1 - (1 - p)^k. The runs of a ladder are the models (trireme scale run).

The most overtrained fifth of the models is held out. The output has the extrapolation error of both approaches on them,
and, at equal training FLOPs and equal 2 N k, pass@k of the best overtrained model against Chinchilla's best one.
"""

import argparse
import csv
import json
import math
import random
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "bench"))
from scaling_forecast import call  # noqa: E402

SAMPLES = (1, 2, 4, 8, 16, 32, 64, 128, 256)


def write_tasks(o, file):
    text = o.tasks.read_text(errors="ignore")
    draw = random.Random(1)
    with file.open("w") as out:
        for _ in range(o.problems):
            at = draw.randrange(64, len(text) - 8)
            answer = text[at:at + draw.randrange(3, 9)]
            out.write(json.dumps({"prompt": text[at - 64:at], "choices": [answer, "#"], "answer": 0}) + "\n")


def likelihoods(o, item, tasks):
    file = o.work / f"{item['name']}.jsonl"
    if not file.exists():
        call(o.trireme, "eval", item["dir"], "--tasks", tasks, "--out", file)
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    return [math.exp(line["log_likelihood"][0]) for line in lines]


def rows_of(item, chances):
    for k in SAMPLES:
        fails = [max(1e-300, (1 - p) ** k) for p in chances]
        passes = [min(1.0, max(1e-12, 1 - f)) for f in fails]
        yield {"run": item["name"], "N": item["N"], "D": item["D"], "k": k, "pass": sum(passes) / len(passes),
               "task_loss": max(1e-9, -sum(map(math.log, passes)) / len(passes))}


def write_table(file, rows):
    with file.open("w", newline="") as out:
        table = csv.DictWriter(out, ["run", "N", "D", "k", "pass", "task_loss"])
        table.writeheader()
        table.writerows(rows)


def forecast(law, row):
    """Task loss by approach 1, and pass@k by approach 2."""
    t = law["task"]
    loss = (t["E"] + t["A"] / row["N"] ** t["alpha"] + t["B"] / row["D"] ** t["beta"] + t["G"] / row["k"] ** t["gamma"])
    c, theta = law["pass"]["law"], law["pass"]["theta"]
    of_model = c["E"] + c["A"] / row["N"] ** c["alpha"] + c["B"] / row["D"] ** c["beta"]
    mean = theta[2] / (1 + math.exp(theta[1] * (of_model - theta[0])))
    size = math.exp(theta[3] + theta[4] * of_model)
    a, b, k = mean * size, (1 - mean) * size, row["k"]
    fail = math.lgamma(b + k) - math.lgamma(b) + math.lgamma(a + b) - math.lgamma(a + b + k)
    return loss, 1 - math.exp(fail)


def errors(law, rows):
    told = [forecast(law, row) for row in rows]
    mean = lambda values: sum(values) / len(values)
    return {"approach 1": mean([abs(t[0] / r["task_loss"] - 1) for t, r in zip(told, rows)]),
            "approach 2": mean([abs(t[1] / r["pass"] - 1) for t, r in zip(told, rows)])}


def at_equal_budgets(items, chances):
    """For each level of FLOPs: models at one 2 N k, with Chinchilla's best by likelihood at k = 1."""
    compared = []
    for level in sorted({round(math.log(i["C"]) / 0.1) for i in items}):
        same = [i for i in items if round(math.log(i["C"]) / 0.1) == level]
        if len(same) < 3:
            continue
        inference = 2 * max(i["N"] for i in same) * 4
        passes = {}
        for i in same:
            k = inference / (2 * i["N"])
            passes[i["name"]] = sum(1 - (1 - p) ** k for p in chances[i["name"]]) / len(chances[i["name"]])
        chinchilla = max(same, key=lambda i: sum(map(math.log, chances[i["name"]])))
        best = max(same, key=lambda i: passes[i["name"]])
        compared.append({"C": same[0]["C"], "inference": inference, "chinchilla": chinchilla["name"],
                         "best": best["name"], "pass_chinchilla": passes[chinchilla["name"]],
                         "pass_best": passes[best["name"]], "size_ratio": best["N"] / chinchilla["N"]})
    return compared


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ladder", type=Path, required=True)
    parser.add_argument("--tasks", type=Path, required=True, help="a text that no run was trained on")
    parser.add_argument("--problems", type=int, default=1000)
    parser.add_argument("--trireme", type=Path, default=ROOT / "build/release/trireme")
    parser.add_argument("--work", type=Path, default=Path("build/samples"))
    parser.add_argument("--out", type=Path, default=Path("samples.json"))
    o = parser.parse_args()
    o.work.mkdir(parents=True, exist_ok=True)
    tasks = o.work / "tasks.jsonl"
    if not tasks.exists():
        write_tasks(o, tasks)
    items = [i for i in json.loads((o.ladder / "ladder.json").read_text())["items"] if i["point"]]
    chances = {i["name"]: likelihoods(o, i, tasks) for i in items}
    items.sort(key=lambda i: i["D"] / i["N"])
    held = items[-max(1, len(items) // 5):]
    fitted = [row for i in items if i not in held for row in rows_of(i, chances[i["name"]])]
    write_table(o.work / "fitted.csv", fitted)
    law = json.loads(call(o.trireme, "scale", "fit", o.work / "fitted.csv", "--json", "--bootstrap", 0))
    result = {"models": len(items), "held_out": [i["name"] for i in held], "fitted_error": errors(law, fitted),
              "held_out_error": errors(law, [row for i in held for row in rows_of(i, chances[i["name"]])]),
              "equal_budgets": at_equal_budgets(items, chances)}
    print(json.dumps(result, indent=1))
    o.out.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
