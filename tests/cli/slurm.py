#!/usr/bin/env python3
"""Slurm for real: configs/slurm/train.sbatch on a cluster of three nodes, each a network namespace of this machine.

    tests/cli/slurm.py TRIREME [STEPS]

A munged, a slurmctld and three slurmds of its own. Ranks that srun starts on all three find each other without MPI. A job of four ranks on two nodes meets its time limit: it saves, leaves
and is requeued. In its second start a node is killed, slurmd and ranks alike: Slurm requeues it, and it goes on beside the
third node. Every loss and gradient norm, and every byte of the last checkpoint's tensors, must be those of rank threads that
were never interrupted. All it made goes again, whatever happens. Exit code 77: it cannot be done here, and why is printed.
"""
import math
import os
import pathlib
import re
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time

from two_hosts import metrics, numbers, run, skip, write_run

NODES = ("nd0", "nd1", "nd2")
SCRIPT = pathlib.Path(__file__).resolve().parents[2] / "configs/slurm/train.sbatch"
RANKS, LIMIT_S, SIGNAL_BEFORE_S = 4, 60, 40
# A node of its own: network, host name, /tmp (PMIx's directories of two nodes must not meet) and shared memory. nsenter, as
# `ip netns exec` takes /sys/fs/cgroup away, which slurmd wants.
# The nodes' names are in everybody's /etc/hosts, as a cluster has them.
INSIDE = ('hostname "$0" && mount --bind "$1/$0/shm" /dev/shm && mount --bind "$1/$0/tmp" /tmp && '
          'mount --bind "$1/hosts" /etc/hosts && shift && exec "$@"')


class Cluster:
    """Namespaces named after this process: nd0 has the bridge that joins them."""

    def __init__(self, folder):
        self.folder, self.daemons = folder, []
        self.space = {node: f"slurm{os.getpid()}{node}" for node in NODES}
        self.env = dict(os.environ, SLURM_CONF=str(folder / "slurm.conf"))

    def __enter__(self):
        try:
            self.wire()
            self.start()
        except BaseException:
            self.__exit__()
            raise
        return self

    def wire(self):
        for node, space in self.space.items():
            run(["ip", "netns", "add", space])
            run(["ip", "-n", space, "link", "set", "lo", "up"])
        hub = self.space["nd0"]
        run(["ip", "-n", hub, "link", "add", "eth0", "type", "bridge"])
        for node in NODES[1:]:
            run(["ip", "link", "add", f"to-{node}", "netns", hub, "type", "veth", "peer", "name", "eth0", "netns",
                 self.space[node]])
            run(["ip", "-n", hub, "link", "set", f"to-{node}", "master", "eth0", "up"])
        for i, node in enumerate(NODES):
            run(["ip", "-n", self.space[node], "addr", "add", f"10.79.0.1{i}/24", "dev", "eth0"])
            run(["ip", "-n", self.space[node], "link", "set", "eth0", "up"])

    def on(self, node, *command):
        return ["nsenter", f"--net=/run/netns/{self.space[node]}", "unshare", "--uts", "--mount", "--propagation", "private",
                "sh", "-c", INSIDE, node, str(self.folder), *map(str, command)]

    def daemon(self, command):
        with open(self.folder / "daemons.log", "a") as log:
            self.daemons.append(subprocess.Popen(command, env=self.env, stdout=log, stderr=log, stdin=subprocess.DEVNULL))

    def start(self):
        f = self.folder
        for node in NODES:
            for part in ("tmp", "shm", "spool"):
                (f / node / part).mkdir(parents=True)
                (f / node / part).chmod(0o1777 if part != "spool" else 0o755)
        (f / "state").mkdir()
        (f / "hosts").write_text("127.0.0.1 localhost\n" + "".join(f"10.79.0.1{i} {n}\n" for i, n in enumerate(NODES)))
        (f / "munge.key").write_bytes(os.urandom(128))
        (f / "munge.key").chmod(0o400)
        (f / "prolog.sh").write_text("#!/bin/sh\nrm -rf /tmp/spmix_appdir_*_${SLURM_JOB_ID}.*\n")  # of a start that was killed
        (f / "prolog.sh").chmod(0o755)
        (f / "cgroup.conf").write_text("CgroupPlugin=autodetect\nConstrainCores=no\nConstrainRAMSpace=no\nConstrainDevices=no\n")
        (f / "slurm.conf").write_text(
            f"""ClusterName=trireme
SlurmctldHost=nd0(10.79.0.10)
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket={f}/munge.sock
CredType=cred/munge
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=pmix
MpiParams=ports=12000-12999
StateSaveLocation={f}/state
SlurmdSpoolDir={f}/%n/spool
SlurmctldPidFile={f}/slurmctld.pid
SlurmdPidFile={f}/%n/slurmd.pid
SlurmctldLogFile={f}/slurmctld.log
SlurmdLogFile={f}/slurmd.%n.log
SchedulerType=sched/backfill
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SlurmdTimeout=5
SlurmctldTimeout=10
InactiveLimit=0
KillWait=5
JobRequeue=1
ReturnToService=2
SlurmdParameters=config_overrides
JobCompType=jobcomp/none
AccountingStorageType=accounting_storage/none
Prolog={f}/prolog.sh
PartitionName=p Nodes=nd[0-2] Default=YES MaxTime=60 State=UP OverSubscribe=NO
""" + "".join(f"NodeName={n} NodeAddr=10.79.0.1{i} CPUs=2 RealMemory=2000\n" for i, n in enumerate(NODES)))
        self.daemon(["munged", "--foreground", "--force", f"--key-file={f}/munge.key", f"--socket={f}/munge.sock",
                     f"--pid-file={f}/munged.pid", f"--log-file={f}/munged.log", f"--seed-file={f}/munged.seed"])
        for _ in range(50):
            if (f / "munge.sock").exists():
                break
            time.sleep(0.1)
        self.daemon(self.on("nd0", "slurmctld", "-D", "-f", f / "slurm.conf"))
        for node in NODES:
            self.daemon(self.on(node, "slurmd", "-D", "-f", f / "slurm.conf", "-N", node))

    def ask(self, *command, check=True):
        done = subprocess.run(self.on("nd0", *command), env=self.env, capture_output=True, text=True, timeout=60)
        if check and done.returncode:
            raise RuntimeError(f"{' '.join(map(str, command))}: {done.stderr.strip()}")
        return done.stdout

    def ready(self):
        for _ in range(60):
            if self.ask("sinfo", "-h", "-o", "%t %D", check=False).split() == ["idle", "3"]:
                return True
            time.sleep(0.5)
        return False

    def kill(self, space):
        """Only processes of that namespace."""
        for pid in map(int, subprocess.run(["ip", "netns", "pids", space], capture_output=True, text=True).stdout.split()):
            if pid > 1 and pid != os.getpid():
                try:
                    os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    pass

    def __exit__(self, *_):
        for space in self.space.values():
            self.kill(space)
        for process in self.daemons:
            if process.poll() is None:
                process.kill()
            process.wait()
        for space in self.space.values():
            subprocess.run(["ip", "netns", "del", space], capture_output=True)


