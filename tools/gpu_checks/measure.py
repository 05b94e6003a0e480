"""Times inside a step, kernels under ncu, and single ops next to PyTorch's."""
import csv
import importlib.util
import json
import sys

from gpu_checks import environment, problems, sm90, steps

# Kernels under ncu: (regular expression in the demangled name, way of training whose step has it). The first are those
# whose counters are needed most, since the part may end before the last.
PROFILED = [
    ("attention_forward_sm90", "sm90"), ("attention_backward_sm90", "sm90"), ("attention_forward_mma", "auto"),
    ("attention_key_gradients_mma", "auto"), ("attention_query_gradient_mma", "auto"), ("norm_columns|sum_down", "auto"),
    ("cross_entropy_rows", "auto"), ("norm_backward", "auto"), ("AdamWChunk", "auto"), ("norm_forward", "auto"),
]
SECTIONS = ("SpeedOfLight", "Occupancy", "MemoryWorkloadAnalysis", "WarpStateStats")
COUNTERS = {  # column of the table -> part of the counter's name
    "us": "gpu__time_duration.sum", "SM %": "sm__throughput.avg.pct_of_peak_sustained_elapsed",
    "memory %": "gpu__compute_memory_throughput.avg.pct_of_peak_sustained_elapsed",
    "HBM %": "dram__throughput.avg.pct_of_peak_sustained_elapsed", "registers": "launch__registers_per_thread",
    "warps %": "sm__warps_active.avg.pct_of_peak_sustained_active"}
LENGTHS, LONG, WIDTHS = (1024, 2048, 4096), (8192, 16384), (64, 128)
PRODUCTS = ("matmul",)
APART = ("matmul", "matmul_gelu", "matmul_gelu_backward", "grouped_matmul", "fp8_matmul", "quantise", "attention",
         "attention_backward", "attention_cached")  # not among the memory-bound ops


# ---- inside a step ----
def op_events(c, model, ways, most=12):
    """Tables of op times by events, of three more steps per way: all ops of the ways side by side, and the longest rows of
    each way with their rates."""
    seen = {}
    for way in ways:
        name = f"events-{model}-{way}"
        path = c.out / f"{name}.jsonl"
        if c.step(name, [c.home / "bin/trireme_step_ops", steps.run_file(c, model), "--device", "cuda", "--steps", "1",
                         "--warmup", "4", "--op-events", "--op-events-out", path, *steps.WAYS[way]], most,
                  lambda lines, path=path: events_told(*events_of(path))):
            seen[way] = events_of(path)
    if not seen:
        return
    sums = {way: by_op(rows) for way, (_, rows) in seen.items()}
    walls = {way: step["wall_ms"] for way, (step, _) in seen.items()}
    ops = sorted({op for of_op in sums.values() for op in of_op},
                 key=lambda op: -max(of_op.get(op, (0, 0))[0] for of_op in sums.values()))
    table = [[op, *(cell for way, of_op in sums.items() for cell in cells(of_op.get(op), walls[way]))] for op in ops[:20]]
    table += [[name, *(cell for way, (step, _) in seen.items() for cell in cells((step[key], None), walls[way]))]
              for name, key in (("all ops", "ops_ms"), ("outside ops", "gap_ms"), ("step", "wall_ms"))]
    c.table(f"Ops of a step of {model}, by events",
            ["op", *(f"{way}: {what}" for way in seen for what in ("ms", "% of the step", "launches"))], table)
    for way, (_, rows) in seen.items():
        c.table(f"Longest ops of {model}, {way}", ["op", "output", "kernel", "ms", "launches", "TFLOP/s", "GB/s", "% of peak"],
                [[r["op"], r["shape"], r["kernel"], f"{r['ms']:.2f}", f"{r['count']:.0f}", f"{r['tflops']:.0f}",
                  f"{r['gb_per_s']:.0f}", f"{100 * r['of_peak']:.0f} ({r['bound']})"] for r in rows[:12]])


def cells(told, wall):
    if told is None:
        return "-", "-", "-"
    ms, launches = told
    return f"{ms:.2f}", f"{100 * ms / wall:.1f}", "" if launches is None else f"{launches:.0f}"


def events_of(path):
    """(line of the step, lines of ops) that trireme_step_ops --op-events-out wrote (bench/README.md)."""
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    return next(x for x in lines if x["kind"] == "step"), [x for x in lines if x["kind"] == "op"]


def events_told(step, rows):
    most = max(rows, key=lambda r: r["ms"])
    return (f"{len(rows)} rows, ops {step['ops_ms']:.1f} of {step['wall_ms']:.1f} ms; longest: {most['op']} {most['shape']} "
            f"{most['ms']:.1f} ms")


