"""tools/fuzz with fuzzers that are scripts in a folder of the test."""
import pathlib
import random
import shutil
import subprocess
import tempfile
import unittest

FUZZ = pathlib.Path(__file__).resolve().parents[2] / "tools" / "fuzz"
QUIET = "echo '#9 DONE cov: 7 ft: 8'; echo 'stat::number_of_executed_units: 9'"
BUSY = "end=$((SECONDS + 1)); while [ $SECONDS -le $end ]; do :; done\n" + QUIET
# The library's merge, of which everything is worth keeping: -merge=1 ... TO FROM.
MERGES = 'if [ "$1" = -merge=1 ]; then find "${@: -2}" -type f -exec cp {} "${@: -3:1}" \\;; exit; fi\n' + QUIET
FINDS = "echo 'it broke'; exit 77"


class Fuzz(unittest.TestCase):
    def setUp(self):
        scratch = tempfile.TemporaryDirectory()
        self.addCleanup(scratch.cleanup)
        self.build = pathlib.Path(scratch.name)
        self.tally = self.build / "tally"
        (self.build / "tests" / "fuzz").mkdir(parents=True)

    def target(self, name, script):
        # The script, and a line in the file "ran".
        path = self.build / "tests" / "fuzz" / f"fuzz_pretend_{name}"
        path.write_text(f"#!/bin/bash\necho {name} >>{self.build}/ran\n{script}\n", encoding="utf-8")
        path.chmod(0o755)

    def run_it(self, *args):
        done = subprocess.run([FUZZ, "--build", self.build, *args], stdin=subprocess.DEVNULL, capture_output=True, text=True,
                              check=False, timeout=120)
        return done.returncode, done.stdout, done.stderr

    def ran(self):
        return (self.build / "ran").read_text(encoding="utf-8").split()

    def test_each_target_once(self):
        self.target("a", QUIET)
        self.target("b", QUIET)
        code, out, _ = self.run_it("--seconds", "5")
        self.assertEqual(code, 0)
        self.assertEqual(self.ran(), ["a", "b"])
        self.assertIn("9 inputs, cov: 7 ft: 8, no finding", out)

    def test_a_finding_is_shown_and_fails(self):
        self.target("a", FINDS)
        code, out, _ = self.run_it()
        self.assertEqual(code, 1)
        self.assertIn("FINDING", out)
        self.assertIn("it broke", out)

    def test_until_goes_on_where_least_was_done(self):
        for name in ("a", "b", "c"):
            self.target(name, BUSY)
        self.tally.write_text("other 5\npretend_a 100\npretend_b 98\n", encoding="utf-8")
        code, _, err = self.run_it("--until", "99", "--tally", self.tally, "pretend_a", "pretend_b")
        self.assertEqual((code, err), (0, ""))
        # b alone wanted more, and was counted by the processor; the rest of the tally stands.
        self.assertEqual(set(self.ran()), {"b"})
        had = dict(line.split() for line in self.tally.read_text(encoding="utf-8").splitlines())
        self.assertEqual((had["other"], had["pretend_a"]), ("5", "100"))
        self.assertGreaterEqual(int(had["pretend_b"]), 99)
        self.assertLessEqual(int(had["pretend_b"]), 98 + 3 * len(self.ran()))

    def test_until_does_not_begin_again_what_found_something(self):
        self.target("a", FINDS)
        self.target("b", BUSY)
        code, out, _ = self.run_it("--until", "1", "--tally", self.tally, "--jobs", "2")
        self.assertEqual(code, 1)
        self.assertIn("FINDING", out)
        self.assertEqual(self.ran().count("a"), 1)
        self.assertGreaterEqual(self.ran().count("b"), 1)

    def test_keeps_the_smallest_of_what_was_learned(self):
        self.target("a", MERGES)
        learned, kept = self.build / "corpus" / "pretend_a", self.build / "kept"
        learned.mkdir(parents=True)
        for name, size in (("few", 10), ("more", 2000), ("too-many", 60000)):
            (learned / name).write_bytes(random.Random(size).randbytes(size))
        code, out, err = self.run_it("--keep", "--learned", kept)
        self.assertEqual((code, err), (0, ""))
        self.assertIn("2 of 3 inputs kept", out)
        self.assertLess((kept / "pretend_a.tar.xz").stat().st_size, 45056)
        # Where nothing was learned yet, it is there again; a run from the seeds alone does without.
        shutil.rmtree(learned)
        self.assertEqual(self.run_it("--learned", kept, "--fresh")[0], 0)
        self.assertEqual(list((self.build / "fresh" / "pretend_a").iterdir()), [])
        self.assertEqual(self.run_it("--learned", kept)[0], 0)
        self.assertEqual(sorted(f.stat().st_size for f in learned.iterdir()), [10, 2000])
        # What was kept before is not lost where less was learned.
        shutil.rmtree(learned)
        learned.mkdir()
        (learned / "another").write_bytes(random.Random(5).randbytes(20))
        self.assertIn("3 of 3 inputs kept", self.run_it("--keep", "--learned", kept)[1])

    def test_what_does_not_unpack_is_told_and_tried_again(self):
        self.target("a", QUIET)
        kept = self.build / "kept"
        kept.mkdir()
        (kept / "pretend_a.tar.xz").write_bytes(b"half of it")
        for more in ((), ("--until", "9", "--tally", self.tally)):
            code, out, _ = self.run_it("--learned", kept, *more)
            self.assertEqual(code, 1)
            self.assertIn("CANNOT BEGIN", out)
        self.assertFalse((self.build / "ran").exists())
        self.assertFalse((self.build / "corpus" / "pretend_a").exists())

    def test_refuses_what_it_does_not_know(self):
        code, _, err = self.run_it("--secnds", "5")
        self.assertEqual(code, 2)
        self.assertIn("unknown option --secnds", err)


if __name__ == "__main__":
    unittest.main()
