#!/usr/bin/env python3
"""Self-distillation (SSD) of a small model on a grammar with locks and forks, through the whole engine.

    python3 bench/ssd_grammar.py --trireme build/release/trireme --work build/ssd_grammar --out build/ssd_grammar/report

A document is a line of Python: x="c123:Ak(c)". The class c and three digits are the prompt. The answer has

    a root          A and B are good; X is the most likely token, and fails
    a fork          four continuations; the checker accepts one, which is not the most likely
    three locks     one token is right; distractors have 25 % of the mass
    a quote         always the same

The probabilities are those of the toy machine of Zhang et al. (2026, arXiv 2604.01193, appendix C.4).

For each seed: tokenize, train a base model, export it, then five fine-tunings with equal steps:

    ssd      trireme distill, T = 0.9, top-p 0.85: one sample per prompt
    plain    trireme distill, T = 1, no truncation: the fixed point of the method; no gain is expected
    cold     trireme distill, T = 0.7, no truncation: should equal the base decoded at 0.7 times the temperature
    hot      trireme distill, T = 1.5, no truncation: likewise at 1.5 times
    data     trireme tune on new documents of the grammar: more training, no self-distillation

Success probabilities are exact. `trireme eval --tasks` gives the model's probability of every token in every state on
a path to success. The decoding rule is applied to them in double precision. The base gets the same sweep of
temperatures as the others. A sampled check compares them with texts of `trireme generate`, and with programs that
`trireme eval --code` judges. Every finished stage is kept: the same command resumes.
"""

import argparse
import json
import math
import random
import resource
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "bench"))
from plot import svg  # noqa: E402

CLASSES, DIGITS = "abcdefgh", "0123456789"
ANSWER = "ABXYklmn()+-*/._"
VOCAB = ["<|endoftext|>"] + list('x=":' + CLASSES + DIGITS + ANSWER)
END = 0
# First probabilities, and the ratio of the geometric tail (chosen for the paper's entropies).
ROOT_HEAD, FORK_HEAD, LOCK_HEAD = (.200, .190, .329, .126), (.148, .280, .140, .144), (.750, .055, .050, .037)
TAIL = {"root": .5, "fork": .5, "lock": .75}
LOCKS = ("lock 1", "lock 2", "lock 3")
ARMS = {"ssd": (0.9, 0.85), "plain": (1.0, 1.0), "cold": (0.7, 1.0), "hot": (1.5, 1.0), "data": None}
TEMPERATURES = [round(0.3 * (4.0 / 0.3) ** (i / 60), 4) for i in range(61)]
EVAL_TOP_P = 0.8
T_QUANTILE = {2: 12.706, 3: 4.303, 4: 3.182, 5: 2.776, 6: 2.571, 7: 2.447, 8: 2.365}
RUN = """[model]
arch = "llama"
vocab = {vocab}
layers = 2
hidden = 64
heads = 4
ffn = 176
[data]
train = "{dir}/data/train"
tokenizer = "{dir}/data/tokenizer.json"
seq_len = 16
documents = "whole"
[batch]
global = 128
micro = 128
[optimizer]
lr = 3e-3
min_lr = 1e-4
warmup = 50
[precision]
compute = "f32"
[train]
seed = {seed}
steps = {steps}
tensorboard = false
dir = "{dir}/base"
"""


# The grammar.

def spread(head, ratio, tokens):
    """Probabilities of all tokens: the head, and a geometric tail with the rest."""
    rest = [ratio ** i for i in range(len(tokens) - len(head))]
    scale = (1 - sum(head)) / sum(rest)
    return dict(zip(tokens, list(head) + [scale * r for r in rest]))


def behind(first):
    return list(first) + [c for c in ANSWER if c not in first][:16 - len(first)]


def fork_order(cls, root):
    turn = (CLASSES.index(cls) + (root == "B")) % 4
    return "klmn"[turn:] + "klmn"[:turn]


def distribution(step, cls, root):
    if step == "root":
        return spread(ROOT_HEAD, TAIL["root"], behind("ABXY"))
    if step == "fork":
        return spread(FORK_HEAD, TAIL["fork"], behind(fork_order(cls, root)))
    right = {"lock 1": "(", "lock 2": cls, "lock 3": ")"}[step]
    return spread(LOCK_HEAD, TAIL["lock"], behind(right))


STEPS = ("root", "fork") + LOCKS


def answer(cls, draw):
    text, root = "", "A"
    for step in STEPS:
        chances = distribution(step, cls, root)
        token = draw.choices(list(chances), list(chances.values()))[0]
        root = token if step == "root" else root
        text += token
    return text + '"'


