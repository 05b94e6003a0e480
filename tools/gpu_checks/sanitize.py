"""compute-sanitizer, the machine's own: all ops, or chosen lines of attention for sm_90a."""
from gpu_checks import environment, problems, sm90
from gpu_checks.check import last

# Tool -> second of 480 at which it ends. They find accesses outside of allocations, races between the threads of a
# block, barriers that not all threads reach, memory that is read before it is written.
SANITIZERS = {"memcheck": 216, "racecheck": 360, "synccheck": 418, "initcheck": 480}
OPS_FIRST = ["zero", "cast", "add", "scaled_sum", "matmul", "embedding", "layernorm", "rmsnorm", "attention",
             "attention_backward"]


def ops_in_order(c):
    """All ops; those that others depend on come first."""
    names = sorted(p.stem for p in (c.home / "tree/tests/ops/problems").glob("*.txt"))
    return [n for n in OPS_FIRST if n in names] + [n for n in names if n not in OPS_FIRST]


class Sanitizer:
    """The tool, started in the way that works on this machine."""

    def __init__(self, c):
        self.c = c
        self.tool = environment.find_tool("compute-sanitizer", "compute-sanitizer")
        self.direct = False
        if not self.tool:
            c.row("compute-sanitizer", "left out", 0, "it is not on this machine")
            return
        # A tool that does not follow `env` reports nothing: then the packed program is started directly.
        test = self.command("memcheck", c.home / "tree/tests/ops/problems", "zero", "cuda")
        if not c.step("compute-sanitizer:start", test, 30, accept=summary):
            self.direct = True

    def command(self, kind, folder, op, device):
        program = [self.c.home / "bin/trireme_ops", "test", "--device", device, "--problems", folder, "--op", op]
        # No program has an exit code of 99.
        tool = [self.tool, "--tool", kind, "--target-processes", "all", "--error-exitcode", "99", "--print-limit", "20"]
        return [*tool, *program] if self.direct else self.c.env.under(tool, program)

    def job(self, name, kind, folder, op, device, most):
        return {"name": name, "command": self.command(kind, folder, op, device), "most": most, "show": summary_line,
                "more": self.c.env.added() if self.direct else None}


def summary(text):
    return "ERROR SUMMARY" in text


def summary_line(lines):
    return next((x for x in reversed(lines) if "SUMMARY" in x), last(lines))


def lines_of_sm90(c, found, kinds, most, at_once):
    """Runs each kind of check on each (name, op, line)."""
    s = Sanitizer(c)
    if not s.tool:
        return
    jobs = []
    for name, op, line in found:
        folder = sm90.folder_of(c, f"sanitize-{name}-{op}")
        problems.stage(folder, c.home / "tree/tests/ops/problems", lambda o, x, op=op, line=line: o == op and x == line)
        jobs += [s.job(f"{kind}:{name} {op}", kind, folder, op, "cuda-sm90", most) for kind in kinds]
    c.pool(at_once, jobs)


def everything(c):
    """Every op under every tool."""
    s = Sanitizer(c)
    if not s.tool:
        return
    folder = c.home / "tree/tests/ops/problems"

    def under(kind):
        jobs = [s.job(f"{kind}:{op}{device[4:]}", kind, folder, op, device, 60)
                for device, names in (("cuda", ops_in_order(c)), ("cuda-sm90", sm90.OPS)) for op in names]
        c.pool(4, jobs)

    c.parts(max(SANITIZERS.values()), *((kind, ends, lambda kind=kind: under(kind)) for kind, ends in SANITIZERS.items()))
