#include "sandbox/isolate.h"

#include <fcntl.h>
#include <linux/capability.h>
#include <linux/mount.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>

#ifndef SYS_mount_setattr
#define SYS_mount_setattr 442
#endif
#ifndef SYS_close_range
#define SYS_close_range 436
#endif

namespace trireme {
namespace {

// File descriptors of the first process, and of the program.
constexpr int kReport = 4, kOutput = 5, kDone = 3, kFirstOther = 6;

// linux/mount.h and sys/mount.h of glibc 2.36 both define mount_attr.
struct Attributes {
  uint64_t set, clear, propagation, userns;
};

[[noreturn]] void fail(SandboxStep step, int place = -1) {
  SandboxReport r{step, errno, place};
  (void)!::write(kReport, &r, sizeof r);
  ::_exit(1);
}

void check(bool ok, SandboxStep step, int place = -1) {
  if (!ok) fail(step, place);
}

void place_descriptors(const Isolation& i) {
  // Above all targets first, so that no target replaces a source.
  const int report = ::fcntl(i.report, F_DUPFD, 100);
  const int output = ::fcntl(i.output, F_DUPFD, 100);
  const int done = ::fcntl(i.done, F_DUPFD, 100);
  const int null = ::open("/dev/null", O_RDWR);
  if (report < 0 || output < 0 || done < 0 || null < 0) ::_exit(1);
  ::dup2(null, 0);
  ::dup2(done, kDone);
  ::dup2(report, kReport);
  ::dup2(output, kOutput);
  ::dup2(output, 1);
  ::dup2(output, 2);
  ::syscall(SYS_close_range, kFirstOther, ~0u, 0);
}

bool set_attributes(const char* path, uint64_t flags, bool recursive) {
  Attributes a{flags, 0, 0, 0};
  const unsigned at = recursive ? 0x8000u /* AT_RECURSIVE */ : 0u;
  return ::syscall(SYS_mount_setattr, AT_FDCWD, path, at, &a, sizeof a) == 0;
}

void make_file(const std::string& path) {
  const int fd = ::open(path.c_str(), O_CREAT | O_WRONLY, 0444);
  if (fd >= 0) ::close(fd);
}

// Makes all mounts private, in a chroot too. There "/" is not a mount, and the kernel changes mounts only:
// setns() into the process's mount namespace leaves the chroot. The current folder is the caller's root
// afterwards.
void leave_chroot() {
  using enum SandboxStep;
  const int root = ::open("/", O_PATH | O_DIRECTORY | O_CLOEXEC);
  const int mounts = ::open("/proc/self/ns/mnt", O_RDONLY | O_CLOEXEC);
  check(root >= 0 && mounts >= 0 && ::setns(mounts, CLONE_NEWNS) == 0, propagation);
  check(::mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) == 0 && ::fchdir(root) == 0,
        propagation);
  ::close(root);
  ::close(mounts);
}

// A new root: the caller's root is visible at /old meanwhile, and gone at the end.
void build_root(const Isolation& i) {
  using enum SandboxStep;
  leave_chroot();
  check(::mount("tmpfs", "tmp", "tmpfs", MS_NOSUID | MS_NODEV, "size=1m,mode=0755") == 0, base);
  for (const char* f : {"tmp/new", "tmp/old", "tmp/host"}) check(::mkdir(f, 0755) == 0, roots);
  check(::mount(".", "tmp/old", nullptr, MS_BIND | MS_REC, nullptr) == 0, roots);
  check(::mount("tmp/new", "tmp/new", nullptr, MS_BIND | MS_REC, nullptr) == 0 && ::chdir("tmp") == 0, roots);
  check(::syscall(SYS_pivot_root, ".", "host") == 0 && ::chdir("/") == 0, pivot);
  check(::umount2("/host", MNT_DETACH) == 0, pivot);
  for (const std::string& path : i.folders)
    check(::mkdir(path.c_str(), 0755) == 0 || errno == EEXIST, folder);
  for (const Isolation::Link& l : i.links)
    check(::symlink(l.target.c_str(), l.at.c_str()) == 0 || errno == EEXIST, folder);
  for (const Isolation::Bind& d : i.devices) make_file(d.to);
  for (size_t n = 0; n < i.binds.size(); n++) {
    const Isolation::Bind& b = i.binds[n];
    if (!b.folder) make_file(b.to);
    check(::mount(b.from.c_str(), b.to.c_str(), nullptr, MS_BIND | MS_REC, nullptr) == 0, bind, int(n));
  }
  check(set_attributes("/new", MOUNT_ATTR_RDONLY | MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV, true), read_only);
  for (const Isolation::Bind& d : i.devices)
    check(::mount(d.from.c_str(), d.to.c_str(), nullptr, MS_BIND, nullptr) == 0 &&
              set_attributes(d.to.c_str(), MOUNT_ATTR_RDONLY | MOUNT_ATTR_NOSUID | MOUNT_ATTR_NOEXEC, false),
          devices);
  check(::mount("tmpfs", "/new/tmp", "tmpfs", MS_NOSUID | MS_NODEV, i.scratch_options.c_str()) == 0, scratch);
  check(::umount2("/old", MNT_DETACH) == 0 && ::chdir("/new") == 0, detach);
  check(::syscall(SYS_pivot_root, ".", ".") == 0 && ::umount2(".", MNT_DETACH) == 0, detach);
  check(::chdir("/tmp") == 0, detach);
}

void write_program(std::string_view text) {
  const int fd = ::open("/tmp/program.py", O_CREAT | O_EXCL | O_WRONLY | O_CLOEXEC, 0444);
  check(fd >= 0, SandboxStep::program);
  while (!text.empty()) {
    const ssize_t n = ::write(fd, text.data(), text.size());
    check(n > 0, SandboxStep::program);
    text.remove_prefix(size_t(n));
  }
  ::close(fd);
}

void limit(int what, int64_t soft, int64_t hard) {
  const rlimit r{rlim_t(soft), rlim_t(hard)};
  check(::setrlimit(__rlimit_resource(what), &r) == 0, SandboxStep::limits);
}

void set_limits(const SandboxLimits& l) {
  limit(RLIMIT_AS, l.memory, l.memory);
  limit(RLIMIT_CPU, l.cpu_s, l.cpu_s + 1);  // SIGXCPU, which a program can ignore, then SIGKILL
  limit(RLIMIT_FSIZE, l.files, l.files);
  limit(RLIMIT_NOFILE, 64, 64);
  limit(RLIMIT_NPROC, l.processes + 1, l.processes + 1);  // the first process may count too
  limit(RLIMIT_CORE, 0, 0);
  limit(RLIMIT_MEMLOCK, 0, 0);
  limit(RLIMIT_MSGQUEUE, 0, 0);
}

void drop_capabilities() {
  // The bounding set first, which takes a capability to change. Numbers that the kernel lacks fail.
  for (int c = 0; c < 64; c++) ::prctl(PR_CAPBSET_DROP, c, 0, 0, 0);
  __user_cap_header_struct head{_LINUX_CAPABILITY_VERSION_3, 0};
  __user_cap_data_struct none[2] = {};
  check(::syscall(SYS_capset, &head, none) == 0, SandboxStep::capabilities);
  check(::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0, SandboxStep::capabilities);
}

[[noreturn]] void become_program(const Isolation& i) {
  ::setsid();
  ::fcntl(kReport, F_SETFD, FD_CLOEXEC);
  ::fcntl(kOutput, F_SETFD, FD_CLOEXEC);
  set_limits(i.limits);
  drop_capabilities();
  const sock_fprog filter{uint16_t(i.filter.size()), const_cast<sock_filter*>(i.filter.data())};
  check(::prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter, 0, 0) == 0, SandboxStep::filter);
  ::execve(i.argv[0], const_cast<char* const*>(i.argv.data()),
           const_cast<char* const*>(i.environment.data()));
  fail(SandboxStep::execute);
}