def prompt(cls, number):
    return f'x="{cls}{number:03d}:'


def good_answers(cls):
    return [root + fork_order(cls, root)[0] + "(" + cls + ")" for root in "AB"]


def states(cls):
    """(step, path so far, token that stays on a path to success), for both good roots. The root has two of them."""
    yield "root", "", ["A", "B"]
    for good in good_answers(cls):
        text = good + '"'
        for i, step in enumerate(STEPS[1:] + ("quote",), 1):
            yield step, text[:i], [text[i]]
        yield "end", text, ["<|endoftext|>"]


# Decoding, in double precision: temper, top-k, top-p (vLLM's order).

def decode(p, t, top_p=1.0):
    """{token: probability} of the tokens that are kept."""
    top = max(p.values())
    q = {c: math.exp(math.log(v / top) / t) for c, v in p.items() if v > 0}
    total, kept, mass = sum(q.values()), {}, 0.0
    for c, v in sorted(q.items(), key=lambda item: -item[1]):
        if mass >= top_p:
            break
        kept[c] = v / total
        mass += v / total
    return {c: v / mass for c, v in kept.items()}


def success(table, t):
    """Mean over classes of the probability that an answer passes. table: {prompt: {path: (step, right, p)}}."""
    chances = []
    for paths in table.values():
        kept = {path: decode(p, t, EVAL_TOP_P) for path, (_, _, p) in paths.items()}
        chance = 0.0
        for root in "AB":
            along = kept[""].get(root, 0.0)
            for path, (_, right, _) in paths.items():
                if path and path[0] == root:
                    along *= kept[path].get(right[0], 0.0)
            chance += along
        chances.append(chance)
    return sum(chances) / len(chances)


def ideal_table(after):
    """The grammar's own probabilities, or what a perfect student of them has."""
    table = {}
    for cls in CLASSES:
        paths = {}
        for step, path, right in states(cls):
            p = {right[0]: 1.0} if step in ("quote", "end") else distribution(step, cls, path[:1])
            paths[path] = (step, right, decode(p, *after) if after else p)
        table[cls] = paths
    return table


# The engine.

class Work:
    def __init__(self, o):
        self.o, self.dir = o, o.work
        self.dir.mkdir(parents=True, exist_ok=True)
        self.times = self.dir / "times.jsonl"

    def call(self, stage, *words, out=None):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        with open(self.dir / "log.txt", "a") as log:
            log.write(" ".join(str(w) for w in words) + "\n")
            log.flush()
            done = subprocess.run([str(self.o.trireme), *map(str, words)], stdout=subprocess.PIPE if out else log,
                                  stderr=log, text=True)
        if done.returncode != 0:
            sys.exit(f"trireme {words[0]} ended with {done.returncode}: {self.dir}/log.txt")
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        spent = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        with open(self.times, "a") as file:
            file.write(json.dumps({"stage": stage, "processor_s": round(spent, 2)}) + "\n")
        if out:
            out.write_text(done.stdout)


def write_lines(file, lines):
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))


def write_tokenizer(folder):
    """A vocabulary of single characters, without merges."""
    folder.mkdir(parents=True, exist_ok=True)
    special = {"id": END, "content": VOCAB[END], "single_word": False, "lstrip": False, "rstrip": False,
               "normalized": False, "special": True}
    model = {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
             "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False, "ignore_merges": False,
             "vocab": {t: i for i, t in enumerate(VOCAB)}, "merges": []}
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    (folder / "tokenizer.json").write_text(json.dumps(
        {"version": "1.0", "truncation": None, "padding": None, "added_tokens": [special], "normalizer": None,
         "pre_tokenizer": byte_level, "post_processor": None, "decoder": byte_level, "model": model}))


def documents(seed, count):
    draw = random.Random(seed)
    for _ in range(count):
        cls = draw.choice(CLASSES)
        yield prompt(cls, draw.randrange(1000)), answer(cls, draw)


def tasks(cls_numbers):
    for cls, number in cls_numbers:
        yield {"task_id": f"grammar/{cls}{number:03d}", "prompt": prompt(cls, number), "entry_point": "x",
               "canonical_solution": good_answers(cls)[0] + '"',
               "test": "def check(candidate):\n    assert candidate[5:] in " + repr(tuple(good_answers(cls))) + "\n"}


