// Hostile programs. Each is a thing that a program of a model could do to the machine that judges it.
#include "sandbox/sandbox.h"

#include <gtest/gtest.h>
#include <sched.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <fstream>

#include "base/error.h"

namespace trireme {
namespace {

namespace fs = std::filesystem;

const Sandbox& sandbox() {
  static const Sandbox one{find_interpreter("/usr/bin/python3")};
  return one;
}

// Every case reaches a limit other than the wall clock, or none: a busy machine must not end it before.
SandboxLimits tight() {
  return {
      .wall_s = 300, .cpu_s = 10, .memory = 256 << 20, .processes = 8, .output = 64 << 10, .files = 1 << 20};
}

SandboxResult run(const std::string& program, const SandboxLimits& limits = tight()) {
  return sandbox().run(program, limits);
}

// The program asserts for itself.
void completes(const std::string& program) {
  const SandboxResult r = run(program);
  EXPECT_EQ(r.end, SandboxEnd::completed) << program << "\n" << r.output;
}

TEST(Sandbox, RunsAProgramToItsEnd) {
  const SandboxResult r =
      run("import sys, json, math, re, collections\nprint(json.dumps({'a': math.comb(5, 2)}))\n"
          "print('problem', file=sys.stderr)\nassert __name__ == 'builtins'\n");
  EXPECT_EQ(r.end, SandboxEnd::completed);
  EXPECT_NE(r.output.find("{\"a\": 10}\n"), std::string::npos) << r.output;
  EXPECT_NE(r.output.find("problem\n"), std::string::npos) << r.output;
  EXPECT_GT(r.wall_s, 0);
}

TEST(Sandbox, AnExceptionAndAnEarlyEndAreFailures) {
  const SandboxResult r = run("assert 1 == 2, 'wrong'\n");
  EXPECT_EQ(r.end, SandboxEnd::failed);
  EXPECT_EQ(r.code, 1);
  EXPECT_NE(r.output.find("AssertionError: wrong"), std::string::npos) << r.output;
  EXPECT_EQ(run("def f(:\n").end, SandboxEnd::failed);
  // Code 0 without the last statement is not a success.
  EXPECT_EQ(run("import os\nos._exit(0)\n").end, SandboxEnd::failed);
  EXPECT_EQ(run("import sys\nsys.exit(0)\n").end, SandboxEnd::failed);
  // A child that runs to the end of the program.
  EXPECT_EQ(run("import os\npid = os.fork()\nif pid != 0:\n  os.waitpid(pid, 0)\n  os._exit(0)\n").end,
            SandboxEnd::failed);
  EXPECT_EQ(run("import os\nos.write(3, b'x' * 32)\nos._exit(0)\n").end, SandboxEnd::failed);
}

TEST(Sandbox, ACrashHasItsSignal) {
  const SandboxResult r = run("import os, signal\nos.kill(os.getpid(), signal.SIGSEGV)\n");
  EXPECT_EQ(r.end, SandboxEnd::crashed);
  EXPECT_EQ(r.code, SIGSEGV);
}

TEST(Sandbox, EndlessProgramsEndAtTheWallClock) {
  SandboxLimits l = tight();
  l.wall_s = 0.5;
  SandboxResult r = run("while True: pass\n", l);
  EXPECT_EQ(r.end, SandboxEnd::wall_time);
  EXPECT_GE(r.wall_s, 0.5);
  EXPECT_EQ(run("import signal, time\nfor s in range(1, 65):\n  try: signal.signal(s, signal.SIG_IGN)\n"
                "  except (OSError, ValueError): pass\nwhile True: time.sleep(1)\n",
                l)
                .end,
            SandboxEnd::wall_time);
}

TEST(Sandbox, CpuTimeHasALimit) {
  SandboxLimits l = tight();
  l.cpu_s = 1;
  EXPECT_EQ(run("while True: pass\n", l).end, SandboxEnd::cpu_time);
}

TEST(Sandbox, MemoryHasALimit) {
  completes("try:\n  b'x' * (1 << 30)\n  assert False\nexcept MemoryError: pass\n");
  // Several processes that each stay below it.
  const SandboxResult r =
      run("import os, time\nfor _ in range(6):\n  if os.fork() == 0:\n"
          "    b = bytearray(os.urandom(1 << 20) * 120)\n    time.sleep(60)\ntime.sleep(60)\n");
  EXPECT_EQ(r.end, SandboxEnd::memory) << r.output;
  // Memory that belongs to no process.
  completes("import os\ntry:\n  os.memfd_create('x')\n  assert False\nexcept OSError: pass\n");
}

TEST(Sandbox, AForkBombStaysSmall) {
  const SandboxResult r =
      run("import os, time\ntry:\n  while True: os.fork()\nexcept OSError: pass\ntime.sleep(0.2)\n");
  EXPECT_TRUE(r.end == SandboxEnd::completed || r.end == SandboxEnd::processes) << name_of(r.end) << r.output;
  EXPECT_EQ(run("import threading, time\nfor _ in range(100): threading.Thread(target=time.sleep, "
                "args=(9,)).start()\n")
                .end,
            SandboxEnd::failed);
}

TEST(Sandbox, OutputHasALimit) {
  const SandboxResult r = run("while True: print('x' * 1000)\n");
  EXPECT_EQ(r.end, SandboxEnd::output);
  EXPECT_EQ(int64_t(r.output.size()), tight().output);
}

TEST(Sandbox, FilesAreSmallAndWithinTheSandbox) {
  const fs::path outside = fs::temp_directory_path() / "trireme_sandbox_outside";
  const fs::path home = fs::path(getenv("HOME") ? getenv("HOME") : "/root") / "trireme_sandbox_outside";
  std::ofstream(outside) << "mine";
  completes(
      "import os, shutil\nopen('/tmp/mine', 'w').write('x')\nassert os.listdir('/tmp') != []\n"
      "assert not os.path.exists('" +
      outside.string() +
      "')\n"
      "open('" +
      outside.string() +
      "', 'w').write('theirs')\n"
      "for path in ['/x', '/usr/lib/x', '/usr/lib/python3/x', '" +
      home.string() +
      "', '/etc/x', '/dev/x']:\n"
      "  try: open(path, 'w')\n  except OSError: continue\n  raise AssertionError(path)\n"
      // No file, and no number of files, above the limit.
      "try:\n  import signal; signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
      "  with open('/tmp/large', 'wb') as f:\n    for _ in range(64): f.write(b'x' * 65536)\n"
      "  assert False\nexcept OSError: pass\n");
  std::string text;
  std::getline(std::ifstream(outside), text);
  EXPECT_EQ(text, "mine");
  fs::remove(outside);
  EXPECT_FALSE(fs::exists(home));
}

TEST(Sandbox, NothingOfTheUserCanBeRead) {
  const fs::path secret = fs::temp_directory_path() / "trireme_sandbox_secret";
  std::ofstream(secret) << "secret";
  completes(
      "import os\n"
      "for path in ['/etc/shadow', '/etc/passwd', '/proc/1/mem', '/proc/self/maps', '/root', '/home', "
      "'/work',\n"
      "             '/var', '/run', '/sys', '/old', '/boot', '" +
      secret.string() +
      "']:\n"
      "  assert not os.path.exists(path), path\n"
      "os.symlink('/etc/shadow', '/tmp/a')\nos.symlink('../../../../../../etc/shadow', '/tmp/b')\n"
      "for path in ['/tmp/a', '/tmp/b']:\n  assert not os.path.exists(path), path\n"
      "assert set(os.listdir('/')) <= {'tmp', 'dev', 'usr', 'lib', 'lib64', 'etc'}, os.listdir('/')\n"
      "assert set(os.listdir('/etc')) <= {'ld.so.cache'}, os.listdir('/etc')\n"
      "assert set(os.environ) <= {'PATH', 'HOME', 'TMPDIR', 'LANG', 'PYTHONHASHSEED', 'LC_CTYPE'}, "
      "os.environ\n");
  fs::remove(secret);
}

TEST(Sandbox, ThereIsNoNetwork) {
  completes(
      "import socket\nfor family in (socket.AF_INET, socket.AF_INET6, socket.AF_UNIX, socket.AF_NETLINK):\n"
      "  try: socket.socket(family)\n  except PermissionError: continue\n  raise AssertionError(family)\n"
      "a, b = socket.socketpair()\na.send(b'x')\nassert b.recv(1) == b'x'\n");
}

TEST(Sandbox, OtherProcessesCannotBeTouched) {
  completes(
      "import os, signal\nassert os.getppid() == 1\n"
      "os.kill(1, signal.SIGKILL)\nos.kill(1, signal.SIGTERM)\nos.kill(1, signal.SIGSTOP)\n"
      "for pid in range(3, 400):\n"
      "  try: os.kill(pid, 0)\n  except ProcessLookupError: continue\n  raise AssertionError(pid)\n");
  // ptrace, the memory of another process, new namespaces, mounts, raised limits, other users.
  completes(
      "import ctypes, errno, os, resource\nlibc = ctypes.CDLL(None, use_errno=True)\n"
      "buffer = ctypes.create_string_buffer(64)\n"
      "vec = (ctypes.c_void_p * 2)(ctypes.addressof(buffer), 64)\n"
      "calls = {'ptrace': lambda: libc.ptrace(16, 1, 0, 0),\n"
      "  'process_vm_readv': lambda: libc.process_vm_readv(1, vec, 1, vec, 1, 0),\n"
      "  'unshare': lambda: libc.unshare(0x10000000),\n"
      "  'mount': lambda: libc.mount(b'none', b'/tmp', b'tmpfs', 0, None),\n"
      "  'umount': lambda: libc.umount2(b'/tmp', 2), 'chroot': lambda: libc.chroot(b'/tmp'),\n"
      "  'setuid': lambda: libc.setuid(0), 'setresuid': lambda: libc.setresuid(0, 0, 0),\n"
      "  'clone': lambda: libc.syscall(56 if os.uname().machine == 'x86_64' else 220, 0x10000000 | 17, 0, 0, "
      "0, 0),\n"
      "  'keyctl': lambda: libc.syscall(250 if os.uname().machine == 'x86_64' else 219, 0, 0, 0, 0, 0)}\n"
      "for name, call in calls.items():\n"
      "  assert call() == -1 and ctypes.get_errno() in (errno.EPERM, errno.ENOSYS), name\n"
      "try:\n  resource.setrlimit(resource.RLIMIT_AS, (1 << 40, 1 << 40))\n  assert False\n"
      "except (ValueError, OSError): pass\n"
      "try:\n  resource.prlimit(1, resource.RLIMIT_CPU, (0, 0))\n  assert False\n"
      "except PermissionError: pass\n");
}

TEST(Sandbox, DaemonsEndWithTheProgram) {
  // A daemon that has left its session keeps a pipe of the output open; it must not hold the judge up.
  const std::string daemon =
      "import os, time\nif os.fork() == 0:\n  os.setsid()\n  if os.fork() == 0:\n"
      "    time.sleep(3600)\n  os._exit(0)\n";
  const SandboxResult r = run(daemon);
  EXPECT_EQ(r.end, SandboxEnd::completed) << r.output;
  EXPECT_LT(r.wall_s, 10);
}

// The program must be unable to learn or keep anything from one run to the next.
TEST(Sandbox, NothingRemainsForTheNextProgram) {
  completes("open('/tmp/left', 'w').write('x')\n");
  completes("import os\nassert os.listdir('/tmp') == ['program.py'], os.listdir('/tmp')\n");
}

// Runs `body` in a child of this process; the status that waitpid() gives.
template <class F>
int in_a_child(F body) {
  const pid_t pid = ::fork();
  if (pid == 0) {
    int code = 1;
    try {
      code = body();
    } catch (const Error& e) {
      fprintf(stderr, "%s\n", e.what());
    }
    ::_exit(code);
  }
  int status = -1;
  ::waitpid(pid, &status, 0);
  return status;
}

// Makes /root of a private tmpfs at `base` the root: a folder, not a mount, as most chroots are.
bool enter_chroot(const std::string& base) {
  const std::string root = base + "/root";
  // Private first: otherwise the mounts below could reach the system's own namespace.
  if (::mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0 ||
      ::mount("tmpfs", base.c_str(), "tmpfs", 0, "size=1m") != 0)
    return false;
  for (const char* folder : {"", "/usr", "/etc", "/dev", "/proc", "/tmp"})
    fs::create_directory(root + folder);
  for (const char* folder : {"/usr", "/etc", "/dev", "/proc"})
    if (::mount(folder, (root + folder).c_str(), nullptr, MS_BIND | MS_REC, nullptr) != 0) return false;
  for (const char* link : {"/bin", "/lib", "/lib64"})
    if (fs::is_symlink(link)) fs::create_symlink(fs::read_symlink(link), root + link);
  return ::chdir(root.c_str()) == 0 && ::chroot(".") == 0;
}

TEST(Sandbox, WorksInAChroot) {
  if (::geteuid() != 0) GTEST_SKIP() << "a chroot takes root";
  const std::string base = "/var/tmp/trireme_sandbox_chroot";
  fs::create_directories(base);
  constexpr int kInOne = 77;
  const int status = in_a_child([&] {
    if (::unshare(CLONE_NEWNS) != 0) return 9;
    if (::mount(nullptr, "/", nullptr, MS_PRIVATE, nullptr) != 0 && errno == EINVAL) return kInOne;
    if (!enter_chroot(base)) return 10;
    if (::unshare(CLONE_NEWUSER) == 0) return 8;  // the kernel makes no user namespace in a chroot
    const Sandbox sandbox{find_interpreter("/usr/bin/python3")};
    const SandboxResult r = sandbox.run(
        "import os\nassert os.getuid() >= 2000000000\nassert not os.path.exists('/home')\n"
        "assert sorted(os.listdir('/tmp')) == ['program.py']\n"
        "try:\n  os.chroot('/')\n  raise AssertionError\nexcept OSError: pass\n"
        "try:\n  open('/usr/x', 'w')\n  raise AssertionError\nexcept OSError: pass\n",
        tight());
    if (r.end != SandboxEnd::completed) fprintf(stderr, "%s\n", r.output.c_str());
    return r.end == SandboxEnd::completed ? 0 : 2;
  });
  fs::remove(base);  // empty, or it stays
  if (WIFEXITED(status) && WEXITSTATUS(status) == kInOne)
    GTEST_SKIP() << "the other tests are in a chroot already";
  EXPECT_EQ(status, 0);
}

TEST(Sandbox, WorksForAUserWhoIsNotRoot) {
  if (::geteuid() != 0) GTEST_SKIP() << "the other tests are of this user";
  if (in_a_child([] { return ::unshare(CLONE_NEWUSER) == 0 ? 0 : 1; }) != 0)
    GTEST_SKIP() << "the kernel makes no user namespace, as in a chroot";
  // A visible folder of that user stays read-only.
  const fs::path own = "/var/tmp/trireme_sandbox_own";
  fs::create_directories(own);
  ASSERT_EQ(::chown(own.c_str(), 1234, 1234), 0);
  const int status = in_a_child([&] {
    if (::setgid(1234) != 0 || ::setuid(1234) != 0 || ::prctl(PR_SET_DUMPABLE, 1, 0, 0, 0) != 0) return 9;
    Interpreter python = find_interpreter("/usr/bin/python3");
    python.visible.push_back(own.string());
    const Sandbox mine{python};
    const SandboxResult r = mine.run(
        "import os\nassert os.getuid() == 1000\nassert os.path.isdir('/var/tmp/trireme_sandbox_own')\n"
        "try:\n  open('/var/tmp/trireme_sandbox_own/x', 'w')\n  raise AssertionError\n"
        "except OSError as e: assert e.errno == 30, e\n"
        "try:\n  while True:\n    if os.fork() == 0: os.wait()\n"
        "except OSError: pass\n",
        tight());
    const bool fine = r.end == SandboxEnd::completed || r.end == SandboxEnd::processes;
    if (!fine) fprintf(stderr, "%s\n", r.output.c_str());
    return fine ? 0 : 2;
  });
  EXPECT_EQ(status, 0);
  fs::remove(own);
}

TEST(Sandbox, AMissingInterpreterIsNamed) {
  EXPECT_THROW(find_interpreter("/nowhere/python3"), Error);
  EXPECT_THROW(find_interpreter("/bin/false"), Error);
}

}  // namespace
}  // namespace trireme
