"""tools/gpu_check keeps to its time, tells what passed, failed and was left out, and packs what programs need."""
import contextlib
import importlib.machinery
import importlib.util
import io
import pathlib
import random
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
import unittest
from unittest import mock

sys.dont_write_bytecode = True
SCRIPT = pathlib.Path(__file__).resolve().parents[2] / "tools/gpu_check"
loader = importlib.machinery.SourceFileLoader("gpu_check", str(SCRIPT))
gpu_check = importlib.util.module_from_spec(importlib.util.spec_from_loader("gpu_check", loader))
loader.exec_module(gpu_check)


class GpuCheck(unittest.TestCase):
    def setUp(self):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="gpu_check_test."))
        self.addCleanup(shutil.rmtree, self.folder)
        no_clocks = mock.patch.object(gpu_check.shutil, "which", return_value=None)  # of a machine with a GPU
        no_clocks.start()
        self.addCleanup(no_clocks.stop)

    def run_steps(self, steps, minutes=1.0, parts=()):
        out = self.folder / "out"
        code = gpu_check.run(out, None, self.folder, minutes, steps, parts)
        return code, (out / "table.md").read_text().splitlines()[2:], out

    def test_what_passed_failed_and_hung(self):
        def steps(c):
            c.step("good", ["sh", "-c", "echo one; echo $TRIREME_TEST_DEVICE"], show=gpu_check.last)
            c.step("ops:bad", ["sh", "-c", "echo 'FAIL this | line'; echo more; exit 3"])
            c.step("ops:slow", ["sh", "-c", "echo begun; sleep 60"], most=3)
            c.step("absent", [self.folder / "nothing"])

        begin = time.monotonic()
        code, rows, out = self.run_steps(steps)
        self.assertLess(time.monotonic() - begin, 30)
        self.assertEqual(code, 1)
        self.assertRegex(rows[0], r"\| good \| passed \| .* \| cuda \|")
        self.assertRegex(rows[1], r"\| ops:bad \| failed \(3\) \| .* \| FAIL this / line \|")
        self.assertRegex(rows[2], r"\| ops:slow \| stopped after 3 s \| .* \| begun \|")
        self.assertRegex(rows[3], r"\| absent \| failed \(could not start\)")
        self.assertIn("FAIL this", (out / "ops.log").read_text())
        self.assertIn("begun", (out / "ops.log").read_text())

    def test_time_runs_out(self):
        def steps(c):
            c.step("long", ["sleep", "60"])
            c.step("after", ["true"])

        begin = time.monotonic()
        code, rows, _ = self.run_steps(steps, minutes=0.1)
        self.assertLess(time.monotonic() - begin, 7)
        self.assertEqual(code, 1)
        self.assertIn("stopped after", rows[0])
        self.assertIn("| after | no time left |", rows[1])

    def test_who_is_late_takes_along_what_it_started(self):
        pid = self.folder / "pid"
        self.run_steps(lambda c: c.step("slow", ["sh", "-c", f"sleep 60 >/dev/null 2>&1 & echo $! >{pid}; wait"], most=3))
        stat = pathlib.Path(f"/proc/{pid.read_text().strip()}/stat")
        for _ in range(50):  # a killed one is there until somebody asks for it
            if not stat.exists() or stat.read_text().split()[2] == "Z":
                return
            time.sleep(0.1)
        self.fail("what it started goes on")

    def test_what_a_program_says_ends_its_step_alone(self):
        def steps(c):
            c.step("odd", ["echo", "no JSON"], show=gpu_check.training)
            c.step("good", ["echo", "one"], show=gpu_check.last)

        _, rows, out = self.run_steps(steps)
        self.assertRegex(rows[0], r"\| odd \| failed \(what it said\) \| .* \| ValueError: no line of JSON")
        self.assertRegex(rows[1], r"\| good \| passed")
        with tarfile.open(out / "all.tar.xz") as t:
            self.assertEqual(set(t.getnames()), {"table.md", "odd.log", "good.log"})

    def test_an_error_of_its_own_in_one_part_leaves_the_others(self):
        def steps(c):
            c.parts(("one", 0.5, lambda: 1 // 0), ("two", 0.5, lambda: c.step("good", ["true"])))

        with contextlib.redirect_stderr(io.StringIO()):
            code, rows, _ = self.run_steps(steps)
        self.assertEqual(code, 1)
        self.assertRegex(rows[0], r"\| gpu_check:one \| failed \(itself\) \| 0.0 \| ZeroDivisionError")
        self.assertRegex(rows[1], r"\| good \| passed")

    def test_parts_that_are_asked_for_share_all_of_the_time(self):
        ends = []

        def steps(c):
            c.step("good", ["true"])
            c.parts(*[(n, 0.25, lambda n=n: ends.append((n, (c.end - c.begin) / c.seconds))) for n in "abcd"])

        self.run_steps(steps, parts=["b", "d"])
        self.assertEqual([n for n, _ in ends], ["b", "d"])
        self.assertAlmostEqual(ends[0][1], 0.5)
        self.assertAlmostEqual(ends[1][1], 1)

    def test_each_part_brings_its_logs_back(self):
        back = self.folder / "back"
        seen = []

        def second(c):
            with tarfile.open(back / "all.tar.xz") as t:
                seen.append(set(t.getnames()))
            c.step("two", ["true"])

        def steps(c):
            c.parts(("a", 0.5, lambda: c.step("one", ["true"])), ("b", 0.5, lambda: second(c)))

        with contextlib.redirect_stdout(io.StringIO()):
            gpu_check.run(self.folder / "out", None, self.folder, 1, steps, back=back)
        self.assertEqual(seen, [{"table.md", "one.log"}])
        self.assertEqual({p.name for p in back.iterdir()}, {"table.md", "all.tar.xz"})
        self.assertIn("| two | passed |", (back / "table.md").read_text())
        with tarfile.open(back / "all.tar.xz") as t:
            self.assertEqual(set(t.getnames()), {"table.md", "one.log", "two.log"})

    def test_clocks_are_watched_while_it_runs(self):
        smi, pid = self.folder / "nvidia-smi", self.folder / "pid"
        smi.write_text(f"#!/bin/sh\necho $$ >{pid}; echo $*; exec sleep 60\n")
        smi.chmod(0o755)

        def steps(c):
            for _ in range(100):
                if (self.folder / "out/clocks.csv").stat().st_size > 0:
                    break
                time.sleep(0.05)
            c.step("good", ["true"])

        with mock.patch.object(gpu_check.shutil, "which", return_value=str(smi)), \
                mock.patch.dict(gpu_check.os.environ, PATH=f"{self.folder}:{gpu_check.os.environ['PATH']}"):
            self.run_steps(steps)
        self.assertIn("--query-gpu=timestamp,clocks.sm", (self.folder / "out/clocks.csv").read_text())
        self.assertFalse(pathlib.Path(f"/proc/{pid.read_text().strip()}").exists())

    def test_attention_on_trial_that_fails_is_tried_no_further(self):
        steps, _ = self.steps_of({"step_ops": f"echo $* >> {self.folder}/asked; {self.STEP % (1, 5)}",
                                  "trireme": self.TRIREME % 0.1, "trireme_ops": """case $* in
            *test*sm90*backward*) echo FAIL it; exit 1;; esac; echo well"""}, parts=["rest"])
        self.assertEqual(steps["sm90:perf attention"][0].strip(), "passed")
        self.assertNotIn("sm90:perf attention_backward", steps)
        self.assertEqual(steps["sm90-gpt2-124m"][0].strip(), "left out")
        self.assertNotIn("train.attention=sm90", (self.folder / "asked").read_text())
        self.assertEqual(steps["parity:fp8"][0].strip(), "passed")

    def test_what_is_out_of_date_is_built_before_it_is_packed(self):
        build = self.folder / "build"
        build.mkdir()
        (build / "CMakeCache.txt").write_text("")
        with mock.patch.object(gpu_check.subprocess, "run", return_value=mock.Mock(returncode=1)) as ran, \
                self.assertRaisesRegex(SystemExit, "does not build all of trireme, "):
            gpu_check.pack(self.folder / "x", build)
        command = ran.call_args.args[0]
        self.assertEqual(command[:4], ["cmake", "--build", build, "--target"])
        self.assertEqual(set(command[4:]), {pathlib.Path(p).name for p in gpu_check.PROGRAMS})

    def test_logs_that_cannot_be_packed_leave_the_steps(self):
        def steps(c):
            c.parts(("a", 0.5, lambda: shutil.rmtree(back)), ("b", 0.5, lambda: c.step("two", ["true"])))

        back = self.folder / "back"
        with contextlib.redirect_stdout(io.StringIO()) as told:
            code = gpu_check.run(self.folder / "out", None, self.folder, 1, steps, back=back)
        self.assertEqual(code, 1)
        self.assertIn("gpu_check:logs", told.getvalue())
        self.assertRegex((self.folder / "out/table.md").read_text(), r"\| two \| passed")

    def test_all_passed(self):
        code, rows, _ = self.run_steps(lambda c: c.step("good", ["true"]))
        self.assertEqual((code, len(rows)), (0, 1))

    def test_without_a_gpu_it_ends_at_once(self):
        ops = self.folder / "bin/trireme_ops"
        ops.parent.mkdir()
        ops.write_text("#!/bin/sh\necho 'FAIL zero: no GPU here'\nexit 1\n")
        ops.chmod(0o755)
        told = io.StringIO()
        with contextlib.redirect_stdout(told):
            code, rows, _ = self.run_steps(gpu_check.gpu_steps)
        self.assertEqual((code, len(rows)), (1, 1))
        self.assertRegex(rows[0], r"\| device \| failed \(1\) \| .* \| FAIL zero: no GPU here \|")
        self.assertIn("gpu_check: no GPU that works is here; what was tried is in ", told.getvalue())

    def pretend(self, told):
        """Programs that print what `told` has for a word in their name, else that they are well; a tree of two ops."""
        binary, problems = self.folder / "bin", self.folder / "tree/tests/ops/problems"
        for folder in (binary, problems, self.folder / "tree/tests/ops/gpu", self.folder / "tree/tools"):
            folder.mkdir(parents=True)
        for name in gpu_check.PROGRAMS:
            program = binary / pathlib.Path(name).name
            said = next((v for k, v in told.items() if program.name.endswith(k)), 'echo "$7 is well"')
            program.write_text(f"#!/bin/sh\n{said}\n")
            program.chmod(0o755)
        for name in ("matmul", "zero"):
            (problems / f"{name}.txt").write_text("")

    def steps_of(self, told, peers=False, minutes=1.0, parts=()):
        self.pretend(told)
        (self.folder / "tree/tools/peer_step.py").write_text(told.get("peer_step", "raise SystemExit(3)"))
        with mock.patch.object(gpu_check.importlib.util, "find_spec", return_value=peers or None), \
                contextlib.redirect_stdout(io.StringIO()):
            _, rows, out = self.run_steps(gpu_check.gpu_steps, minutes, parts)
        names = [row.split("|")[1].strip() for row in rows]
        self.assertEqual(len(names), len(set(names)), names)  # else one step's log and result is taken for another's
        return {row.split("|")[1].strip(): row.split("|")[2:] for row in rows}, out

    STEP = """echo '{"step_s": [0.1, 0.1], "tokens": 6, "flops_per_step": 1, "loss": %s, "graphs": "graphs: 4 of 5",
        "memory": {"grads": {"booked": 5, "met": %s}, "total": {"booked": 7, "met": 7}}}' | tr -d '\\n'; echo"""
    TRIREME = """if [ $1 = bench ]; then echo x > $5; else echo '{"best": {"step_s": %s}}'; fi"""

    def test_with_a_gpu_it_goes_on(self):
        steps, out = self.steps_of({"step_ops": f"echo $* >> {self.folder}/asked; {self.STEP % (1, 5)}",
                                    "trireme": self.TRIREME % 0.104, "test_golden": "echo on $TRIREME_TEST_DEVICE"})
        for name in ("device", "ops:zero", "ops:matmul", "grad", "golden", "parity:fp8", "train-gpt2-124m",
                     "memory-gpt2-124m", "graphs-gpt2-124m", "deterministic-gpt2-124m", "forecast-gpt2-124m",
                     "forecast-llama-1b", "train-gpt2-1.5b", "train-llama-1b-sm90", "memory-gpt2-124m-sm90", "sm90-llama-1b"):
            self.assertEqual(steps.get(name, [""])[0].strip(), "passed", name)
        self.assertIn("matmul is well", "".join("".join(s) for s in steps.values()))
        self.assertIn("104.0 ms said, 100.0 ms met: +4.0 %", "".join(steps["forecast-gpt2-124m"]))
        self.assertEqual(steps["peer"][0].strip(), "left out")
        self.assertNotIn("ratio-gpt2-124m", steps)
        self.assertIn("on cuda-graphs", "".join(steps["graphs:golden"]))
        self.assertTrue("".join(steps["golden"]).strip().endswith("on cuda"), steps["golden"])
        asked = (self.folder / "asked").read_text().splitlines()
        self.assertEqual(sum("train.graphs=on" in line for line in asked), 1)
        self.assertEqual(sum("train.graphs" in line for line in asked), 1)
        self.assertEqual(sum("train.attention=sm90" in line for line in asked), 2)

    def test_the_last_part_alone(self):
        steps, _ = self.steps_of({"step_ops": self.STEP % (1, 5), "trireme": self.TRIREME % 0.1}, parts=["rest"])
        self.assertNotIn("ops:zero", steps)
        for name in ("device", "sm90-gpt2-124m", "sm90-llama-1b", "train-gpt2-124m-fp8", "train-gpt2-1.5b", "parity:fp8",
                     "bench"):
            self.assertEqual(steps.get(name, [""])[0].strip(), "passed", name)
        self.assertNotIn("left out", steps["forecast-gpt2-1.5b"][0])

    def test_a_part_that_hangs_leaves_the_others_their_time(self):
        begin = time.monotonic()
        steps, _ = self.steps_of({"step_ops": self.STEP % (1, 5), "trireme": self.TRIREME % 0.1,
                                  "test_golden": "case $TRIREME_TEST_DEVICE in cuda) exec sleep 100;; esac", "trireme_ops": """case $* in
            *grad*|*zero*) echo well;; *perf*|*sm90*) echo well;; *) exec sleep 100;; esac"""}, minutes=0.5)
        self.assertLess(time.monotonic() - begin, 32)
        self.assertIn("stopped after", steps["ops:matmul"][0])
        for name in ("golden", "grad"):
            self.assertEqual(steps[name][0].strip(), "no time left", name)
        for name in ("train-gpt2-124m", "graphs-gpt2-124m", "forecast-gpt2-124m", "train-llama-1b", "sm90:attention"):
            self.assertEqual(steps[name][0].strip(), "passed", name)

    def test_what_differs_is_told(self):
        steps, _ = self.steps_of({"step_ops": f"case $* in *graphs=on*) {self.STEP % (2, 6)};; *) {self.STEP % (1, 6)};; esac",
                                  "trireme": self.TRIREME % 0.094})
        self.assertIn("failed (losses differ)", steps["graphs-gpt2-124m"][0])
        self.assertIn("failed", steps["memory-gpt2-124m"][0])
        self.assertIn("grads: booked 5, met 6", "".join(steps["memory-gpt2-124m"]))
        self.assertIn("beyond 5 %", steps["forecast-gpt2-124m"][0])

    def test_a_plan_that_finds_no_room_is_told(self):
        steps, _ = self.steps_of({"step_ops": self.STEP % (1, 5),
                                  "trireme": "if [ $1 = bench ]; then echo x > $5; else echo '{\"best\": null}'; fi"})
        self.assertIn("failed", steps["forecast-llama-1b"][0])
        self.assertIn("does not fit", "".join(steps["forecast-llama-1b"]))

    def test_timed_products_beside_the_peer(self):
        said = 'import json; print(json.dumps({"tokens_per_s": 50, "gflops_per_s": 1, "step_s": 0.13, "torch": "2"}))'
        said += "; import sys; sys.stderr.write('warning: as libraries do\\n')"
        steps, _ = self.steps_of({"step_ops": self.STEP % ("null", 5), "trireme": self.TRIREME % 0.1, "peer_step": said},
                                 peers=True)
        self.assertIn("loss None", "".join(steps["train-gpt2-124m"]))
        self.assertIn("1.300 times PyTorch's tokens/s with timed products", "".join(steps["ratio-gpt2-124m-timed"]))
        self.assertIn("1.000 times as fast with attention for sm_90a; 1.300 times PyTorch's", "".join(steps["sm90-gpt2-124m"]))

    def test_the_peer_beside_ours(self):
        said = 'import json; print(json.dumps({"tokens_per_s": 50, "gflops_per_s": 1, "step_s": %s, "torch": "2"}))'
        steps, _ = self.steps_of({"step_ops": self.STEP % (1, 5), "trireme": self.TRIREME % 0.1, "peer_step": said % 0.12},
                                 peers=True)
        self.assertEqual(steps["peer-llama-1b"][0].strip(), "passed")
        self.assertEqual(steps["ratio-llama-1b"][0].strip(), "passed")
        self.assertIn("1.200 times PyTorch's tokens/s", "".join(steps["ratio-llama-1b"]))

    def sanitized(self, tool):
        self.pretend({})
        with mock.patch.object(gpu_check, "find_sanitizer", return_value=tool), contextlib.redirect_stdout(io.StringIO()):
            code, rows, out = self.run_steps(gpu_check.sanitize_steps)
        return code, {row.split("|")[1].strip(): row.split("|")[2:] for row in rows}, out

    def test_every_op_under_every_sanitizer(self):
        tool = self.folder / "tool"
        tool.write_text("""#!/bin/sh
            kind=$2; shift 6; op=$8
            echo "========= $kind of $op"; "$@"
            case "$kind $op" in "racecheck matmul") echo "========= Error: Race reported"; exit 99;; esac
            echo "========= ERROR SUMMARY: 0 errors"; echo more
            """)
        tool.chmod(0o755)
        code, steps, out = self.sanitized(str(tool))
        self.assertEqual(code, 1)
        for kind in ("memcheck", "racecheck", "synccheck", "initcheck"):
            for op in ("zero", "matmul", "attention-sm90", "attention_backward-sm90"):
                bad = (kind, op) == ("racecheck", "matmul")
                self.assertEqual(steps[f"{kind}:{op}"][0].strip(), "failed (99)" if bad else "passed")
                self.assertIn("Race reported" if bad else "ERROR SUMMARY: 0 errors", "".join(steps[f"{kind}:{op}"]))
        self.assertIn("matmul is well", (out / "memcheck.log").read_text())

    def test_without_a_sanitizer_it_says_so(self):
        code, steps, _ = self.sanitized(None)
        self.assertEqual((code, list(steps)), (1, ["compute-sanitizer"]))
        self.assertIn("pack --sanitizer", "".join(steps["compute-sanitizer"]))

    def test_a_sanitizer_goes_along(self):
        build, tool = self.folder / "build", self.folder / "compute-sanitizer"
        for folder in (build, tool / "x86", tool / "docs"):
            folder.mkdir(parents=True)
        shutil.copy("/usr/bin/sort", build / "sort")
        for name in ("compute-sanitizer", "libsanitizer-collection.so", "x86/TreeLauncherSubreaper", "docs/it.pdf"):
            (tool / name).write_text("#!/bin/sh\necho sanitizer of $0\n")
        archive = self.folder / "a.tar.xz"
        with mock.patch.multiple(gpu_check, PROGRAMS=["sort"], DATA=[]):
            gpu_check.pack(archive, build, tool)
            with self.assertRaisesRegex(SystemExit, "no compute-sanitizer is there"):
                gpu_check.pack(archive, build, build)
        with tarfile.open(archive) as t:
            self.assertEqual([n for n in t.getnames() if n.startswith("sanitizer/")],
                             ["sanitizer/compute-sanitizer", "sanitizer/libsanitizer-collection.so"])
        found = []
        gpu_check.run(self.folder / "there", archive, None, 1, lambda c: found.append(
            subprocess.run([gpu_check.find_sanitizer(c)], capture_output=True, text=True, check=True).stdout))
        self.assertIn("sanitizer of ", found[0])

    def test_what_is_packed_runs_elsewhere(self):
        build = self.folder / "build"
        build.mkdir()
        shutil.copy("/usr/bin/sort", build / "sort")
        packed = mock.patch.multiple(gpu_check, PROGRAMS=["sort"], DATA=["tests/ops/gpu"])
        packed.start()
        self.addCleanup(packed.stop)
        archive = self.folder / "a.tar.xz"
        gpu_check.pack(archive, build)
        with tarfile.open(archive) as t:
            names = t.getnames()
        self.assertIn("bin/sort", names)
        self.assertIn("tree/tests/ops/gpu/matmul.txt", names)
        self.assertFalse([n for n in names if n.startswith("lib/libc.so")])

        def steps(c):
            c.step("sort", ["sh", "-c", f"printf 'b\\na\\n' | {c.home}/bin/sort | head -1"], show=gpu_check.last)

        code = gpu_check.run(self.folder / "there", archive, None, 1, steps)
        self.assertEqual(code, 0)
        self.assertRegex((self.folder / "there/table.md").read_text(), r"\| sort \| passed \| .* \| a \|")

    def test_what_is_alike_is_packed_once(self):  # as kernels are, which every program has
        build = self.folder / "build"
        (self.folder / "data").mkdir()
        build.mkdir()
        shutil.copy("/usr/bin/sort", build / "sort")
        alike = random.Random(7).randbytes(5_000_000)
        for name in ("first", "second", "third"):
            (self.folder / "data" / name).write_bytes(alike)
        archive = self.folder / "a.tar.xz"
        with mock.patch.multiple(gpu_check, PROGRAMS=["sort"], DATA=["data"], ROOT=self.folder), \
                mock.patch.object(gpu_check, "libraries", return_value={}):
            gpu_check.pack(archive, build)
        self.assertLess(archive.stat().st_size, 1.5 * len(alike))

    def test_missing_programs_are_named(self):
        done = subprocess.run([sys.executable, SCRIPT, "pack", self.folder / "x", "--build", self.folder],
                              capture_output=True, text=True)
        self.assertNotEqual(done.returncode, 0)
        self.assertIn("not built in", done.stderr)
        self.assertIn("trireme_ops", done.stderr)


if __name__ == "__main__":
    unittest.main()
