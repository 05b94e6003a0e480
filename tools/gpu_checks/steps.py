"""Whole training steps: trireme's, PyTorch's, the memory and the time that `plan` predicts for them."""
import json
import statistics
import sys

from gpu_checks import environment
from gpu_checks.check import json_line

# Models trained whole, ours and the peer's, with the same number of sequences per step.
MODELS = {
    "gpt2-124m": {"micro": 32, "seq": 1024, "set": []},
    "llama-1b": {"micro": 4, "seq": 2048, "set": [
        "model.arch=llama", "model.vocab=128256", "model.layers=16", "model.hidden=2048", "model.heads=32",
        "model.kv_heads=8", "model.ffn=8192", "model.tied=true", "model.rope_theta=500000", "data.seq_len=2048"]},
    "gpt2-1.5b": {"micro": 8, "seq": 1024, "set": ["model.layers=48", "model.hidden=1600", "model.heads=25"]},
}
SMALL, MIDDLE, LARGE = MODELS
# Options of trireme_step_ops for each way to train a model.
WAYS = {
    "auto": [],
    "sm90": ["--set", "train.attention=sm90"],
    "graphs": ["--set", "train.graphs=on"],
    "timed+sm90": ["--set", "train.deterministic=false", "--set", "train.attention=sm90"],
    "timed": ["--set", "train.deterministic=false"],
    "fp8": ["--set", "precision.fp8=current", "--set", "precision.fp8_kernels=required"],
}


def run_file(c, model):
    """Writes the run file of a model. trireme_step_ops and plan take the same."""
    m = MODELS[model]
    keys = {"model.arch": "gpt2", "model.vocab": 50257, "model.layers": 12, "model.hidden": 768, "model.heads": 12,
            "data.seq_len": m["seq"], "precision.compute": "bf16", "train.device": "cuda"}
    if model.startswith("gpt2"):
        keys["model.max_positions"] = 1024
    keys |= {"batch.global": m["micro"], "batch.micro": m["micro"]}
    keys |= dict(s.split("=", 1) for s in m["set"])

    def text(v):
        return str(v) if not isinstance(v, str) or v in ("true", "false") or v.isdigit() else f'"{v}"'

    path = c.out / f"{model}.toml"
    path.write_text("".join(f"{k} = {text(v)}\n" for k, v in keys.items()))
    return path


# Kernels that ops must have in a way of training. Else the way's time is that of another.
KERNELS = {"sm90": {"attention": "sm_90a", "attention_backward": "sm_90a"}}
KERNELS["timed+sm90"] = KERNELS["sm90"]


def training(lines, way="auto"):
    told = json_line(lines)
    taken = {}
    for k in told["kernels"]:
        taken.setdefault(k["op"], []).append(k["kernel"])
    for op, kernel in KERNELS.get(way, {}).items():
        if taken.get(op) != [kernel]:
            raise ValueError(f"{op} was taken by {taken.get(op)}, not by {kernel}")
    step = statistics.median(told["step_s"])
    return (f"{told['tokens'] / step:.0f} tokens/s, {told['flops_per_step'] / step * 1e-12:.1f} TFLOP/s, "
            f"step {1e3 * step:.1f} ms, loss {told['loss']!r}; " +
            ", ".join(f"{op} {'+'.join(kernels)}" for op, kernels in sorted(taken.items())))


def peer(lines):
    told = json_line(lines)
    return (f"{told['tokens_per_s']:.0f} tokens/s, {told['gflops_per_s'] * 1e-3:.1f} TFLOP/s, step "
            f"{1e3 * told['step_s']:.1f} ms, attention by {told.get('attention')}, PyTorch {told['torch']}")


def keep(c, name):
    """Keeps a passed step's JSON, less the long parts, for this call and the next one."""
    if not c.passed(name):
        return None
    told = json_line(c.texts[name].splitlines())
    c.results["steps"][name] = {k: v for k, v in told.items() if k not in ("ops", "peak_beside")}
    c.write()
    return told


def measured(c, model, way):
    return c.results["steps"].get(f"train-{model}-{way}")