def tensors(folder):
    return {p.name: p.read_bytes() for p in sorted(folder.glob("*.safetensors"))}


class Job:
    def __init__(self, cluster, folder, trireme, command):
        self.cluster, self.out = cluster, folder / "job.out"
        text = cluster.ask("env", f"TRIREME={trireme}", "sbatch", "--parsable", "-D", folder, "-N2", f"-n{RANKS}",
                           f"--time={LIMIT_S // 60}", f"--signal=USR1@{SIGNAL_BEFORE_S}", f"--output={self.out}", SCRIPT,
                           *command)
        self.id = text.strip()

    def text(self):
        return self.out.read_text() if self.out.exists() else ""

    def until(self, pattern, seconds):
        """The match; a requeued job that waits for its two minutes is told to start now."""
        begin = time.monotonic()
        while time.monotonic() - begin < seconds:
            found = re.search(pattern, self.text(), re.S)
            if found:
                return found
            # At once its old steps would still be going down, whose PMIx sockets are in the way.
            if time.monotonic() - begin > 5 and "PENDING" in self.cluster.ask("squeue", "-h", "-j", self.id, "-o", "%T", check=False):
                self.cluster.ask("scontrol", "update", f"jobid={self.id}", "StartTime=now", check=False)
            time.sleep(0.5)
        raise RuntimeError(f"not in {seconds} s: {pattern}")


def meet(cluster, folder, trireme):
    """Ranks for NCCL, one a node, find each other by Slurm's variables; met, one of them says for all that there is no GPU."""
    folder.mkdir()
    file = write_run(folder)
    for more in ([], ["--supervise", "2"]):
        command = cluster.on("nd0", "srun", "-N3", "-n3", "--mpi=none", trireme, "train", file, "--set", "layout.dp=3", "--set",
                             "batch.global=6", "--set", "batch.micro=1", "--set", "train.comm=nccl", "--set", "train.device=cpu",
                             "--set", "train.sum_order=auto", *more)
        done = subprocess.run(command, env=cluster.env, capture_output=True, text=True, timeout=120)
        said = [line for line in done.stderr.splitlines() if not line.startswith(("srun: ", "slurmstepd"))]
        if done.returncode != 2 or len(said) != 1 or not said[0].startswith('trireme: train.comm: "nccl" is not supported'):
            raise RuntimeError(f"{' '.join(more)}: exit code {done.returncode}: {done.stdout}{done.stderr}")
    print("three ranks on three nodes met by what srun says, with a supervisor each too", flush=True)


