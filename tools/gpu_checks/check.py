"""One call of tools/gpu_check: steps with time limits, their logs, the table, and the results that the next call reads."""
import concurrent.futures
import io
import json
import pathlib
import shutil
import tarfile
import threading
import time
import traceback

from gpu_checks import environment
from gpu_checks.processes import Processes

SPARE = 2  # seconds at the end of a part for what is not a step
LEAST = 2  # seconds without which a step is not begun


class Check:
    """Steps of one call.

    out    folder for the table and the logs
    call   name of the call
    state  folder that the next call finds again, with this call's results in <call>.json; None: no results are left
    back   folder that gets only the table and one archive of all logs, after every part
    home   folder with bin, lib and tree, once use() was called
    """

    def __init__(self, out, call, seconds, state=None, back=None, begin=None):
        self.out, self.call, self.state, self.back = out, call, state, back
        self.begin = time.monotonic() if begin is None else begin
        self.seconds = seconds
        self.end = self.begin + seconds
        self.lock = threading.RLock()
        self.rows, self.tables, self.texts = [], [], {}
        self.processes = Processes()
        self.background = concurrent.futures.ThreadPoolExecutor(2)
        self.results = {"steps": {}, "sm90": {}}
        self.home = None
        self.env = environment.Environments(None)

    def use(self, home):
        self.home = home
        self.env = environment.Environments(home)

    # ---- limits ----
    def left(self):
        return self.end - time.monotonic()

    def parts(self, planned, *parts):
        """Runs each (name, second at which it ends, function). `planned`: seconds of the whole plan, scaled to this
        call's. A part that ends early leaves its time to the next one. An error in one part leaves the others."""
        for name, ends, part in parts:
            self.end = self.begin + min(self.seconds, ends * self.seconds / planned)
            try:
                part()
            except Exception as e:
                self.row(f"gpu_check:{name}", "failed (itself)", 0, f"{type(e).__name__}: {e}")
                traceback.print_exc()
            self.bring_back()  # the logs of the parts so far, in case this call is stopped
        self.end = self.begin + self.seconds

    # ---- steps ----
    def step(self, name, command, most=120, show=None, more=None, until=None, accept=None):
        """Runs `command` for at most `most` seconds and no longer than its part. `show` makes the table's text from the
        lines of output; `more` adds to the environment; accept(output) decides in place of the exit code. Returns whether
        the command passed."""
        limit = min(most, (until or self.end) - time.monotonic() - SPARE)
        if limit < LEAST:
            return self.row(name, "no time left", 0, "")
        begin = time.monotonic()
        text, ended = self.processes.run(command, limit, self.env.of(command, more))
        took = time.monotonic() - begin
        if accept:
            ended = "passed" if accept(text) else ended.replace("passed", "failed (what it said)")
        self.texts[name] = text
        with self.lock, (self.out / f"{name.split(':')[0]}.log").open("a") as f:
            f.write(f"# {name}, at {begin - self.begin:.1f} s\n$ {' '.join(map(str, command))}\n{text}\n"
                    f"[{ended}, {took:.1f} s]\n\n")
        lines = [line for line in text.splitlines() if line.strip()]
        told = next((line for line in lines if "FAIL" in line or "rror" in line), last(lines))
        if show and ended == "passed":
            try:
                told = show(lines)
            except Exception as e:  # unexpected output of one program: the other steps still run
                ended, told = "failed (what it said)", f"{type(e).__name__}: {e}"
        return self.row(name, ended, took, told)

    def pool(self, size, jobs):
        """Runs jobs, each the arguments of step() as a dict, `size` at a time. Returns name -> passed."""
        with concurrent.futures.ThreadPoolExecutor(size) as threads:
            begun = [(job["name"], threads.submit(self.step, **job)) for job in jobs]
            try:
                return {name: future.result() for name, future in begun}
            except (SystemExit, KeyboardInterrupt):  # this call is being stopped: no queued job may start
                self.processes.end_all()
                raise

    def behind(self, jobs):
        """Starts jobs that run while other steps do."""
        for job in jobs:
            self.background.submit(self.step, **job)

    def passed(self, name):
        return any(r[0] == name and r[1] == "passed" for r in self.rows)

    def ended(self, name):
        return next((r[1] for r in self.rows if r[0] == name), None)

    def row(self, name, ended, took, told):
        told = " ".join(told.split())
        with self.lock:
            self.rows.append((name, ended, f"{took:.1f}", told[:160]))
            print(f"{name:34} {ended:18} {took:6.1f} s  {told[:110]}", flush=True)
            self.write()
        return ended == "passed"

    def table(self, title, header, rows):
        with self.lock:
            self.tables.append((title, header, [[str(c) for c in row] for row in rows]))
            self.write()

    # ---- table, results, logs ----
    def write(self):
        """Writes the table, whole after every step."""
        with self.lock:
            text = io.StringIO()
            markdown(text, ("step", "result", "s", ""), self.rows)
            for title, header, rows in self.tables:
                text.write(f"\n{title}\n\n")
                markdown(text, header, rows)
            replace(self.out / "table.md", text.getvalue())
            if self.state:
                replace(self.state / f"{self.call}.json", json.dumps(self.results))

    def bring_back(self):
        try:
            self.pack_logs()
        except OSError as e:  # for example a full disk: the screen still has the rows
            if not self.ended("gpu_check:logs"):
                self.row("gpu_check:logs", "failed (itself)", 0, f"{type(e).__name__}: {e}")

    def pack_logs(self):
        """Packs all logs into one file next to the table, and copies both to `back`. Neither is ever half written."""
        whole, begun = self.out / "all.tar.xz", self.out / "all.tar.xz.part"
        with self.lock:
            with tarfile.open(begun, "w:xz", preset=1) as t:
                for path in sorted(p for p in self.out.iterdir() if p.is_file() and p not in (whole, begun)):
                    t.add(path, path.name)
            begun.replace(whole)
            for name in ("table.md", "all.tar.xz") if self.back else ():
                shutil.copy(self.out / name, self.back / f"{name}.part")
                (self.back / f"{name}.part").replace(self.back / name)

    def close(self):
        self.processes.end_all()
        self.background.shutdown(wait=True, cancel_futures=True)
        self.write()
        self.bring_back()


def markdown(out, header, rows):
    out.write("| " + " | ".join(header) + " |\n" + "|---" * len(header) + "|\n")
    for row in rows:
        out.write("| " + " | ".join(str(c).replace("|", "/") for c in row) + " |\n")


def replace(path, text):
    """Writes a file that is never half written."""
    part = path.with_name(path.name + ".part")
    part.write_text(text)
    part.replace(path)


def last(lines):
    return lines[-1] if lines else ""


def json_line(lines):
    """The last line that is a JSON object. Libraries may print warnings after it."""
    found = [line for line in lines if line.startswith("{")]
    if not found:
        raise ValueError("no line of JSON")
    return json.loads(found[-1])


def results_of(call, state):
    """Results that a call left in folder `state`; None if there are none or they cannot be read."""
    try:
        told = json.loads((pathlib.Path(state) / f"{call}.json").read_text())
        return told if isinstance(told, dict) and isinstance(told.get("steps"), dict) and isinstance(
            told.get("sm90"), dict) else None
    except (OSError, ValueError, TypeError):
        return None
