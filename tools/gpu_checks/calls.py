"""The parts of each call of tools/gpu_check, by the second. docs/gpus.md has the plan of a lease."""
import importlib.metadata
import importlib.util

from gpu_checks import environment, measure, ranks, sanitize, sm90, steps
from gpu_checks.check import last, results_of
from gpu_checks.steps import LARGE, MIDDLE, SMALL

PARITY = ("data_parallel", "tensor_parallel", "sequence_parallel", "context_parallel", "expert_parallel", "pipeline",
          "recompute", "fp8")
PACKAGES = ("torch", "triton", "nvidia-cublas", "nvidia-cudnn-cu13", "nvidia-nccl-cu13")


def works(c):
    """Checks that the device can be made and writes zeros. If not, the call ends."""
    if c.step("device", test_command(c, "zero"), 40, last):
        return True
    print(f"gpu_check: no GPU that works was found; see {c.out / 'device.log'}", flush=True)
    return False


def test_command(c, op, mode="test"):
    return [c.home / "bin/trireme_ops", mode, "--device", "cuda", "--problems", c.home / "tree/tests/ops/problems",
            *(["--op", op] if op else [])]


def facts(c):
    """Which machine this is, and whether our programs find their libraries."""
    c.step("machine", ["nvidia-smi", "--query-gpu=name,driver_version,memory.total,clocks.max.sm", "--format=csv,noheader"],
           10, last)
    lacking = {name: ", ".join(sorted(libraries)) for name, libraries in c.env.lacking.items()}
    c.row("libraries", "failed" if lacking else "passed", 0, "; ".join(f"{p} lacks {names}" for p, names in lacking.items())
          or f"all found; from the archive instead of the machine: {', '.join(c.env.runtime) or 'none'}")
    found = []
    for name in PACKAGES:
        try:
            found.append(f"{name} {importlib.metadata.version(name)}")
        except importlib.metadata.PackageNotFoundError:
            pass
    found += [f"{tool}: {environment.find_tool(tool, 'compute-sanitizer') or 'missing'}" for tool in ("ncu", "compute-sanitizer")]
    c.row("versions", "passed", 0, "; ".join(found))


# ---- first call: is it right, and how fast is the small model ----
def first(c):
    def ops():
        names = [n for n in sanitize.ops_in_order(c) if n != "zero"]
        c.pool(6, [{"name": f"ops:{n}", "command": test_command(c, n), "most": 30, "show": last} for n in names])

    def references():
        c.pool(2, [{"name": "golden", "command": [c.home / "bin/test_golden"], "most": 40, "show": last},
                   {"name": "grad", "command": test_command(c, None, "grad"), "most": 40, "show": last}])

    def small_model():
        for way in ("auto", "sm90", "graphs", "timed+sm90"):
            if "sm90" in way and not sm90.usable(c.results):
                c.row(f"train-{SMALL}-{way}", "left out", 0, "not tried: a test of these kernels did not pass")
            else:
                steps.train(c, SMALL, way, 12)
        steps.compare_ways(c, SMALL)

    facts(c)
    if works(c):
        c.parts(310, ("ops", 75, ops), ("sm90", 120, lambda: sm90.test(c)), ("references", 160, references),
                ("steps", 210, small_model), ("peer", 310, lambda: steps.peer_step(c, SMALL, 100)))