def train(c, model, way, most):
    """Trains a model one way: 8 steps, then 10 timed ones. Adds a row that checks memory against the booking."""
    name = f"train-{model}-{way}"
    c.step(name, [c.home / "bin/trireme_step_ops", run_file(c, model), "--device", "cuda", "--steps", "10", "--warmup", "8",
                  *WAYS[way]], most, lambda lines: training(lines, way))
    told = keep(c, name)
    if told:
        memory(c, f"memory-{model}-{way}", told)
    return told


def memory(c, name, told):
    buckets = told.get("memory", {})
    wrong = [f"{k}: booked {v['booked']}, met {v['met']}" for k, v in buckets.items() if v["booked"] != v["met"]]
    total = buckets.get("total", {}).get("met", 0)
    c.row(name, "failed" if wrong or not total else "passed", 0,
          "; ".join(wrong) if wrong else f"{total} bytes at the peak, every bucket as booked")


def compare_ways(c, model):
    """Rows that compare the ways in which a model was trained."""
    base = measured(c, model, "auto")
    for way in WAYS:
        other = measured(c, model, way)
        if not base or not other or way == "auto":
            continue
        # Graphs must not change one bit. Other kernels round otherwise.
        same = way != "graphs" or base["loss"] == other["loss"]
        c.row(f"{way}-{model}", "passed" if same else "failed (losses differ)", 0,
              f"{step_s(base) / step_s(other):.3f} times as fast as auto, losses {other['loss']!r} and {base['loss']!r}"
              f"{'; ' + other['graphs'] if other.get('graphs') else ''}")


def step_s(told):
    return statistics.median(told["step_s"])


def peer_step(c, model, most, precision="autocast"):
    """The same model in PyTorch, compiled; then the ratio of tokens/s for each way in which trireme trained it."""
    name = f"peer-{model}" + ("-fp8" if precision == "fp8" else "")
    if not environment.have_torch():
        return c.row(name, "left out", 0, f"{sys.executable} has no torch to compare with")
    m = MODELS[model]
    c.step(name, [sys.executable, c.home / "tree/tools/peer_step.py", "--device", "cuda", "--model", model,
                  "--precision", precision, "--mode", "compile", "--steps", "10", "--warmup", "5",
                  "--batch", str(m["micro"]), "--seq", str(m["seq"])], most, peer)
    other = keep(c, name)
    for way in ("fp8",) if precision == "fp8" else [w for w in WAYS if w != "fp8"]:
        ours = measured(c, model, way)
        if ours and other:
            ratio = other["step_s"] / step_s(ours)
            c.row(f"ratio-{model}-{way}", "passed" if ratio >= 1.1 else "below 1.1", 0,
                  f"{ratio:.3f} times PyTorch's tokens/s (compiled, {precision})")
    return None


def bench(c, most):
    """Writes cluster.toml of this machine. Returns whether it did."""
    return c.step("bench", [c.home / "bin/trireme", "bench", "--device", "cuda", "--out", c.out / "cluster.toml"], most,
                  lambda lines: lines[-1])


def forecast(c, model, most=30):
    """Compares plan's seconds of the step, by the cluster file that bench wrote, with the measured ones: within 5 %."""
    name = f"forecast-{model}"
    cluster = c.out / "cluster.toml"
    ours = measured(c, model, "auto")
    if not ours or not cluster.exists():
        return c.row(name, "left out", 0, "no step was measured, or no cluster file was written")
    if not c.step(f"plan-{model}", [c.home / "bin/trireme", "plan", run_file(c, model), "--set",
                                    f"cluster.file={cluster}", "--json"], most):
        return False
    text = c.texts[f"plan-{model}"]
    best = json.loads(text[text.index("{"):text.rindex("}") + 1])["best"]
    if best is None:
        return c.row(name, "failed", 0, f"plan says that it does not fit, and it ran: {c.out / f'plan-{model}.log'}")
    off = best["step_s"] / step_s(ours) - 1
    return c.row(name, "passed" if abs(off) <= 0.05 else "beyond 5 %", 0,
                 f"{1e3 * best['step_s']:.1f} ms predicted, {1e3 * step_s(ours):.1f} ms measured: {100 * off:+.1f} %")