def by_op(rows):
    """{op: (ms per step, launches per step)}: rows are per op, shape and kernel."""
    of_op = {}
    for row in rows:
        ms, launches = of_op.get(row["op"], (0, 0))
        of_op[row["op"]] = ms + row["ms"], launches + row["count"]
    return of_op


# ---- ncu ----
def profile(c, kernels, model, most=9):
    """One launch of each kernel under ncu, in a model of two layers. ncu that is missing or refused is a row."""
    ncu = environment.find_tool("ncu")
    if not ncu:
        return c.row("ncu", "left out", 0, "ncu is not on this machine")
    rows = []
    for kernel, way in kernels:
        tool = [ncu, "--target-processes", "all", "--kernel-name-base", "demangled",
                "--kernel-name", f"regex:.*({kernel}).*", "--launch-count", "1", "--kill", "yes",
                "--clock-control", "none", "--csv", "--page", "raw", "--metrics", ",".join(COUNTERS.values())]
        for section in SECTIONS:
            tool += ["--section", section]
        program = [c.home / "bin/trireme_step_ops", steps.run_file(c, model), "--device", "cuda", "--steps", "1", "--warmup",
                   "1", "--set", "model.layers=2", *steps.WAYS[way]]
        name = f"ncu:{kernel.split('|')[0]}"
        c.step(name, c.env.under(tool, program), most, accept=counters)  # ncu ends the program: the exit code says nothing
        if told := counters(c.texts.get(name, "")):
            rows.append([kernel.split("|")[0], *(told.get(column, "-") for column in COUNTERS)])
        elif "ERR_NVGPUCTRPERM" in c.texts.get(name, ""):
            c.row("ncu", "left out", 0, "this machine does not permit reading the GPU's counters")
            break
    if rows:
        c.table("Kernels under ncu, one launch each", ["kernel", *COUNTERS], rows)
    return None


def counters(text):
    """{column: value} of the first launch in ncu's CSV output; {} if it has none."""
    lines = text.splitlines()
    head = next((i for i, line in enumerate(lines) if line.startswith('"ID"')), None)
    if head is None:
        return {}
    rows = list(csv.DictReader(lines[head:]))
    values = [r for r in rows if r.get("ID", "").strip().isdigit()]  # the first row has the units
    if not values:
        return {}
    found = {}
    for column, name in COUNTERS.items():
        of_name = [k for k in values[0] if k and name in k]
        if of_name and values[0][of_name[0]]:
            found[column] = values[0][of_name[0]]
            unit = (rows[0].get(of_name[0]) or "").strip()
            if column == "us" and unit in ("ns", "nsecond", "ms", "msecond"):
                value = float(found[column].replace(",", ""))
                found[column] = f"{value * (1e-3 if unit.startswith('n') else 1e3):.1f}"
    return found


# ---- single ops ----
def perf_lines(text):
    """[(op, keys, median seconds, GFLOP/s, GB/s)] of `trireme_ops perf`."""
    found = []
    for line in text.splitlines():
        words = line.split()
        try:
            median_ms, _, gflops, gbytes = map(float, words[:4])
        except ValueError:
            continue
        rest = words[4:]
        op = next((i for i, word in enumerate(rest) if "=" in "".join(rest[i + 1:i + 2])), None)
        if op is not None:
            found.append((rest[op], dict(p.split("=", 1) for p in rest[op + 1:]), 1e-3 * median_ms, gflops, gbytes))
    return found


def perf(c, name, folder, ops, most, device="cuda"):
    """Measures staged lines. Returns perf_lines of what was printed, also where the step was stopped."""
    only = ["--require-8-bit"] if "fp8_matmul" in ops else []  # else a fallback would pass for an 8-bit product
    c.step(name, [c.home / "bin/trireme_ops", "perf", "--device", device, "--problems", folder, "--op", ",".join(ops), *only],
           most, lambda lines: f"{len(lines) - 2} lines; {lines[-1].strip()}")
    return perf_lines(c.texts.get(name, ""))


