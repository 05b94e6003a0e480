#!/usr/bin/env python3
"""T2 on trained models: samples at inference against size, on a task with exact success probabilities (PAPERS 2.7 B).

    python3 bench/scaling_samples.py --ladder build/forecast/ladder --tasks FOLDER --work build/samples

Each problem is a place in a text that no model was trained on: 64 characters of prompt, and the next 3 to 8
characters as the answer. A model's success probability is its likelihood of that answer, so pass@k is exact:
1 - (1 - p)^k. The runs of a ladder are the models (trireme scale run).

1. The most overtrained fifth of the models is held out. Both approaches are fitted to the others, and their errors on
   the held-out models are stated: the mean of |forecast / truth - 1| over models and k, and the mean of the ratio's
   logarithm (positive: the forecast is too high).
2. For each level of training FLOPs, and 2 N k FLOPs of inference: pass@k of the best smaller model (more tokens per
   parameter, more samples) over that of Chinchilla's choice, which is the model with the lowest loss on the task. The
   interval is a bootstrap over problems. With --seeds, the pairs of the first --seed-levels levels are trained again
   with other seeds, and the interval is Student's t over seeds.

Everything that is finished is kept, so that the same command resumes.
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
from plot import svg  # noqa: E402
from scaling_forecast import call  # noqa: E402

SAMPLES = (1, 2, 4, 8, 16, 32, 64, 128, 256)


T_QUANTILE = {2: 12.706, 3: 4.303, 4: 3.182, 5: 2.776}


def write_tasks(o, file):
    files = [o.tasks] if o.tasks.is_file() else sorted(o.tasks.rglob("*" + o.ext))
    text = "".join(f.read_text(errors="ignore") for f in files)
    if len(text) < 10 * o.problems:
        sys.exit(f"--tasks {o.tasks}: {len(text)} characters are too few for {o.problems} problems")
    draw = random.Random(1)
    with file.open("w") as out:
        for _ in range(o.problems):
            at = draw.randrange(64, len(text) - 8)
            answer = text[at:at + draw.randrange(3, 9)]
            out.write(json.dumps({"prompt": text[at - 64:at], "choices": [answer, "#"], "answer": 0}) + "\n")


def likelihoods(o, name, folder, tasks):
    """The success probability of each problem."""
    file = o.work / f"{name}.jsonl"
    if not file.exists():
        call(o.trireme, "eval", folder, "--tasks", tasks, "--out", f"{file}.part")
        Path(f"{file}.part").rename(file)
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


def mean(values):
    return sum(values) / len(values)


def errors(law, rows):
    told = [forecast(law, row) for row in rows]
    ratios = {"approach 1": [t[0] / r["task_loss"] for t, r in zip(told, rows)],
              "approach 2": [t[1] / r["pass"] for t, r in zip(told, rows)]}
    return {name: {"relative": mean([abs(x - 1) for x in r]), "log_ratio": mean([math.log(max(x, 1e-12)) for x in r])}
            for name, r in ratios.items()}


def pass_at(chances, k):
    return mean([1 - (1 - p) ** k for p in chances])


def bootstrap(few, many, draws=400):
    """90 % interval of a ratio of means, over problems. few, many: a number per problem of both models."""
    draw, n, ratios = random.Random(2), len(few), []
    for _ in range(draws):
        at = [draw.randrange(n) for _ in range(n)]
        ratios.append(sum(few[i] for i in at) / sum(many[i] for i in at))
    ratios.sort()
    return [ratios[int(0.05 * draws)], ratios[int(0.95 * draws) - 1]]


def levels_of(items):
    """Models of equal training FLOPs, at least three sizes; the fewest FLOPs first."""
    levels = {}
    for i in items:
        levels.setdefault(round(math.log(i["C"]) / 0.1), []).append(i)
    return [same for _, same in sorted(levels.items()) if len(same) > 2]


def at_equal_budgets(items, chances):
    compared = []
    for same in levels_of(items):
        chinchilla = max(same, key=lambda i: mean([math.log(max(p, 1e-300)) for p in chances[i["name"]]]))
        smaller = [i for i in same if i["N"] < chinchilla["N"]]
        if not smaller:
            continue
        for k_chinchilla in (1, 4, 16, 64):
            inference = 2 * chinchilla["N"] * k_chinchilla
            passes = {i["name"]: pass_at(chances[i["name"]], inference / (2 * i["N"])) for i in same}
            best = max(smaller, key=lambda i: passes[i["name"]])
            k = inference / (2 * best["N"])
            each = [[1 - (1 - p) ** n for p in chances[i["name"]]] for i, n in ((best, k), (chinchilla, k_chinchilla))]
            compared.append({"C": same[0]["C"], "inference": inference, "chinchilla": chinchilla["name"],
                             "overtrained": best["name"], "N_chinchilla": chinchilla["N"], "N_overtrained": best["N"],
                             "tokens_per_parameter": [chinchilla["D"] / chinchilla["N"], best["D"] / best["N"]],
                             "k_chinchilla": k_chinchilla, "k_overtrained": k,
                             "pass_chinchilla": passes[chinchilla["name"]], "pass_overtrained": passes[best["name"]],
                             "ratio": passes[best["name"]] / passes[chinchilla["name"]],
                             "ratio_90": bootstrap(*each)})
    return compared


def chances_of_seed(o, name, seed, tasks):
    """The run's twin with another seed, from the first step."""
    folder = (o.work / f"{name}-seed-{seed}").resolve()
    if not (folder / "done").exists():
        call(o.trireme, "train", o.ladder / f"{name}.toml", "--set", 'train.branch=""', "--set", f"train.seed={seed}",
             "--set", f"train.dir={folder}")
        (folder / "done").touch()
    return likelihoods(o, f"{name}-seed-{seed}", folder, tasks)


