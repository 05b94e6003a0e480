"""The attention kernels for sm_90a: a process per class of kernels, and the line at which a class fails."""
import re

from gpu_checks import problems

OPS = ("attention", "attention_backward")
FAILED = ("failed", "stopped")
CAP = 12  # seconds per class
# Class -> (ops, head widths of its kernels). A process each: a kernel that hangs costs its class alone.
CLASSES = {
    "fwd-64": (OPS[:1], (64, 64)),
    "bwd-64": (OPS[1:], (64, 64)),
    "128": (OPS, (128, 128)),
    "80+96": (OPS, (96, 96)),
    "192-128": (OPS, (192, 128)),
    "256": (OPS, (256, 256)),
}
WIDTHS = sorted({widths for _, widths in CLASSES.values()})  # as src/device/cuda/attention_widths.h


def class_of(op, line):
    """The class whose kernel takes a test line, or None where docs/device.md says that another kernel does."""
    keys = problems.keys_of(line)[1]
    d = problems.number(keys, "d", 1)
    dv = problems.number(keys, "dv", d)
    if op not in OPS or not problems.is_for(line, "test") or keys.get("dtype") not in ("bf16", "f16"):
        return None
    if float(keys.get("scale", 1)) <= 0 or any(problems.number(keys, k, 0) % 8 for k in ("pad", "offset")) or d % 8 or dv % 8:
        return None
    fits = [w for w in WIDTHS if d <= w[0] and dv <= w[1]]
    return next((name for name, (ops, widths) in CLASSES.items() if fits and op in ops and widths == fits[0]), None)


def size(line):
    """Scores of a line, which is what its time follows."""
    keys = problems.keys_of(line)[1]
    s = problems.number(keys, "s", 1)
    return s * problems.number(keys, "keys", s) * problems.number(keys, "h", 1) * problems.number(keys, "b", 1)


def folder_of(c, name):
    return c.out / "problems" / name


def test_command(c, folder, ops):
    return [c.home / "bin/trireme_ops", "test", "--device", "cuda-sm90", "--problems", folder, "--op", ",".join(ops),
            "--verbose"]


def test(c, names=tuple(CLASSES), prefix="sm90"):
    """Tests classes, two at a time. Leaves {class: ended, op, line of the first failure} in the results."""
    jobs, staged = [], {}
    for name in names:
        staged[name] = problems.stage(folder_of(c, f"sm90-{name}"), c.home / "tree/tests/ops/problems",
                                      lambda op, line, name=name: class_of(op, line) == name)
        if staged[name]:
            jobs.append({"name": f"{prefix}:{name}", "most": CAP,
                         "command": test_command(c, folder_of(c, f"sm90-{name}"), [o for o in OPS if o in staged[name]])})
    passed = c.pool(2, jobs)
    for name in names:
        row = f"{prefix}:{name}"
        told = {"ended": "passed" if passed.get(row) else c.ended(row) or "no lines"}
        if not passed.get(row) and staged[name]:
            told["op"], told["line"] = failing_line(staged[name], c.texts.get(row, ""))
        c.results["sm90"][name] = told
    c.write()


def failing_line(staged, text):
    """(op, line) that failed; after a hang the first line whose result was not printed."""
    lines = [(op, line) for op in OPS for line in staged.get(op, [])]
    if found := re.search(r"^FAIL (\S.*?) \(", text, re.M):
        return next(((op, line) for op, line in lines if line == found[1]), (found[1].split()[0], found[1]))
    printed = {x.strip().split(" threads=")[0] for x in text.splitlines() if " threads=" in x}
    return next((entry for entry in lines if entry[1] not in printed), lines[0])


def usable(results):
    """Whether the kernels of head width 64, which the models use, passed. None: not known."""
    ends = [results["sm90"].get(name, {}).get("ended", "") for name in ("fwd-64", "bwd-64")]
    if any(e.startswith(FAILED) for e in ends):
        return False
    return True if all(e == "passed" for e in ends) else None


def failures(results):
    """[(class, op, line)] of the classes that failed or hung."""
    return [(name, told["op"], told["line"]) for name, told in results["sm90"].items()
            if told["ended"].startswith(FAILED) and "line" in told]


def smallest(c, op, least=90):
    """The line with the fewest scores among those of at least `least` queries, where every loop runs."""
    lines, _ = problems.read(c.home / "tree/tests/ops/problems")
    fit = [x for x in lines.get(op, []) if class_of(op, x)]
    long = [x for x in fit if problems.number(problems.keys_of(x)[1], "s", 1) >= least]
    return min(long or fit, key=size, default=None)