def base_model(work, dir, seed):
    export = dir / "hf"
    if (export / "config.json").exists():
        return export
    o = work.o
    write_tokenizer(dir / "tokenizer")
    write_lines(dir / "corpus.jsonl", ({"text": p + a} for p, a in documents(seed, o.documents)))
    work.call("tokenize", "tokenize", dir / "corpus.jsonl", "--tokenizer", dir / "tokenizer/tokenizer.json", "--out",
              dir / "data", "--hold-out", 0)
    run = dir / "base.toml"
    run.write_text(RUN.format(vocab=len(VOCAB), dir=dir, seed=seed, steps=o.steps))
    work.call("train", "train", run)
    work.call("convert", "convert", run, "--to", export)
    return export


def fine_tuned(work, dir, hf, arm, seed):
    """The folder of the fine-tuned run."""
    o, folder = work.o, dir / arm
    common = ["--epochs", o.epochs, "--lr", o.lr, "--batch", 64, "--seq-len", 16]
    sets = ["--set", "train.tensorboard=false", "--set", "batch.micro=64", "--set", "precision.compute=f32"]
    if ARMS[arm] is None:
        if not (folder / "done").exists():
            lines = ({"prompt": p, "completion": a} for p, a in documents(1000 + seed, o.samples))
            write_lines(dir / "new.jsonl", lines)
            work.call(arm, "tune", hf, "--chat", dir / "new.jsonl", "--out", folder, *common, *sets, "--set",
                      f"train.seed={seed}")
            (folder / "done").touch()
        return folder
    t, p = ARMS[arm]
    if not (folder / "result.json").exists():
        work.call(arm, "distill", hf, "--plain", "--tasks", dir / "tasks.jsonl", "--prompts", dir / "prompts.jsonl",
                  "--out", folder, "--temperature", t, "--top-k", 0, "--top-p", p, "--tokens", 12, "--parallel", 32,
                  "--eval-temperatures", 1, "--eval-tokens", 12, "-n", 1, "--seeds", 1, *common, *sets)
    return folder / "seed-1/tuned"


def table_of(work, dir, name, model):
    """{prompt: {path: (step, right tokens, {token: probability})}} by the likelihoods of every token."""
    questions = dir / "states.jsonl"
    wanted = [(prompt(cls, 17 + 100 * i), state) for cls in CLASSES for i in range(work.o.numbers)
              for state in states(cls)]
    choices = VOCAB[1:]
    if not questions.exists():
        write_lines(questions, ({"prompt": p + path, "choices": choices, "answer": 0} for p, (_, path, _) in wanted))
    file = dir / f"states-{name}.jsonl"
    if not file.exists():
        work.call("exact scores", "eval", model, "--tasks", questions, "--out", f"{file}.part")
        Path(f"{file}.part").rename(file)
    table = {}
    for (p, (step, path, right)), line in zip(wanted, map(json.loads, file.read_text().splitlines())):
        chances = {c: math.exp(v) for c, v in zip(choices, line["log_likelihood"])}
        chances[VOCAB[END]] = max(1e-9, 1 - sum(chances.values()))
        table.setdefault(p, {})[path] = (step, right, chances)
    return table


# The report.

def mean(values):
    return sum(values) / len(values)


def interval(values):
    """Mean and half of the 95 % interval over seeds (Student's t)."""
    m, n = mean(values), len(values)
    if n < 2:
        return m, float("nan")
    return m, T_QUANTILE.get(n, 2.3) * math.sqrt(sum((v - m) ** 2 for v in values) / (n - 1) / n)


def best(table):
    return max((success(table, t), t) for t in TEMPERATURES)


def at_steps(table, steps):
    return [p for paths in table.values() for step, _, p in paths.values() if step in steps]


def rank_mass(table, steps):
    """Cumulative mass of the r most likely tokens, mean over states."""
    rows = [sorted(p.values(), reverse=True) for p in at_steps(table, steps)]
    return [mean([sum(r[:n]) for r in rows]) for n in range(1, 17)]


def survivors(table, steps, t):
    return mean([len(decode(p, t, EVAL_TOP_P)) for p in at_steps(table, steps)])


def outside(base, table, steps):
    """Mass outside the support that the base keeps at ssd's sampling."""
    total = []
    for name, paths in base.items():
        for path, (step, _, p) in paths.items():
            if step in steps:
                kept = decode(p, *ARMS["ssd"])
                total.append(sum(v for c, v in table[name][path][2].items() if c not in kept))
    return mean(total)


def collapse(base, table, t_train):
    """Mean and largest difference of success between the arm at T and the base at T x t_train; likewise of both at T."""
    shared = [t for t in TEMPERATURES if TEMPERATURES[0] <= t * t_train <= TEMPERATURES[-1]]
    scaled = [abs(success(table, t) - success(base, t * t_train)) for t in shared]
    same = [abs(success(table, t) - success(base, t)) for t in shared]
    return [mean(scaled), max(scaled), mean(same), max(same)]