# ---- second call: where the time goes ----
def second(c):
    take_over(c)
    if not works(c):
        return
    right = sm90_right(c, ("fwd-64", "bwd-64"))
    wrong = sm90.failures(c.results)
    ways = ["auto", "sm90"] if right else ["auto"]
    parts = [("events", 25, lambda: measure.op_events(c, SMALL, ways))]
    if wrong:  # why, rather than how fast
        parts.append(("wrong", 128, lambda: sanitize.lines_of_sm90(
            c, wrong[:3], ("memcheck", "synccheck", "racecheck"), 35, 3)))
    else:
        kernels = [k for k in measure.PROFILED if right or k[1] != "sm90"]
        parts += [("ncu", 70, lambda: measure.profile(c, kernels, SMALL)),
                  ("attention", 128, lambda: measure.attention(c, right))]
    parts += [("products", 160, lambda: measure.products(c)), ("forecast", 205, lambda: predicted(c)),
              ("llama", 245, lambda: llama(c, right)), ("peer", 355, lambda: steps.peer_step(c, MIDDLE, 110))]
    if right and not wrong:
        parts.append(("sanitize", 388, lambda: sanitize.lines_of_sm90(
            c, [("smallest", op, line) for op in sm90.OPS if (line := sm90.smallest(c, op))], ("memcheck", "racecheck"), 30, 4)))
    c.parts(388, *parts)


def take_over(c):
    """Takes the first call's results, where it left any."""
    before = results_of("first", c.state) if c.state else None
    if before:
        c.results = before


def sm90_right(c, classes):
    """Whether models can use the sm_90a kernels. Tests `classes` if the first call left nothing, or had no time for them."""
    if sm90.usable(c.results) is None:
        c.row("first-call", "left out", 0, f"it left no result of the sm_90a kernels: {', '.join(classes)} are tested now")
        sm90.test(c, classes, "again")
    return bool(sm90.usable(c.results))


def predicted(c):
    if not steps.measured(c, SMALL, "auto"):
        steps.train(c, SMALL, "auto", 15)
    if steps.bench(c, 40):
        steps.forecast(c, SMALL, 20)


def llama(c, right):
    for way in ("auto", "timed+sm90" if right else "timed"):
        steps.train(c, MIDDLE, way, 18)
    steps.compare_ways(c, MIDDLE)
    steps.forecast(c, MIDDLE, 12)


# ---- third call: layouts, graphs, fp8, ranks, the larger model ----
def third(c):
    take_over(c)
    if not works(c):
        return
    shards = {"GTEST_TOTAL_SHARDS": "6", "GTEST_SHARD_INDEX": "0"}

    def parity():
        # Every layout trains for 50 steps, and pipelines have dozens of cases: a part of them is enough for kernels.
        c.pool(3, [{"name": f"parity:{n}", "command": [c.home / f"bin/test_parity_{n}"], "most": 120, "show": last,
                    "more": shards if n == "pipeline" else None} for n in PARITY])

    def graphs():
        with_graphs = {"TRIREME_TEST_DEVICE": "cuda-graphs"}
        c.pool(2, [{"name": f"graphs:{n}", "command": [c.home / f"bin/test_{n}"], "most": 45, "show": last,
                    "more": with_graphs | (shards if n != "golden" else {})}
                   for n in ("golden", "parity_data_parallel", "parity_pipeline", "parity_recompute")])

    def fp8():
        if not steps.measured(c, SMALL, "auto"):
            steps.train(c, SMALL, "auto", 15)
        steps.train(c, SMALL, "fp8", 20)
        steps.compare_ways(c, SMALL)
        if importlib.util.find_spec("torchao"):
            steps.peer_step(c, SMALL, 60, "fp8")

    def large():
        if not (c.out / "cluster.toml").exists():
            steps.bench(c, 40)
        steps.train(c, LARGE, "auto", 60)
        steps.forecast(c, LARGE)

    c.parts(560, ("parity", 150, parity), ("graphs", 220, graphs),
            ("nccl", 290, lambda: [ranks.two_ranks(c, zero) for zero in (0, 3)]), ("fp8", 360, fp8), ("large", 470, large),
            ("attention", 530, lambda: measure.attention(
                c, sm90_right(c, ("fwd-64", "bwd-64", "128")), 20, measure.LONG)),
            ("other ops", 560, lambda: measure.other_ops(c, 20)))


def all_ops_sanitized(c):
    if works(c):
        sanitize.everything(c)


# Call -> (what it runs, its seconds). The device tool's limit is 8 to 12 s more.
CALLS = {"first": (first, 318), "second": (second, 390), "third": (third, 575), "sanitize": (all_ops_sanitized, 490)}
