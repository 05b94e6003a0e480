"""Packs programs and their libraries for a machine that has no network, and unpacks them there. Their data is in the
repository, which travels too."""
import hashlib
import lzma
import os
import pathlib
import shutil
import subprocess
import sys
import tarfile
import tempfile

from gpu_checks import fatbin
from gpu_checks.calls import PARITY
from gpu_checks.environment import RUNTIME

ROOT = pathlib.Path(__file__).resolve().parents[2]
PROGRAMS = ["trireme", "tests/ops/trireme_ops", "tests/golden/test_golden", "bench/trireme_step_ops"] + [
    f"tests/parity/test_parity_{name}" for name in PARITY]
# On every machine with glibc, and newer there than here.
SYSTEM = ("libc.so", "libm.so", "libpthread", "libdl.so", "librt.so", "ld-linux", "linux-vdso", "libcuda.so")


def libraries(program):
    """Shared libraries of a program as the loader finds them: {name: path}."""
    found = {}
    for line in subprocess.run(["ldd", program], capture_output=True, text=True, check=True).stdout.splitlines():
        words = line.split()
        if "=>" in words and len(words) >= 3 and words[2].startswith("/") and not words[0].startswith(SYSTEM):
            found[words[0]] = words[2]
    return found


def small_nccl(path, folder):
    """A copy of libnccl with machine code for Hopper alone: 13 MiB of an archive in place of 190."""
    copy = folder / "libnccl.so.2"
    subprocess.run(["strip", "-o", copy, path], check=True)
    data = bytearray(copy.read_bytes())
    try:
        fatbin.keep_only(data, 90)
    except ValueError as e:
        sys.exit(f"gpu_check: --nccl {path}: {e}")
    copy.write_bytes(data)
    return copy


def pack(archive, build, nccl=None):
    if nccl and not nccl.is_file():
        sys.exit(f"gpu_check: --nccl {nccl}: no such file; give a libnccl.so.2 of version 2.30 or newer")
    if (build / "CMakeCache.txt").exists():  # `make` builds the program alone, and benches only on request
        targets = [pathlib.Path(p).name for p in PROGRAMS]
        if subprocess.run(["cmake", "--build", build, "--target", *targets]).returncode != 0:
            sys.exit(f"gpu_check: {build} does not build all of {', '.join(targets)}: its output is above")
    missing = [p for p in PROGRAMS if not (build / p).exists()]
    if missing:
        sys.exit(f"gpu_check: not built in {build}: {', '.join(missing)}")
    # Every program has the kernels: a dictionary that spans several programs stores them once.
    filters = [{"id": lzma.FILTER_LZMA2, "preset": 2, "dict_size": 128 << 20}]
    sizes = {}
    with tempfile.TemporaryDirectory() as folder, lzma.open(archive, "wb", filters=filters) as packed, \
            tarfile.open(fileobj=packed, mode="w") as out:
        def add(path, place):
            out.add(path, place)
            sizes[place] = pathlib.Path(path).stat().st_size

        all_libraries = {}
        for p in PROGRAMS:
            stripped = pathlib.Path(folder) / pathlib.Path(p).name
            subprocess.run(["strip", "-o", stripped, build / p], check=True)
            add(stripped, f"bin/{stripped.name}")
            all_libraries |= libraries(build / p)
        for name, path in sorted(all_libraries.items()):
            add(os.path.realpath(path), f"runtime/{name}/{name}" if name in RUNTIME else f"lib/{name}")
        if nccl:
            add(small_nccl(nccl, pathlib.Path(folder)), "nccl/libnccl.so.2")
    for place, size in sizes.items():
        print(f"{size / 2**20:8.1f} MiB  {place}")
    print(f"{archive}: {pathlib.Path(archive).stat().st_size / 2**20:.1f} MiB, {len(PROGRAMS)} programs, "
          f"{len(all_libraries)} libraries{', libnccl' if nccl else ''}")


def unpacked(archive, folder):
    """Unpacks the archive into `folder`, unless the call before did. Returns the folder with bin, lib and
    tree, which is the repository that this file is in."""
    with open(archive, "rb") as f:
        stamp = hashlib.file_digest(f, "sha256").hexdigest()
    home, mark = folder / "home", folder / "home.sha256"
    if home.is_dir() and mark.is_file() and mark.read_text() == stamp:
        return home
    mark.unlink(missing_ok=True)
    shutil.rmtree(home, ignore_errors=True)
    with tarfile.open(archive) as t:
        t.extractall(home, filter="data") if hasattr(tarfile, "data_filter") else t.extractall(home)
    (home / "tree").symlink_to(ROOT)
    mark.write_text(stamp)
    return home