// Signals of the parent's handlers and masks are not the program's.
void default_signals() {
  for (int s = 1; s < SIGRTMAX; s++) ::signal(s, SIG_DFL);
  sigset_t none;
  ::sigemptyset(&none);
  ::sigprocmask(SIG_SETMASK, &none, nullptr);
}

}  // namespace

void run_isolated(const Isolation& i) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0);
  char byte = 0;
  if (::read(i.go, &byte, 1) != 1) ::_exit(1);  // the parent is gone
  place_descriptors(i);
  default_signals();
  ::umask(022);
  build_root(i);
  (void)::sethostname("sandbox", 7);
  // Direct calls: glibc would wait for the threads of the copied process, which do not exist here.
  if (i.other_user) check(::syscall(SYS_setgroups, 0, nullptr) == 0, SandboxStep::identity);
  ::prctl(PR_SET_KEEPCAPS, 1, 0, 0, 0);  // to empty the bounding set later
  check(::syscall(SYS_setresgid, i.user, i.user, i.user) == 0, SandboxStep::identity);
  check(::syscall(SYS_setresuid, i.user, i.user, i.user) == 0, SandboxStep::identity);
  ::prctl(PR_SET_DUMPABLE, 0, 0, 0, 0);
  write_program(i.program);
  const auto child = pid_t(::syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0));
  check(child >= 0, SandboxStep::fork);
  if (child == 0) become_program(i);
  ::close(kDone);
  ::close(kOutput);
  ::close(1);
  ::close(2);
  SandboxReport r;
  rusage used{};
  for (pid_t ended = 0; ended != child;) {  // children of ended children come here too
    ended = ::wait4(-1, &r.status, 0, &used);
    if (ended < 0 && errno != EINTR) fail(SandboxStep::fork);
  }
  r.cpu_us = (used.ru_utime.tv_sec + used.ru_stime.tv_sec) * 1000000ll + used.ru_utime.tv_usec +
             used.ru_stime.tv_usec;
  (void)!::write(kReport, &r, sizeof r);
  ::_exit(0);
}

}  // namespace trireme
