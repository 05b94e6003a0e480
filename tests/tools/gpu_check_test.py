"""tools/gpu_check: limits of steps, pools and parts, environments, logs, and the archive of programs."""
import contextlib
import io
import json
import os
import pathlib
import random
import shutil
import signal
import struct
import subprocess
import sys
import tarfile
import time
import unittest
from unittest import mock

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
from gpu_fakes import TOOLS, Fakes, check, environment, gpu_check, program  # noqa: E402
from gpu_checks import fatbin, pack  # noqa: E402
from gpu_checks.steps import training  # noqa: E402


def gone(pid):
    """Whether a process has ended, waiting up to 5 s."""
    stat = pathlib.Path(f"/proc/{pid}/stat")
    for _ in range(50):
        try:
            if stat.read_text().split()[2] == "Z":
                return True
        except (FileNotFoundError, ProcessLookupError):
            return True
        time.sleep(0.1)
    return False


class Steps(Fakes):
    def test_a_step_passes_fails_or_is_stopped(self):
        def what(c):
            c.step("good", ["sh", "-c", "echo one; echo two"], show=check.last)
            c.step("ops:bad", ["sh", "-c", "echo 'FAIL this | line'; echo more; exit 3"])
            c.step("ops:slow", ["sh", "-c", "echo begun; sleep 60"], most=0.5)
            c.step("absent", [self.folder / "nothing"])
            c.step("odd", ["echo", "no JSON"], show=training)
            c.step("accepted", ["sh", "-c", "echo well; exit 7"], accept=lambda text: "well" in text)
            c.step("not-accepted", ["echo", "ill"], accept=lambda text: "well" in text)

        begin = time.monotonic()
        code, rows, out = self.call("first", what)
        self.assertLess(time.monotonic() - begin, 20)
        self.assertEqual(code, 1)
        self.assertEqual(rows["good"], ("passed", "two"))
        self.assertEqual(rows["ops:bad"], ("failed (3)", "FAIL this / line"))
        self.assertEqual(rows["ops:slow"], ("stopped after 0 s", "begun"))
        self.assertEqual(rows["absent"][0], "failed (could not start)")
        self.assertEqual(rows["odd"], ("failed (what it said)", "ValueError: no line of JSON"))
        self.assertEqual(rows["accepted"][0], "passed")
        self.assertEqual(rows["not-accepted"][0], "failed (what it said)")
        log = (out / "ops.log").read_text()
        self.assertIn("FAIL this", log)
        self.assertIn("begun", log)
        with tarfile.open(out / "all.tar.xz") as t:
            self.assertLessEqual({"table.md", "good.log", "ops.log"}, set(t.getnames()))

    def test_all_passed(self):
        code, rows, _ = self.call("first", lambda c: c.step("good", ["true"]))
        self.assertEqual((code, len(rows)), (0, 1))

    def test_a_stopped_step_takes_along_what_it_started(self):
        pid = self.folder / "pid"
        self.call("first", lambda c: c.step("slow", ["sh", "-c", f"sleep 60 >/dev/null 2>&1 & echo $! >{pid}; wait"], most=0.7))
        self.assertTrue(gone(pid.read_text().strip()))

    def test_a_part_that_hangs_leaves_the_others_their_time(self):
        """Of 8 planned seconds in 2: the first part ends after 0.5 s, its second step finds no time."""
        ends = []

        def what(c):
            def slow():
                c.step("hangs", ["sleep", "60"])
                c.step("late", ["true"])

            c.parts(8, ("one", 2, slow), ("two", 8, lambda: (ends.append(c.end - c.begin), c.step("good", ["true"]))))

        begin = time.monotonic()
        code, rows, _ = self.call("first", what, seconds=2)
        self.assertLess(time.monotonic() - begin, 10)
        self.assertEqual(code, 1)
        self.assertIn("stopped after", rows["hangs"][0])
        self.assertEqual(rows["late"][0], "no time left")
        self.assertEqual(rows["good"][0], "passed")
        self.assertAlmostEqual(ends[0], 2)

    def test_an_error_of_its_own_in_one_part_leaves_the_others(self):
        with contextlib.redirect_stderr(io.StringIO()):
            code, rows, _ = self.call("first", lambda c: c.parts(1, ("one", 0.5, lambda: 1 // 0),
                                                                 ("two", 1, lambda: c.step("good", ["true"]))))
        self.assertEqual(code, 1)
        self.assertEqual(rows["gpu_check:one"][0], "failed (itself)")
        self.assertIn("ZeroDivisionError", rows["gpu_check:one"][1])
        self.assertEqual(rows["good"][0], "passed")

    def test_a_pool_runs_some_at_a_time_and_none_past_its_part(self):
        log = self.folder / "pool"
        job = f"echo + >> {log}; sleep 0.3; echo - >> {log}"

        def what(c):
            passed = c.pool(3, [{"name": f"job:{i}", "command": ["sh", "-c", job]} for i in range(6)])
            self.assertEqual(passed, {f"job:{i}": True for i in range(6)})
            c.parts(60, ("hang", 1, lambda: c.pool(2, [{"name": f"hang:{i}", "command": ["sleep", "60"]} for i in range(5)])))

        begin = time.monotonic()
        _, rows, out = self.call("first", what, seconds=60)
        self.assertLess(time.monotonic() - begin, 15)
        running, most = 0, 0
        for mark in log.read_text().split():
            running += 1 if mark == "+" else -1
            most = max(most, running)
        self.assertGreater(most, 1)
        self.assertLessEqual(most, 3)
        ended = [rows[f"hang:{i}"][0] for i in range(5)]
        self.assertTrue(all("stopped" in e or e == "no time left" for e in ended), ended)
        self.assertEqual((out / "job.log").read_text().count("[passed"), 6)

    def test_steps_behind_others_end_with_the_call(self):
        pid = self.folder / "pid"

        def what(c):
            c.behind([{"name": "ahead:slow", "command": ["sh", "-c", f"echo $$ > {pid}; sleep 60"], "most": 100}])
            while not pid.exists() or not pid.read_text():
                time.sleep(0.02)

        begin = time.monotonic()
        self.call("first", what)
        self.assertLess(time.monotonic() - begin, 20)
        self.assertTrue(gone(pid.read_text().strip()))

    def test_only_a_cold_machine_reads_ahead(self):
        with mock.patch.object(environment, "read_ahead", return_value=[("ahead:x", ["true"])]):
            for name, cold in (("first", True), ("second", False), ("first", True)):
                _, rows, _ = self.call(name, lambda c: c.step("good", ["sleep", "0.2"]))
                self.assertEqual("ahead:x" in rows, cold)
            shutil.rmtree(self.folder / "state")
            self.assertIn("ahead:x", self.call("second", lambda c: c.step("good", ["sleep", "0.2"]))[1])

    def test_each_part_brings_its_logs_back(self):
        back, seen = self.folder / "back", []

        def second(c):
            with tarfile.open(back / "all.tar.xz") as t:
                seen.append(set(t.getnames()) - {"clocks.csv"})
            c.step("two", ["true"])

        self.call("first", lambda c: c.parts(2, ("a", 1, lambda: c.step("one", ["true"])), ("b", 2, lambda: second(c))),
                  back=back)
        self.assertEqual(seen, [{"table.md", "one.log"}])
        self.assertEqual({p.name for p in back.iterdir()}, {"table.md", "all.tar.xz"})
        self.assertIn("| two | passed |", (back / "table.md").read_text())

    def test_logs_that_cannot_be_packed_leave_the_steps(self):
        back = self.folder / "back"
        code, rows, _ = self.call("first", lambda c: c.parts(
            2, ("a", 1, lambda: shutil.rmtree(back)), ("b", 2, lambda: c.step("two", ["true"]))), back=back)
        self.assertEqual(code, 1)
        self.assertIn("gpu_check:logs", self.said)
        self.assertEqual(rows["two"][0], "passed")

    def test_clocks_are_watched_while_it_runs(self):
        self.call("first", lambda c: c.step("good", ["sh", "-c", f"while ! [ -s {self.folder}/smi_pids ]; do sleep 0.02; done"]))
        self.assertTrue((self.folder / "out-first/clocks.csv").exists())
        self.assertTrue(gone((self.folder / "smi_pids").read_text().split()[0]))

    def test_a_call_that_is_ended_takes_its_children_along_and_leaves_its_results(self):
        self.pretend(before="case $line in *d=64*) echo $$ >> %s/pids; sleep 60;; esac" % self.folder)
        out, state = self.folder / "out", self.folder / "state"
        p = subprocess.Popen([sys.executable, TOOLS / "gpu_check", "run", out, "--call", "first", "--home", self.folder,
                              "--state", state], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        pids = self.folder / "pids"
        for _ in range(300):
            if pids.exists() and pids.read_text().split():
                break
            time.sleep(0.1)
        p.send_signal(signal.SIGTERM)
        self.assertEqual(p.wait(timeout=20), 128 + signal.SIGTERM)
        for pid in pids.read_text().split():
            self.assertTrue(gone(pid))
        self.assertIn("| device | passed |", (out / "table.md").read_text())
        self.assertEqual(json.loads((state / "first.json").read_text())["steps"], {})
        self.assertTrue((out / "all.tar.xz").exists())


class Environments(Fakes):
    def test_only_packed_programs_see_the_packed_libraries(self):
        self.pretend()
        env = environment.Environments(self.folder)
        ours = env.of([self.folder / "bin/trireme_ops", "test"], {"MORE": "1"})
        self.assertEqual(ours["LD_LIBRARY_PATH"], f"{self.folder}/lib")
        self.assertEqual((ours["TRIREME_TEST_DEVICE"], ours["MORE"]), ("cuda", "1"))
        for other in ("nvidia-smi", sys.executable, self.folder / "tools/ncu"):
            self.assertNotIn("LD_LIBRARY_PATH", env.of([other]))
        under = env.under(["ncu", "--csv"], [self.folder / "bin/trireme", "x"])
        self.assertEqual(under[:3], ["ncu", "--csv", "env"])
        self.assertIn(f"LD_LIBRARY_PATH={self.folder}/lib", under)
        self.assertNotIn("LD_LIBRARY_PATH", env.of(under))

    def test_large_libraries_are_read_ahead_once_each(self):
        cuda = self.folder / "cuda"
        cuda.mkdir()
        for name in ("libcublasLt.so.13.1", "libcudnn_graph.so.9"):
            (cuda / name).write_text("x")
        (cuda / "libcublasLt.so").symlink_to("libcublasLt.so.13.1")
        with mock.patch.object(environment, "cuda_folders", return_value=[cuda]):
            with mock.patch.object(environment, "have_torch", return_value=False):
                self.assertEqual([name for name, _ in self.read_ahead()], ["ahead:cublasLt", "ahead:cudnn"])
            with mock.patch.object(environment, "have_torch", return_value=True):
                jobs = self.read_ahead()
        self.assertEqual([name for name, _ in jobs], ["ahead:cublasLt", "ahead:torch", "ahead:cudnn"])
        done = subprocess.run(jobs[0][1], capture_output=True, text=True)
        self.assertEqual((done.returncode, done.stdout), (0, "1 files\n"))

    def test_the_compiler_s_libraries_are_used_where_the_machine_s_fail(self):
        self.pretend()
        for name in environment.RUNTIME:
            (self.folder / "runtime" / name).mkdir(parents=True)
        program(self.folder / "tools/ldd", """case $LD_LIBRARY_PATH in *libstdc++*) ;; *)
            echo "$1: /lib/libstdc++.so.6: version \\`GLIBCXX_3.4.99' not found (required by $1)";; esac
            case $1 in *trireme) echo "	libgone.so.3 => not found";; esac""")
        env = environment.Environments(self.folder)
        self.assertEqual(env.runtime, ["libstdc++.so.6"])
        self.assertEqual(env.path, f"{self.folder}/lib:{self.folder}/runtime/libstdc++.so.6")
        self.assertEqual(env.lacking, {"trireme": {"libgone.so.3"}})


class Archive(Fakes):
    def setUp(self):
        super().setUp()
        self.build = self.folder / "build"
        self.build.mkdir()
        shutil.copy("/usr/bin/sort", self.build / "sort")
        self.archive = self.folder / "a.tar.xz"

    def packed(self, nccl=None, **more):
        with mock.patch.multiple(pack, **{"PROGRAMS": ["sort"], **more}), \
                contextlib.redirect_stdout(io.StringIO()) as said:
            pack.pack(self.archive, self.build, nccl)
        return said.getvalue()

    def test_what_is_out_of_date_is_built_before_it_is_packed(self):
        (self.build / "CMakeCache.txt").write_text("")
        with mock.patch.object(pack.subprocess, "run", return_value=mock.Mock(returncode=1)) as ran, \
                self.assertRaisesRegex(SystemExit, "does not build all of trireme, "):
            pack.pack(self.archive, self.build)
        command = ran.call_args.args[0]
        self.assertEqual(command[:4], ["cmake", "--build", self.build, "--target"])
        self.assertEqual(set(command[4:]), {pathlib.Path(p).name for p in pack.PROGRAMS})

    def test_what_is_packed_runs_elsewhere_and_is_unpacked_once(self):
        said = self.packed()
        self.assertIn("bin/sort", said)
        with tarfile.open(self.archive) as t:
            names = t.getnames()
        self.assertIn("bin/sort", names)
        self.assertFalse([n for n in names if n.startswith("lib/libc.so")])
        state = self.folder / "state"
        home = pack.unpacked(self.archive, state)
        self.assertTrue((home / "tree/tests/ops/gpu/matmul.txt").exists())
        (home / "kept").write_text("")
        self.assertEqual(pack.unpacked(self.archive, state), home)
        self.assertTrue((home / "kept").exists())
        with mock.patch.dict(gpu_check.CALLS, {"first": (lambda c: c.step(
                "sort", ["sh", "-c", f"printf 'b\\na\\n' | {c.home}/bin/sort | head -1"], show=check.last), 9)}), \
                contextlib.redirect_stdout(io.StringIO()):
            self.assertEqual(gpu_check.run(self.folder / "there", "first", self.archive, None, state), 0)
        self.assertRegex((self.folder / "there/table.md").read_text(), r"\| sort \| passed \| .* \| a \|")
        shutil.copy("/usr/bin/ls", self.build / "sort")
        self.packed()
        self.assertFalse((pack.unpacked(self.archive, state) / "kept").exists())

    def test_of_libnccl_the_machine_code_of_hopper_goes_along(self):
        """The library has linked code for three GPUs, and code that was for the linker."""
        def entry(kind, architecture, payload):
            return struct.pack("<HHIQQII", kind, 0x101, 64, len(payload), 0, 0, architecture).ljust(64, b"\0") + payload

        def fat(*all_entries):
            whole = b"".join(all_entries)
            return fatbin.MAGIC + struct.pack("<HHQ", 1, 16, len(whole)) + whole

        code = {a: random.Random(a).randbytes(1000) for a in (80, 90, 100, 120)}
        for name, data in (("linked", fat(entry(2, 80, code[80]), entry(2, 90, code[90]), entry(1, 120, code[120]))),
                           ("relocatable", fat(entry(2, 90, code[100])))):
            (self.folder / name).write_bytes(data)
        library = self.folder / "libnccl.so.2.30"
        subprocess.run(["objcopy", *(f"--add-section={s}={self.folder / name}" for s, name in (
            (fatbin.SECTION, "linked"), (fatbin.RELOCATABLE, "relocatable"))), "/usr/bin/sort", library], check=True)
        self.packed(library)
        with tarfile.open(self.archive) as t:
            packed = t.extractfile("nccl/libnccl.so.2").read()
        self.assertEqual([a for a in code if code[a] in packed], [90])
        self.assertEqual([(kind, a) for kind, a, *_ in fatbin.entries(packed, *fatbin.sections(packed)[fatbin.SECTION])],
                         [(2, 80), (2, 90), (1, 120)])
        with self.assertRaisesRegex(SystemExit, "no machine code for sm_90 in it"):
            self.packed(pathlib.Path("/usr/bin/sort"))

    def test_the_compiler_s_libraries_lie_apart(self):
        libraries = {"libstdc++.so.6": "/usr/bin/sort", "libfmt.so.9": "/usr/bin/sort"}
        with mock.patch.object(pack, "libraries", return_value=libraries):
            self.packed()
        with tarfile.open(self.archive) as t:
            self.assertEqual(t.getnames(), ["bin/sort", "lib/libfmt.so.9", "runtime/libstdc++.so.6/libstdc++.so.6"])

    def test_what_is_alike_is_packed_once(self):  # as kernels, which every program has
        alike = random.Random(7).randbytes(2_000_000)
        files = {name: self.folder / name for name in ("first", "second", "third")}
        for path in files.values():
            path.write_bytes(alike)
        with mock.patch.object(pack, "libraries", return_value=files):
            self.packed()
        self.assertLess(self.archive.stat().st_size, 1.5 * len(alike))

    def test_missing_programs_and_libraries_are_named(self):
        for more, said in (([], "not built in .*trireme_ops"), (["--nccl", "none.so"], "--nccl none.so: no such file")):
            done = subprocess.run([sys.executable, TOOLS / "gpu_check", "pack", self.folder / "x", "--build", self.folder,
                                   *more], capture_output=True, text=True, env=dict(os.environ))
            self.assertEqual(done.returncode, 1)
            self.assertRegex(done.stderr, said)


if __name__ == "__main__":
    unittest.main()