def threads(folder, trireme, common, steps, name):
    """A run of rank threads; the seconds of a step."""
    done = subprocess.run([trireme, "train", *common, "--set", f"train.steps={steps}", "--set", f"train.dir={folder}/{name}"],
                          capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(done.stderr)
    return statistics.median(m["step_s"] for m in metrics(folder / name))


def train(cluster, folder, trireme, steps):
    file = write_run(folder)
    common = [str(file), "--set", f"layout.dp={RANKS}", "--set", "layout.zero=1", "--set", "train.checkpoint_every=40"]
    if not steps:  # longer than from a start to the signal, however fast the machine
        steps = math.ceil(2 * (LIMIT_S - SIGNAL_BEFORE_S) / threads(folder, trireme, common, 200, "timed") / 100) * 100
    threads(folder, trireme, common, steps, "threads")
    common += ["--set", f"train.steps={steps}"]
    job = Job(cluster, folder, trireme, common + ["--set", f"train.dir={folder}/job"])
    first = job.until(r"start 0, on nd\[0-1\].*?interrupted at step (\d+) of.*?Exited with exit code 3", 2 * LIMIT_S + 60)
    print(f"at its time limit: interrupted at step {first[1]} of {steps}", flush=True)
    second = job.until(r"start 1, on .*?resumed from step (\d+) ", 120)
    if second[1] != first[1]:
        raise RuntimeError(f"interrupted at step {first[1]}, resumed from {second[1]}")
    had = len(metrics(folder / "job"))
    while len(metrics(folder / "job")) < had + 60:  # another checkpoint and some steps behind it
        time.sleep(0.2)
    cluster.kill(cluster.space["nd1"])
    began = time.monotonic()
    third = job.until(r"start 2, on nd\[0,2\].*?resumed from step (\d+) ", 180)
    print(f"requeued, resumed from step {second[1]}; node nd1 killed; requeued by Slurm on nd0 and nd2 and resumed from step "
          f"{third[1]} after {time.monotonic() - began:.1f} s", flush=True)
    for start in range(3, 20):  # its time limit comes as often as the machine is slow
        if re.search(r"done at step|trireme: done", job.text()):
            break
        job.until(rf"trireme: done|start {start}, on .*?resumed from step \d+ ", 2 * LIMIT_S + 60)
    job.until("trireme: done", 2 * LIMIT_S)
    want, got = metrics(folder / "threads"), metrics(folder / "job")
    if numbers(want) != numbers(got) or len(got) != steps:
        raise RuntimeError("losses differ from those of rank threads")
    last = f"checkpoints/step-{steps:08}"
    mine, theirs = tensors(folder / "job" / last), tensors(folder / "threads" / last)
    if not mine or mine != theirs:
        raise RuntimeError(f"the last checkpoint's tensors differ from those of rank threads: {sorted(mine)}")
    print(f"all {steps} losses and gradient norms, and the {sum(map(len, mine.values()))} bytes of the last checkpoint's tensors, equal "
          "those of rank threads", flush=True)


def believe_nobody(folder):
    """Slurm's srun may return 0 without a rank having run: the script must not take that for the run's end."""
    (folder / "srun").write_text("#!/bin/sh\nexit 0\n")
    (folder / "scontrol").write_text('#!/bin/sh\necho "asked to $*"\n')
    for tool in ("srun", "scontrol"):
        (folder / tool).chmod(0o755)
    env = dict(os.environ, PATH=f"{folder}:{os.environ['PATH']}", SLURM_JOB_ID="7", SLURM_JOB_NODELIST="none")
    done = subprocess.run(["bash", SCRIPT, "run.toml"], cwd=folder, env=env, capture_output=True, text=True)
    if done.returncode != 1 or "asked to requeue 7" not in done.stdout or "done" in done.stdout:
        return f"ranks that never ran: exit code {done.returncode}, {done.stdout}{done.stderr}"
    return None


def main():
    trireme = str(pathlib.Path(sys.argv[1]).resolve())
    steps = int(sys.argv[2]) if len(sys.argv) > 2 else None
    with tempfile.TemporaryDirectory(prefix="trireme-slurm-") as name:
        wrong = believe_nobody(pathlib.Path(name))
    if wrong:
        print("failed: " + wrong)
        return 1
    if os.geteuid() != 0:
        skip("network namespaces are root's to make")
    for tool in ("ip", "nsenter", "unshare", "munged", "slurmctld", "slurmd", "sbatch"):
        if not shutil.which(tool):
            skip(f"there is no {tool} here (Debian: iproute2, util-linux, munge, slurmctld, slurmd, slurm-client)")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that the namespaces go
    with tempfile.TemporaryDirectory(prefix="trireme-slurm-", dir="/var/tmp") as name:
        folder = pathlib.Path(name)
        folder.chmod(0o755)  # munge's socket is everybody's
        try:
            cluster = Cluster(folder).__enter__()
        except subprocess.CalledProcessError as e:
            skip(f"no network namespaces here: {' '.join(e.cmd)}: {e.stderr.strip()}")
        try:
            if not cluster.ready():
                skip("Slurm does not start here: " + (folder / "daemons.log").read_text()[-2000:])
            meet(cluster, folder / "meet", trireme)
            train(cluster, folder, trireme, steps)
        except RuntimeError as e:
            if "built without MPI" in "".join(p.read_text() for p in [folder / "job.out"] if p.exists()):
                skip("this trireme was built without MPI")
            logs = "".join(p.read_text()[-3000:] for p in (folder / "job.out", folder / "slurmctld.log") if p.exists())
            print(f"failed: {e}\n{logs}")
            return 1
        finally:
            cluster.__exit__()
    return 0


if __name__ == "__main__":
    sys.exit(main())
