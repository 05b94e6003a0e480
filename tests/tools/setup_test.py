"""tools/setup on machines that are not this one: dpkg-query, apt-get, sudo and id are scripts in a folder of the test."""
import pathlib
import re
import shutil
import subprocess
import tempfile
import unittest

SETUP = pathlib.Path(__file__).resolve().parents[2] / "tools" / "setup"
PLAIN_TOOLS = ["bash", "dirname", "grep", "mkdir", "tail", "env", "cat"]


class Machine:
    """A folder with a copy of tools/setup and a PATH of nothing but the given commands."""

    def __init__(self, folder, **commands):
        self.root = pathlib.Path(folder)
        (self.root / "bin").mkdir()
        (self.root / "tools").mkdir()
        shutil.copy(SETUP, self.root / "tools" / "setup")
        for tool in PLAIN_TOOLS:
            (self.root / "bin" / tool).symlink_to(shutil.which(tool))
        for name, script in commands.items():
            path = self.root / "bin" / name.replace("_", "-")
            path.write_text(f"#!/bin/bash\nROOT={self.root}\n{script}\n", encoding="utf-8")
            path.chmod(0o755)

    def setup(self, *args):
        path = self.root / "bin"
        done = subprocess.run([path / "bash", self.root / "tools" / "setup", *args], env={"PATH": str(path)},
                              stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
        return done.returncode, done.stdout, done.stderr


ALL_INSTALLED = 'for p in "${@:4}"; do echo "$p installed"; done'
NONE_INSTALLED = "exit 1"
ALL_BUT_CMAKE = 'for p in "${@:4}"; do [ $p = cmake ] || echo "$p installed"; done; exit 1'
APT = 'echo "$@" >>$ROOT/apt'
ROOT, USER = "echo 0", "echo 1000"


class Setup(unittest.TestCase):
    def machine(self, **commands):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        return Machine(folder.name, **commands)

    def test_silent_when_all_is_there(self):
        m = self.machine(dpkg_query=ALL_INSTALLED, apt_get=APT, id=ROOT)
        self.assertEqual(m.setup("build", "test"), (0, "", ""))
        self.assertFalse((m.root / "apt").exists())

    def test_root_installs_what_is_missing_and_says_why(self):
        m = self.machine(dpkg_query=ALL_BUT_CMAKE, apt_get=APT, id=ROOT)
        status, out, err = m.setup("build")
        self.assertEqual((status, err), (0, ""))
        self.assertIn("one Debian package is missing:\n  cmake", out)
        self.assertIn("configures the build", out)
        self.assertIn("installing them with apt-get", out)
        calls = (m.root / "apt").read_text().splitlines()
        self.assertEqual(len(calls), 2)
        self.assertTrue(calls[0].endswith(" update"), calls)
        self.assertTrue(calls[1].endswith(" install -y --no-install-recommends cmake"), calls)

    def test_the_demo_needs_no_test_packages(self):
        m = self.machine(dpkg_query=NONE_INSTALLED, apt_get=APT, id=ROOT)
        m.setup("build")
        install = (m.root / "apt").read_text().splitlines()[1]
        self.assertNotIn("libgtest-dev", install)
        self.assertNotIn("clang", install)
        self.assertNotIn("bible-kjv", install)
        m.setup("demo")
        install = (m.root / "apt").read_text().splitlines()[3]
        self.assertTrue(install.endswith(" --no-install-recommends bible-kjv"), install)
        m.setup("build", "test")
        install = (m.root / "apt").read_text().splitlines()[5]
        self.assertIn("libgtest-dev", install)
        self.assertEqual(len(re.findall(r"\bpython3\b", install)), 1)

    def test_a_removed_package_that_left_its_configuration_is_missing(self):
        m = self.machine(dpkg_query='for p in "${@:4}"; do echo "$p config-files"; done', apt_get=APT, id=ROOT)
        self.assertEqual(m.setup("build")[0], 0)
        self.assertIn("cmake", (m.root / "apt").read_text())

    def test_user_with_sudo(self):
        m = self.machine(dpkg_query=ALL_BUT_CMAKE, apt_get=APT, id=USER,
                         sudo='printf "%s\\n" "$*" >>$ROOT/sudo; [ "$1" = -n ] && shift; "$@"', true="exit 0")
        status, out, err = m.setup("build")
        self.assertEqual((status, err), (0, ""))
        self.assertIn("with sudo apt-get", out)
        self.assertIn("-n true", (m.root / "sudo").read_text())  # no terminal, so it must not ask
        self.assertIn("install", (m.root / "apt").read_text())

    def assert_list_and_command(self, m, reason):
        status, out, err = m.setup("build")
        self.assertEqual(status, 2)
        self.assertIn("Debian packages are missing:", out)
        self.assertRegex(out, r"libdnnl-dev +oneDNN")
        self.assertIn(reason, err)
        self.assertRegex(err, r"apt-get update && apt-get install --no-install-recommends g\+\+ cmake ")
        return err

    def test_user_without_sudo(self):
        m = self.machine(dpkg_query=NONE_INSTALLED, apt_get=APT, id=USER)
        self.assert_list_and_command(m, "there is no sudo")
        self.assertFalse((m.root / "apt").exists())

    def test_user_whom_sudo_refuses(self):
        m = self.machine(dpkg_query=NONE_INSTALLED, apt_get=APT, id=USER, sudo="exit 1")
        self.assert_list_and_command(m, "sudo refuses")
        self.assertFalse((m.root / "apt").exists())

    def test_apt_fails(self):
        m = self.machine(dpkg_query=NONE_INSTALLED, apt_get='echo "E: no such mirror"; exit 100', id=ROOT)
        self.assertIn("E: no such mirror", self.assert_list_and_command(m, "apt-get failed"))

    def test_not_debian(self):
        status, out, err = self.machine(id=USER).setup("build")
        self.assertEqual((status, out), (0, ""))
        self.assertIn("no Debian system", err)

    def test_unknown_set(self):
        status, _, err = self.machine(dpkg_query=ALL_INSTALLED, id=ROOT).setup("everything")
        self.assertEqual(status, 2)
        self.assertIn("sets are build, demo, test, browser, slow", err)


if __name__ == "__main__":
    unittest.main()
