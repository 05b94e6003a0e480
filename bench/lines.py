"""What every line of the benchmark table is made of: a command run, and who else used the processor meanwhile.

A line is a dict of columns, in order; a section is a title, the command that repeats it, and lines with the same
columns. To add one: write a function (options) -> Section in a file of bench/, and name it in report.py's SECTIONS.
"""

import dataclasses
import os
import resource
import statistics
import subprocess
import sys
import time


@dataclasses.dataclass
class Section:
    title: str
    command: str
    lines: list
    note: str = ""


class Load:
    """Share of the processors that other processes used while this ran: what /proc/stat counted as busy, less what
    this process and its finished children used, over all processors' time. 0.05 = five per cent of the machine."""

    def __enter__(self):
        self._begin = (time.monotonic(), self._busy(), self._own())
        return self

    def __exit__(self, *_):
        wall, busy, own = (b - a for a, b in zip(self._begin, (time.monotonic(), self._busy(), self._own())))
        self.others = max(0.0, busy - own) / (max(wall, 1e-9) * os.cpu_count())

    @staticmethod
    def _busy():
        with open("/proc/stat") as stat:
            user, nice, system, _idle, _wait, irq, soft, steal = map(int, stat.readline().split()[1:9])
        return (user + nice + system + irq + soft + steal) / os.sysconf("SC_CLK_TCK")

    @staticmethod
    def _own():
        used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
        return sum(u.ru_utime + u.ru_stime for u in used)


def run(command):
    """Standard output of a command that must succeed."""
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"{command[0]} ended with {done.returncode}: {done.stderr.strip()[-2000:]}")
    return done.stdout


def median(values):
    return statistics.median(values) if values else float("nan")


def percent(share):
    return f"{100 * share:.1f} %"
