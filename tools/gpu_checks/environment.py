"""Environments of child processes, and where CUDA's tools and libraries are.

Only the packed programs see the packed libraries. nvidia-smi, ncu, compute-sanitizer and Python keep the machine's own
environment: an older libstdc++ in front of the machine's would stop them.
"""
import concurrent.futures
import importlib.util
import os
import pathlib
import re
import shutil
import subprocess
import sys

# Libraries of the compiler. The machine's own are used if they are new enough, since tools that load themselves into a
# program (compute-sanitizer, ncu) need those.
RUNTIME = ("libstdc++.so.6", "libgcc_s.so.1", "libgomp.so.1")


def site_packages():
    return [pathlib.Path(p) for p in sys.path if p.endswith("-packages")]


def cuda_folders():
    """Folders of CUDA's libraries besides the loader's own: the toolkit's and those of NVIDIA's Python packages."""
    places = [pathlib.Path("/usr/local/cuda/lib64")]
    for site in site_packages():
        places += sorted(site.glob("nvidia/*/lib"))
    return [p for p in places if p.is_dir()]


def not_found(program, path):
    """Names of the libraries that `program` lacks, or has in a version that is too old."""
    env = dict(os.environ, LD_LIBRARY_PATH=path)
    try:
        done = subprocess.run(["ldd", str(program)], capture_output=True, text=True, env=env, timeout=20)
    except (OSError, subprocess.TimeoutExpired):
        return set()
    names = set()
    for line in (done.stdout + done.stderr).splitlines():
        if "not found" in line:
            names |= set(re.findall(r"[\w+.-]+\.so[.\d]*", line.split("(required")[0]))
    return names


class Environments:
    """Environments for a folder `home` that has bin, lib, runtime/<library> and tree; None: nothing is packed."""

    def __init__(self, home):
        self.home = home
        self.lacking, self.runtime, self.path = {}, [], ""
        if home is None:
            return
        programs = sorted(p for p in (home / "bin").glob("*") if p.is_file())
        with concurrent.futures.ThreadPoolExecutor(8) as threads:
            self.path = self.joined()
            lacks = set().union(*threads.map(lambda p: not_found(p, self.path), programs))
            self.runtime = sorted(n for n in lacks & set(RUNTIME) if (home / "runtime" / n).is_dir())
            self.path = self.joined()
            still = threads.map(lambda p: not_found(p, self.path), programs if lacks else [])
            self.lacking = {p.name: names for p, names in zip(programs, still) if names}

    def joined(self):
        old = os.environ.get("LD_LIBRARY_PATH")
        folders = [self.home / "lib", *(self.home / "runtime" / n for n in self.runtime), *cuda_folders()]
        return ":".join([*map(str, folders), *([old] if old else [])])

    def added(self, more=None):
        """Variables of a packed program, on top of the machine's environment."""
        return {"LD_LIBRARY_PATH": self.path, "TRIREME_TEST_DEVICE": "cuda",
                "TRIREME_SOURCE_DIR": str(self.home / "tree"), **(more or {})}

    def of(self, command, more=None):
        """The environment of a command: packed programs have `added`, others the machine's own."""
        own = self.home is not None and pathlib.Path(str(command[0])).parent == self.home / "bin"
        return {**os.environ, **(self.added(more) if own else more or {})}

    def under(self, tool, command, more=None):
        """`command` under a tool that keeps the machine's environment."""
        pairs = [f"{k}={v}" for k, v in self.added(more).items()]
        return [*tool, "env", *pairs, *command]


def find_tool(name, *folders):
    """Path of one of CUDA's tools, or None."""
    if found := shutil.which(name):
        return found
    places = [pathlib.Path("/usr/local/cuda") / part for part in ("bin", *folders)]
    places += sorted(pathlib.Path("/opt/nvidia").glob("nsight-compute/*"), reverse=True)
    for site in site_packages():
        places += sorted(site.glob("nvidia/*/compute-sanitizer"))
    return next((str(place / name) for place in places if (place / name).is_file()), None)


def have_torch():
    return importlib.util.find_spec("torch") is not None


def read_ahead():
    """Commands that bring the large libraries into the page cache, the first needed first: (name, command)."""
    def read(*names):
        paths = {path.resolve(): None for folder in cuda_folders() for name in names for path in sorted(folder.glob(name))}
        return ["sh", "-c", 'cat "$@" >/dev/null; echo $# files', "sh", *map(str, paths)] if paths else None

    torch = [sys.executable, "-c", "import torch; print('torch', torch.__version__, 'CUDA', torch.version.cuda)"]
    jobs = (("ahead:cublasLt", read("libcublasLt.so*")), ("ahead:torch", have_torch() and torch),
            ("ahead:cudnn", read("libcudnn*.so*")))
    return [job for job in jobs if job[1]]
