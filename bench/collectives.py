"""Collectives between two ranks: rank threads and processes beside memory bandwidth, OpenMPI and Gloo."""

import json
import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path

from lines import Load, Section, percent, run

HERE = Path(__file__).resolve().parent
SIZES = [4 << 10, 64 << 10, 1 << 20, 4 << 20, 16 << 20, 64 << 20]


def bus_factor(op, ranks):
    return (2 if op == "all_reduce" else 1) * (ranks - 1) / ranks


def of_lines(text):
    return [json.loads(line) for line in text.splitlines() if line.startswith("{")]


def gloo(options, ranks=2):
    """Seconds by (op, bytes), from PyTorch's gloo in processes; {} without a peer."""
    if not options.peer_python:
        return {}
    with socket.socket() as probe:  # a free port of this machine
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    environment = dict(os.environ, MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), WORLD_SIZE=str(ranks),
                       GLOO_SOCKET_IFNAME="lo", OMP_NUM_THREADS="1")
    processes = [subprocess.Popen([options.peer_python, HERE / "collectives_gloo.py", *map(str, SIZES)],
                                  env=dict(environment, RANK=str(r)), stdout=subprocess.PIPE, text=True)
                 for r in range(ranks)]
    texts = [p.communicate()[0] for p in processes]
    if any(p.returncode for p in processes):
        sys.exit("the peer's gloo run failed")
    return {(line["op"], line["bytes"]): line["seconds"] for line in of_lines(texts[0])}


def under_mpirun(program, *arguments, ranks=2):
    """Seconds by (op, bytes) from a program of several processes over shared memory; {} where it was not built."""
    if not program.exists() or not shutil.which("mpirun"):
        return {}
    environment = dict(os.environ, OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1")
    done = subprocess.run(["mpirun", "-n", str(ranks), "--bind-to", "none", "--oversubscribe", program,
                           *map(str, arguments)], env=environment, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"mpirun ended with {done.returncode}: {done.stderr.strip()[-2000:]}")
    return {(line["op"], line["bytes"]): line["seconds"] for line in of_lines(done.stdout)}


def table_line(x, fast, processes, mpi_s, gloo_s, ranks):
    """x: a line of trireme_collectives; fast: seconds of the fast order; peers: seconds, by (operation, bytes)."""
    key = (x["op"], x["bytes"])

    def bus(seconds):
        return f"{bus_factor(x['op'], ranks) * x['bytes'] / seconds[key] / 1e9:.2f}" if key in seconds else "-"
    return {"operation": x["op"], "KiB": f"{x['bytes'] >> 10:,}", "us": f"{x['seconds'] * 1e6:,.1f}",
            "busbw GB/s": bus({key: x["seconds"]}), "memory moved GB/s": f"{x['memory'] / 1e9:.1f}",
            "of triad": percent(x["memory"] / x["triad"]),
            "halving, x the time": f"{fast[key] / x['seconds']:.2f}",
            "processes busbw": bus(processes), "OpenMPI busbw": bus(mpi_s), "Gloo busbw": bus(gloo_s)}


def collectives(options):
    ranks = 2
    with Load() as load:
        ordered = of_lines(run([options.collectives, "--ranks", ranks]))
        fast = of_lines(run([options.collectives, "--ranks", ranks, "--algorithm", "halving"]))
        peer = options.collectives.parent / "trireme_collectives_mpi"
        mpi_s = under_mpirun(peer, *SIZES, ranks=ranks)
        # Without MPI there is no such way to be measured.
        processes = under_mpirun(options.collectives, "--comm", "mpi", ranks=ranks) if mpi_s else {}
        gloo_s = gloo(options, ranks)
    fast_s = {(x["op"], x["bytes"]): x["seconds"] for x in fast}
    lines = [table_line(x, fast_s, processes, mpi_s, gloo_s, ranks) for x in ordered]
    triad = ordered[0]["triad"] / 1e9
    note = (f"Full buffers of f32. busbw = 2 (n-1)/n x bytes / s for all_reduce, (n-1)/n x bytes / s for the others. Memory "
            f"moved = what all ranks together read and write (bench/collectives.cc), beside a triad of {triad:.1f} GB/s "
            f"measured in the same process on {ranks} threads, far beyond the caches. Others used {percent(load.others)} "
            f"of the processors.")
    return [Section(f"Collectives between {ranks} rank threads", f"{options.collectives.name} --ranks {ranks}", lines, note)]