def over_seeds(o, compared, chances, tasks):
    some = sorted({c["C"] for c in compared})[:o.seed_levels]
    for c in compared:
        if c["C"] not in some or o.seeds < 2:
            continue
        ratios = [c["ratio"]]
        for seed in range(2, o.seeds + 1):
            twin = {n: chances_of_seed(o, c[n], seed, tasks) for n in ("chinchilla", "overtrained")}
            ratios.append(pass_at(twin["overtrained"], c["k_overtrained"])
                          / pass_at(twin["chinchilla"], c["k_chinchilla"]))
        m, n = mean(ratios), len(ratios)
        half = T_QUANTILE.get(n, 2.6) * math.sqrt(sum((r - m) ** 2 for r in ratios) / (n - 1) / n)
        c["seeds"] = {"ratios": ratios, "mean": m, "half_of_95": half}


def text_of(result):
    told = [f"{result['models']} models; held out: {', '.join(result['held_out'])}",
            "| approach | fitted: error | held out: error | held out: log ratio |", "|---|---|---|---|"]
    for name in ("approach 1", "approach 2"):
        fitted, held = result["fitted_error"][name], result["held_out_error"][name]
        told.append(f"| {name} | {100 * fitted['relative']:.1f} % | {100 * held['relative']:.1f} % | "
                    f"{held['log_ratio']:+.3f} |")
    told += ["", "| FLOPs | Chinchilla's N, tokens per parameter | k | pass@k | overtrained N, tokens per parameter | k | "
             "pass@k | ratio, 90 % over problems | over seeds, 95 % |", "|---|---|---|---|---|---|---|---|---|"]
    for c in result["equal_budgets"]:
        s = c.get("seeds")
        told.append(f"| {c['C']:.3g} | {c['N_chinchilla'] / 1e3:.0f} k, {c['tokens_per_parameter'][0]:.1f} | "
                    f"{c['k_chinchilla']} | {100 * c['pass_chinchilla']:.2f} % | {c['N_overtrained'] / 1e3:.0f} k, "
                    f"{c['tokens_per_parameter'][1]:.0f} | {c['k_overtrained']:.1f} | {100 * c['pass_overtrained']:.2f} % | "
                    f"{c['ratio']:.2f} ({c['ratio_90'][0]:.2f} to {c['ratio_90'][1]:.2f}) | "
                    + (f"{s['mean']:.2f} ± {s['half_of_95']:.2f} |" if s else "|"))
    return "\n".join(told)


def figure(same, chances):
    """pass@k of each size over the FLOPs of inference per token served, at one level of training FLOPs."""
    budgets = [2 * max(i["N"] for i in same) * 4 ** n for n in range(5)]
    lines = {f"{i['N'] / 1e3:.0f} k, {i['D'] / i['N']:.0f} tokens each":
             [(float(f"{b:.2g}"), 100 * pass_at(chances[i["name"]], b / (2 * i["N"]))) for b in budgets] for i in same}
    return svg(f"Models of {same[0]['C']:.2g} training FLOPs", "2 N k, FLOPs", "pass@k, %", lines)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ladder", type=Path, required=True, help="folder of trireme scale run")
    parser.add_argument("--tasks", type=Path, required=True, help="a text that no run was trained on, or a folder")
    parser.add_argument("--ext", default=".py", help="of a folder's files")
    parser.add_argument("--problems", type=int, default=1000)
    parser.add_argument("--seeds", type=int, default=1, help="seeds of the compared pairs, the ladder's included")
    parser.add_argument("--seed-levels", type=int, default=1, help="levels whose pairs get more seeds")
    parser.add_argument("--trireme", type=Path, default=ROOT / "build/release/trireme")
    parser.add_argument("--work", type=Path, default=Path("build/samples"))
    parser.add_argument("--out", type=Path, default=Path("samples.json"))
    parser.add_argument("--figure", type=Path, help="SVG of pass@k over inference, at the largest level of training FLOPs")
    o = parser.parse_args()
    o.work.mkdir(parents=True, exist_ok=True)
    tasks = o.work / "tasks.jsonl"
    if not tasks.exists():
        write_tasks(o, tasks)
    items = [i for i in json.loads((o.ladder / "ladder.json").read_text())["items"] if i["point"]]
    chances = {i["name"]: likelihoods(o, i["name"], i["dir"], tasks) for i in items}
    items.sort(key=lambda i: i["D"] / i["N"])
    held = items[-max(1, len(items) // 5):]
    fitted = [row for i in items if i not in held for row in rows_of(i, chances[i["name"]])]
    write_table(o.work / "fitted.csv", fitted)
    law = json.loads(call(o.trireme, "scale", "fit", o.work / "fitted.csv", "--json", "--bootstrap", 0))
    result = {"models": len(items), "problems": o.problems, "held_out": [i["name"] for i in held],
              "fitted_error": errors(law, fitted),
              "held_out_error": errors(law, [row for i in held for row in rows_of(i, chances[i["name"]])]),
              "equal_budgets": at_equal_budgets(items, chances), "law": law,
              "models_pass": {i["name"]: {"N": i["N"], "D": i["D"], "pass_1": pass_at(chances[i["name"]], 1),
                                          "pass_64": pass_at(chances[i["name"]], 64)} for i in items}}
    over_seeds(o, result["equal_budgets"], chances, tasks)
    print(text_of(result))
    if o.figure and levels_of(items):
        o.figure.write_text(figure(levels_of(items)[-1], chances))
    o.out.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
