#include "sandbox/system_calls.h"

#include <linux/audit.h>
#include <linux/sched.h>
#include <linux/seccomp.h>
#include <sys/socket.h>
#include <sys/syscall.h>

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <utility>

namespace trireme {
namespace {

#if defined(__x86_64__)
constexpr uint32_t kArchitecture = AUDIT_ARCH_X86_64;
#elif defined(__aarch64__)
constexpr uint32_t kArchitecture = AUDIT_ARCH_AARCH64;
#else
constexpr uint32_t kArchitecture = 0;
#endif

// Files, memory, processes, signals, time, pipes. New calls of later kernels are absent: libraries fall back.
constexpr uint32_t kAllowed[] = {
    SYS_read,
    SYS_write,
    SYS_close,
    SYS_fstat,
    SYS_lseek,
    SYS_mmap,
    SYS_mprotect,
    SYS_munmap,
    SYS_brk,
    SYS_rt_sigaction,
    SYS_rt_sigprocmask,
    SYS_rt_sigreturn,
    SYS_ioctl,
    SYS_pread64,
    SYS_pwrite64,
    SYS_readv,
    SYS_writev,
    SYS_preadv,
    SYS_pwritev,
    SYS_sched_yield,
    SYS_mremap,
    SYS_msync,
    SYS_mincore,
    SYS_madvise,
    SYS_dup,
    SYS_dup3,
    SYS_nanosleep,
    SYS_getitimer,
    SYS_setitimer,
    SYS_getpid,
    SYS_sendfile,
    SYS_sendto,
    SYS_recvfrom,
    SYS_sendmsg,
    SYS_recvmsg,
    SYS_shutdown,
    SYS_getsockname,
    SYS_getpeername,
    SYS_setsockopt,
    SYS_getsockopt,
    SYS_execve,
    SYS_exit,
    SYS_exit_group,
    SYS_wait4,
    SYS_waitid,
    SYS_kill,
    SYS_tgkill,
    SYS_uname,
    SYS_fcntl,
    SYS_flock,
    SYS_fsync,
    SYS_fdatasync,
    SYS_truncate,
    SYS_ftruncate,
    SYS_getcwd,
    SYS_chdir,
    SYS_fchdir,
    SYS_fchmod,
    SYS_umask,
    SYS_gettimeofday,
    SYS_getrusage,
    SYS_sysinfo,
    SYS_times,
    SYS_getuid,
    SYS_getgid,
    SYS_geteuid,
    SYS_getegid,
    SYS_setpgid,
    SYS_getppid,
    SYS_setsid,
    SYS_getgroups,
    SYS_getresuid,
    SYS_getresgid,
    SYS_getpgid,
    SYS_getsid,
    SYS_rt_sigpending,
    SYS_rt_sigtimedwait,
    SYS_rt_sigqueueinfo,
    SYS_rt_sigsuspend,
    SYS_sigaltstack,
    SYS_statfs,
    SYS_fstatfs,
    SYS_getpriority,
    SYS_setpriority,
    SYS_sched_getparam,
    SYS_sched_getscheduler,
    SYS_sched_get_priority_max,
    SYS_sched_get_priority_min,
    SYS_sched_rr_get_interval,
    SYS_sched_getaffinity,
    SYS_prctl,
    SYS_gettid,
    SYS_futex,
    SYS_getdents64,
    SYS_set_tid_address,
    SYS_fadvise64,
    SYS_clock_gettime,
    SYS_clock_getres,
    SYS_clock_nanosleep,
    SYS_openat,
    SYS_mkdirat,
    SYS_newfstatat,
    SYS_unlinkat,
    SYS_linkat,
    SYS_symlinkat,
    SYS_readlinkat,
    SYS_fchmodat,
    SYS_faccessat,
    SYS_pselect6,
    SYS_ppoll,
    SYS_set_robust_list,
    SYS_get_robust_list,
    SYS_splice,
    SYS_utimensat,
    SYS_epoll_create1,
    SYS_epoll_ctl,
    SYS_epoll_pwait,
    SYS_timerfd_create,
    SYS_timerfd_settime,
    SYS_timerfd_gettime,
    SYS_eventfd2,
    SYS_signalfd4,
    SYS_fallocate,
    SYS_pipe2,
    SYS_getcpu,
    SYS_renameat2,
    SYS_getrandom,
    SYS_execveat,
    SYS_statx,
    SYS_membarrier,
    SYS_copy_file_range,
    SYS_preadv2,
    SYS_pwritev2,
    SYS_timer_create,
    SYS_timer_settime,
    SYS_timer_gettime,
    SYS_timer_getoverrun,
    SYS_timer_delete,
    SYS_restart_syscall,
#ifdef SYS_renameat
    SYS_renameat,
#endif
#ifdef SYS_rseq
    SYS_rseq,
#endif
#ifdef SYS_close_range
    SYS_close_range,
#endif
#ifdef SYS_faccessat2
    SYS_faccessat2,
#endif
#if defined(__x86_64__)  // the older form of calls above
    SYS_open,
    SYS_stat,
    SYS_lstat,
    SYS_poll,
    SYS_access,
    SYS_pipe,
    SYS_select,
    SYS_dup2,
    SYS_pause,
    SYS_alarm,
    SYS_fork,
    SYS_vfork,
    SYS_getdents,
    SYS_rename,
    SYS_mkdir,
    SYS_rmdir,
    SYS_creat,
    SYS_link,
    SYS_unlink,
    SYS_symlink,
    SYS_readlink,
    SYS_chmod,
    SYS_getrlimit,
    SYS_getpgrp,
    SYS_utime,
    SYS_arch_prctl,
    SYS_time,
    SYS_epoll_create,
    SYS_epoll_wait,
    SYS_utimes,
    SYS_futimesat,
    SYS_eventfd,
    SYS_signalfd,
#endif
};

// Calls that programs try: their error is the one that such programs expect.
constexpr uint32_t kForbidden[] = {
    SYS_socket,
    SYS_bind,
    SYS_connect,
    SYS_listen,
    SYS_accept,
    SYS_accept4,
    SYS_ptrace,
    SYS_process_vm_readv,
    SYS_process_vm_writev,
    SYS_unshare,
    SYS_setns,
    SYS_mount,
    SYS_umount2,
    SYS_pivot_root,
    SYS_chroot,
    SYS_sethostname,
    SYS_setuid,
    SYS_setgid,
    SYS_setresuid,
    SYS_setresgid,
    SYS_setgroups,
    SYS_fchown,
    SYS_fchownat,
    SYS_bpf,
    SYS_perf_event_open,
    SYS_reboot,
    SYS_memfd_create,
    SYS_shmget,
    SYS_mknodat,
#if defined(__x86_64__)
    SYS_chown,
    SYS_lchown,
    SYS_mknod,
#endif
};

constexpr uint32_t kNewNamespaces =
    CLONE_NEWNS | CLONE_NEWUTS | CLONE_NEWIPC | CLONE_NEWUSER | CLONE_NEWPID | CLONE_NEWNET | CLONE_NEWCGROUP;

class Filter {
 public:
  void load(size_t offset) { add(BPF_LD | BPF_W | BPF_ABS, uint32_t(offset)); }
  void leave(uint32_t action) { add(BPF_RET | BPF_K, action); }
  // If the value loaded last is `value`: the action.
  void when(uint32_t value, uint32_t action) {
    add(BPF_JMP | BPF_JEQ | BPF_K, value, 0, 1);
    leave(action);
  }
  // If the call is `number`: allowed if its first argument is `value`, else EPERM.
  void when_first_is(uint32_t number, uint32_t value) {
    add(BPF_JMP | BPF_JEQ | BPF_K, number, 0, 4);
    load(offsetof(seccomp_data, args[0]));
    when(value, SECCOMP_RET_ALLOW);
    leave(SECCOMP_RET_ERRNO | EPERM);
  }
  // If the call is `number`: EPERM if its first argument has one of `bits`, else allowed.
  void when_first_lacks(uint32_t number, uint32_t bits) {
    add(BPF_JMP | BPF_JEQ | BPF_K, number, 0, 4);
    load(offsetof(seccomp_data, args[0]));
    add(BPF_JMP | BPF_JSET | BPF_K, bits, 0, 1);
    leave(SECCOMP_RET_ERRNO | EPERM);
    leave(SECCOMP_RET_ALLOW);
  }
  void unless(uint32_t value, uint32_t action) {
    add(BPF_JMP | BPF_JEQ | BPF_K, value, 1, 0);
    leave(action);
  }
  std::vector<sock_filter> take() { return std::move(code_); }