def row_of(tables):
    base, result = tables["base"], {}
    for arm, table in tables.items():
        top, t = best(table)
        result[arm] = {"best": top, "at": t, "locks_outside": outside(base, table, LOCKS),
                       "fork_outside": outside(base, table, ("fork",)),
                       "curve": [success(table, t) for t in TEMPERATURES]}
        if arm in ("cold", "hot"):
            result[arm]["collapse"] = collapse(base, table, ARMS[arm][0])
    return result


def sampled(work, dir, models, tables):
    """Success of sampled texts of the base and the distilled model, next to the exact probability."""
    found = {}
    for name in ("base", "ssd"):
        t = best(tables[name])[1]
        file = dir / f"sampled-{name}.jsonl"
        if not file.exists():
            write_lines(dir / "few.jsonl", ({"prompt": prompt(cls, 17)} for cls in CLASSES))
            work.call("sampled check", "generate", models[name], "--prompts", dir / "few.jsonl", "--samples",
                      work.o.check, "--tokens", 12, "--temperature", t, "--top-p", EVAL_TOP_P, "--parallel", 32,
                      "--out", f"{file}.part")
            Path(f"{file}.part").rename(file)
        lines = [json.loads(line) for line in file.read_text().splitlines()]
        passed = [x["text"] in [g + '"' for g in good_answers(x["prompt"][3])] and x["finish"] == "end_of_text"
                  for x in lines]
        exact = success({p: v for p, v in tables[name].items() if p[4:7] == "017"}, t)
        judged = dir / f"judged-{name}.json"
        if not judged.exists():
            work.call("eval --code", "eval", models[name], "--code", dir / "check.jsonl", "-n", work.o.judged, "-k", 1,
                      "--temperature", t, "--top-p", EVAL_TOP_P, "--tokens", 12, "--parallel", 32, "--json", out=judged)
        found[name] = {"temperature": t, "exact": exact, "sampled": mean(passed), "samples": len(passed),
                       "standard_error": math.sqrt(exact * (1 - exact) / len(passed)),
                       "judged": json.loads(judged.read_text())["pass_at_k"]["1"]["mean"],
                       "judged_programs": len(CLASSES) * work.o.judged}
    return found


def seed_result(work, seed):
    dir = work.dir / f"seed-{seed}"
    dir.mkdir(exist_ok=True)
    dir = dir.resolve()
    hf = base_model(work, dir, seed)
    draw = random.Random(2000 + seed)
    all_prompts = [(c, n) for c in CLASSES for n in range(1000)]
    write_lines(dir / "prompts.jsonl", ({"prompt": prompt(*x)} for x in draw.sample(all_prompts, work.o.samples)))
    write_lines(dir / "tasks.jsonl", tasks([("a", 17)]))
    write_lines(dir / "check.jsonl", tasks([(c, 17) for c in CLASSES]))
    models = {"base": dir / "base.toml"}
    models.update({arm: fine_tuned(work, dir, hf, arm, seed) for arm in ARMS})
    tables = {name: table_of(work, dir, name, model) for name, model in models.items()}
    result = row_of(tables)
    check = sampled(work, dir, models, tables) if seed == 1 else None
    return result, tables, check


def figures(o, results, tables):
    base, ssd = tables["base"], tables["ssd"]
    lines = {}
    for label, steps in (("lock", LOCKS), ("fork", ("fork",))):
        for name, table in (("base", base), ("SSD", ssd)):
            mass = rank_mass(table, steps)
            lines[f"{label}, {name}"] = [(r, mass[r - 1]) for r in (1, 2, 3, 4, 5, 6, 8, 11, 16)]
    (o.out / "ssd_rank_mass.svg").write_text(svg("Cumulative mass by rank, T = 1, seed 1", "rank", "mass", lines, False))
    some = TEMPERATURES[::4]
    lines = {f"{label}, {name}": [(round(t, 2), survivors(table, steps, t)) for t in some]
             for label, steps in (("lock", LOCKS), ("fork", ("fork",)))
             for name, table in (("base", base), ("SSD", ssd))}
    (o.out / "ssd_survivors.svg").write_text(svg(f"Tokens that survive top-p {EVAL_TOP_P}, seed 1", "T_eval",
                                                 "tokens", lines, False))
    lines = {arm: [(round(t, 2), 100 * mean([r[arm]["curve"][i] for r in results])) for i, t in
                   list(enumerate(TEMPERATURES))[::4]] for arm in results[0]}
    (o.out / "ssd_success.svg").write_text(svg("Exact success, mean over seeds", "T_eval", "success, %", lines, False))