def peer_module(c, name):
    spec = importlib.util.spec_from_file_location(name, c.home / f"tree/tools/{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def peer_lines(c, name, path, most):
    """Output of a peer script on a file of lines; "" without PyTorch."""
    if not environment.have_torch():
        c.row(f"peer:{name}", "left out", 0, f"{sys.executable} has no torch to compare with")
        return ""
    c.step(f"peer:{name}", [sys.executable, c.home / f"tree/tools/peer_{name}.py", path], most,
           lambda lines: f"{len(lines) - 2} lines; {lines[-1].strip()}")
    return c.texts.get(f"peer:{name}", "")


def compared(op, line, lengths):
    """Whether attention() measures the line."""
    keys = problems.keys_of(line)[1]
    return (op in sm90.OPS and problems.is_for(line, "perf") and keys.get("causal", "1") == "1"
            and problems.number(keys, "s", 0) in lengths and problems.number(keys, "d", 0) in WIDTHS and "dv" not in keys)


def attention(c, with_sm90, most=25, lengths=LENGTHS):
    """Attention by both kernels next to cuDNN and FlashAttention, for each of `lengths` and WIDTHS."""
    folder = c.out / "problems/perf-attention"
    ops = list(problems.stage(folder, c.home / "tree/tests/ops/gpu", lambda op, line: compared(op, line, lengths)))
    if not ops:
        return c.row("perf:attention", "left out", 0, "tests/ops/gpu has no such lines")
    peer = peer_module(c, "peer_attention")
    rates = {}  # (forward or backward, line) -> {who: TFLOP/s}
    for who, device in (("mma", "cuda"), ("sm90", "cuda-sm90")) if with_sm90 else (("mma", "cuda"),):
        for op, keys, seconds, *_ in perf(c, f"perf:attention {who}", folder, ops, most, device):
            line = peer.problem_of(keys)
            way = op == "attention_backward"
            rates.setdefault((way, line_of(line)), {})[who] = peer.flops(line)[way] / seconds * 1e-12
    for line, of_backend in peer.told(peer_lines(c, "attention", folder / "attention.txt", most)):
        for backend, both in of_backend.items():
            for way, rate in enumerate(both):
                if rate is not None:
                    rates.setdefault((bool(way), line_of(line)), {})[backend] = rate
    rows = []
    for (way, line), by in sorted(rates.items()):
        ours = max((by[w] for w in ("mma", "sm90") if w in by), default=None)
        theirs = max((by[w] for w in ("cudnn", "flash") if w in by), default=None)
        rows.append(["backward" if way else "forward", line,
                     *(f"{by[w]:.0f}" if w in by else "-" for w in ("mma", "sm90", "cudnn", "flash")),
                     f"{ours / theirs:.2f}" if ours and theirs else "-"])
    c.table("Attention, TFLOP/s", ["", "line", "mma", "sm90", "cuDNN", "flash", "our best / their best"], rows)
    return None


def line_of(keys):
    return " ".join(f"{k}={int(v)}" for k, v in keys.items())


def products(c, most=25):
    """Matrix products next to torch.mm, and a table of the memory-bound ops' GB/s."""
    gpu = c.home / "tree/tests/ops/gpu"
    folder = c.out / "problems/perf-matmul"
    ops = list(problems.stage(folder, gpu, lambda op, line: op in PRODUCTS and problems.is_for(line, "perf")))
    if ops:
        peer = peer_module(c, "peer_matmul")
        rates = {}
        for _, keys, _, gflops, _ in perf(c, "perf:matmul", folder, ops, most):
            rates.setdefault(" ".join(f"{k}={v}" for k, v in keys.items() if k != "for"), {})["ours"] = 1e-3 * gflops
        for line, rate in peer.told(peer_lines(c, "matmul", folder / "matmul.txt", most)):
            rates.setdefault(line, {})["torch"] = rate
        c.table("Matrix products, TFLOP/s", ["line", "ours", "torch.mm", "ours / torch.mm"],
                [[line, *(f"{by[w]:.0f}" if w in by else "-" for w in ("ours", "torch")),
                  f"{by['ours'] / by['torch']:.2f}" if len(by) == 2 else "-"] for line, by in rates.items()])
    folder = c.out / "problems/perf-memory"
    ops = list(problems.stage(folder, gpu, lambda op, line: op not in APART and problems.is_for(line, "perf")))
    if ops:
        c.table("Memory-bound ops", ["op", "line", "us", "GB/s"],
                [[op, " ".join(f"{k}={v}" for k, v in keys.items() if k != "for"), f"{1e6 * s:.1f}", f"{gbytes:.0f}"]
                 for op, keys, s, _, gbytes in perf(c, "perf:memory", folder, ops, most)])


def other_ops(c, most=60):
    """The lines of tests/ops/gpu that other parts leave out."""
    folder = c.out / "problems/perf-other"
    staged = problems.stage(folder, c.home / "tree/tests/ops/gpu", lambda op, line: (
        op in APART and op not in PRODUCTS and problems.is_for(line, "perf") and not compared(op, line, LENGTHS + LONG)))
    for op in staged:
        perf(c, f"perf:{op}", folder, [op], most)