 private:
  void add(uint16_t code, uint32_t k, uint8_t if_true = 0, uint8_t if_false = 0) {
    code_.push_back({code, if_true, if_false, k});
  }
  std::vector<sock_filter> code_;
};

}  // namespace

std::vector<sock_filter> system_call_filter() {
  if (kArchitecture == 0) return {};
  Filter f;
  f.load(offsetof(seccomp_data, arch));
  f.unless(kArchitecture, SECCOMP_RET_KILL_PROCESS);
  f.load(offsetof(seccomp_data, nr));
  for (uint32_t number : kAllowed) f.when(number, SECCOMP_RET_ALLOW);
  for (uint32_t number : kForbidden) f.when(number, SECCOMP_RET_ERRNO | EPERM);
  // The low half of the first argument, which is all of a 32-bit value on these little-endian processors.
  f.when_first_lacks(SYS_clone, kNewNamespaces);
  f.when_first_is(SYS_socketpair, AF_UNIX);
  f.when_first_is(SYS_prlimit64, 0);  // limits of the caller alone
#if defined(__x86_64__)
  f.when(SYS_setrlimit, SECCOMP_RET_ALLOW);
#endif
  f.leave(SECCOMP_RET_ERRNO | ENOSYS);
  return f.take();
}

}  // namespace trireme