def text_of(results):
    told = ["| model | best success, % | at T_eval | gain over the base | mass outside S, locks | fork |",
            "|---|---|---|---|---|---|"]
    for arm in results[0]:
        m, half = interval([100 * r[arm]["best"] for r in results])
        gain = interval([100 * (r[arm]["best"] - r["base"]["best"]) for r in results])
        told.append(f"| {arm} | {m:.2f} ± {half:.2f} | {mean([r[arm]['at'] for r in results]):.2f} | "
                    + ("" if arm == "base" else f"{gain[0]:+.2f} ± {gain[1]:.2f}")
                    + f" | {mean([r[arm]['locks_outside'] for r in results]):.4f} | "
                    f"{mean([r[arm]['fork_outside'] for r in results]):.4f} |")
    for arm in ("cold", "hot"):
        shown = ["{:.2f} ± {:.2f}".format(*interval([100 * r[arm]["collapse"][i] for r in results])) for i in range(4)]
        told.append(f"{arm}: best at T x {ARMS[arm][0]} = {mean([r[arm]['at'] * ARMS[arm][0] for r in results]):.2f}; "
                    f"difference from the base at T x {ARMS[arm][0]}: mean {shown[0]}, largest {shown[1]} points; "
                    f"from the base at T: mean {shown[2]}, largest {shown[3]} points")
    gain = interval([100 * (r["ssd"]["best"] - r["base"]["best"]) for r in results])
    told.append(f"SSD against the base, best over T of each: {gain[0]:+.2f} ± {gain[1]:.2f} points: "
                + ("a gain" if gain[0] > gain[1] else "a loss" if gain[0] < -gain[1] else "no difference is shown"))
    others = [a for a in ARMS if a != "ssd"]
    over = interval([100 * (r["ssd"]["best"] - max(r[a]["best"] for a in others)) for r in results])
    told.append(f"SSD against the best control of each seed: {over[0]:+.2f} ± {over[1]:.2f} points")
    return "\n".join(told)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trireme", type=Path, default=ROOT / "build/release/trireme")
    parser.add_argument("--work", type=Path, default=Path("build/ssd_grammar"), help="folder of all stages")
    parser.add_argument("--out", type=Path, default=Path("build/ssd_grammar/report"), help="result.json and figures")
    parser.add_argument("--seeds", type=int, default=3, help="base models, 2 to 8 (default: 3)")
    parser.add_argument("--documents", type=int, default=60000, help="documents of the base's corpus")
    parser.add_argument("--steps", type=int, default=1500, help="steps of the base, 2048 tokens each")
    parser.add_argument("--samples", type=int, default=4000, help="prompts of a fine-tuning, at most 8000")
    parser.add_argument("--epochs", type=float, default=4, help="epochs of a fine-tuning")
    parser.add_argument("--lr", type=float, default=1e-3, help="peak rate of a fine-tuning")
    parser.add_argument("--numbers", type=int, default=1, help="prompts per class that are scored, at most 9")
    parser.add_argument("--check", type=int, default=250, help="sampled texts per class, seed 1")
    parser.add_argument("--judged", type=int, default=10, help="judged programs per class, seed 1")
    o = parser.parse_args()
    o.out.mkdir(parents=True, exist_ok=True)
    work = Work(o)
    results, first, check = [], None, None
    for seed in range(1, o.seeds + 1):
        result, tables, checked = seed_result(work, seed)
        results.append(result)
        first, check = first or tables, check or checked
    ideal = {"grammar": best(ideal_table(None)), "perfect student": best(ideal_table(ARMS["ssd"]))}
    times = {}
    for line in work.times.read_text().splitlines():
        line = json.loads(line)
        times[line["stage"]] = times.get(line["stage"], 0) + line["processor_s"]
    figures(o, results, first)
    (o.out / "result.json").write_text(json.dumps(
        {"temperatures": TEMPERATURES, "seeds": results, "ideal": ideal, "check": check, "processor_s": times},
        indent=1) + "\n")
    print(text_of(results))
    print("without a model:", "; ".join(f"{n} {100 * v:.2f} % at T {t:.2f}" for n, (v, t) in ideal.items()))
    print("check:", json.dumps(check))
    print("processor seconds:", json.dumps(times), "in all", round(sum(times.values())))


if __name__ == "__main__":
    main()
