"""tools/fuzz with fuzzers that are scripts in a folder of the test."""
import pathlib
import subprocess
import tempfile
import unittest

FUZZ = pathlib.Path(__file__).resolve().parents[2] / "tools" / "fuzz"
QUIET = "echo '#9 DONE cov: 7 ft: 8'; echo 'stat::number_of_executed_units: 9'"
BUSY = "end=$((SECONDS + 1)); while [ $SECONDS -le $end ]; do :; done\n" + QUIET
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

    def test_refuses_what_it_does_not_know(self):
        code, _, err = self.run_it("--secnds", "5")
        self.assertEqual(code, 2)
        self.assertIn("unknown option --secnds", err)


if __name__ == "__main__":
    unittest.main()
