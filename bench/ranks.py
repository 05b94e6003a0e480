"""Training on two ranks of one thread each: data parallel and ZeRO, beside one rank on two threads and PyTorch's DDP and
FSDP over gloo; and how far communication hides under compute, measured and forecast."""

import itertools
import json
import os
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

from lines import Load, Section, median, percent, run
from step import MODELS, run_file, write_shard

HERE = Path(__file__).resolve().parent
MODEL, RANKS = "llama-6x384", 2
# Name: dp, ZeRO, threads a rank.
OURS = {"1 rank x 2 threads": (1, 0, 2), "dp 2": (2, 0, 1), "dp 2, ZeRO 1": (2, 1, 1), "dp 2, ZeRO 3": (2, 3, 1)}
PEERS = {"torch DDP": "ddp", "torch FSDP": "fsdp"}


def ours(options, precision, dp, zero, threads):
    """Step seconds of `trireme train`."""
    m = MODELS[MODEL]
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        write_shard(folder / "random.bin", m["vocab"], 64 * m["batch"] * m["seq"] + 1)
        path = folder / "run.toml"
        path.write_text(run_file(m, folder, precision, threads, options.warmup + options.steps))
        run([options.trireme, "train", path, "--json", "--set", f"layout.dp={dp}", "--set", f"layout.zero={zero}",
             "--set", f"batch.micro={m['batch'] // dp}"])
        rows = map(json.loads, (folder / "run" / "metrics.jsonl").read_text().splitlines())
        return [row["step_s"] for row in rows if "step_s" in row][options.warmup:]


def peer(options, precision, wrap):
    """Step seconds of torch's ranks, a process each."""
    with socket.socket() as probe:  # a free port of this machine
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    environment = dict(os.environ, MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), WORLD_SIZE=str(RANKS),
                       GLOO_SOCKET_IFNAME="lo", OMP_NUM_THREADS="1")
    command = [options.peer_python, HERE / "ranks_torch.py", f"--model={MODEL}", f"--wrap={wrap}",
               f"--precision={precision}", f"--steps={options.steps}", f"--warmup={options.warmup}"]
    processes = [subprocess.Popen([str(c) for c in command], env=dict(environment, RANK=str(r)), stdout=subprocess.PIPE,
                                  text=True) for r in range(RANKS)]
    texts = [p.communicate()[0] for p in processes]
    if any(p.returncode for p in processes):
        sys.exit(f"torch's {wrap} run failed")
    return json.loads(texts[0].splitlines()[-1])["all_step_s"]


def ranks(options):
    """Sections: tokens a second on two ranks."""
    tokens = MODELS[MODEL]["batch"] * MODELS[MODEL]["seq"]
    lines = []
    for precision in options.precision:
        seconds = {}
        with Load() as load:
            for _ in range(options.rounds):  # in turn
                for name, layout in OURS.items():
                    seconds.setdefault(name, []).extend(ours(options, precision, *layout))
                for name, wrap in PEERS.items() if options.peer_python else ():
                    seconds.setdefault(name, []).extend(peer(options, precision, wrap))
        step = {name: median(s) for name, s in seconds.items()}
        for name in step:
            torch = [step[p] for p in PEERS if p in step and ("FSDP" in p) == ("ZeRO 3" in name)]
            lines.append({"model": MODEL, "precision": precision, "ranks": name, "step ms": round(1e3 * step[name], 1),
                          "tokens/s": round(tokens / step[name]),
                          "of 1 rank x 2 threads": percent(step["1 rank x 2 threads"] / step[name]),
                          "of dp 2": percent(step["dp 2"] / step[name]),
                          "x torch's": round(torch[0] / step[name], 2) if torch and name in OURS and "dp" in name else "-",
                          "others' CPU": percent(load.others)})
    note = (f"Batch 12 x 256 in all, one microbatch; {RANKS} ranks have one thread each. x torch's: of ZeRO 3 against FSDP "
            "(fully_shard), else against DDP; both over gloo, a process a rank. bf16: torch.autocast under DDP, bf16 "
            "parameters and reductions under FSDP.")
    return [Section("Training on two ranks", "make bench PEER_PYTHON=python-with-torch", lines, note)]


# A model that is nearly all sleep, and a link slow enough for its few bytes: 6 MB/s and 20 us. In bf16, whose head has a
# backward of its own to hide gathers under; in f32 the head's gradient is computed with its loss.
PACED = [[f"--ranks={n}", f"--zero={z}", "--pace=20", "--precision=bf16", "--alpha=2e-5", "--beta=1.6e-7"] for n, z in
         itertools.product((2, 3), (0, 3))]
# The model of the table above as it computes, over 1 Gbit/s.
REAL = [["--ranks=2", f"--zero={z}", "--hidden=384", "--heads=6", "--ffn=1024", "--vocab=4096", "--seq=256", "--micro=6",
         "--alpha=1e-4", "--beta=8e-9", "--precision=bf16"] for z in (0, 3)]


def overlap_line(x, kind, others):
    beyond = x["beyond_ends_s"]
    return {"compute": kind, "ranks": x["ranks"], "ZeRO": x["zero"], "compute ms": f"{1e3 * x['compute_s']:.1f}",
            "link ms": f"{1e3 * x['comm_s']:.2f}", "waits forecast ms": f"{1e3 * x['forecast_s']:.2f}",
            "measured ms": f"{1e3 * x['measured_s']:.2f}", "measured / forecast": f"{x['measured_s'] / x['forecast_s']:.3f}",
            "least, most of steps": f"{min(x['ratios']):.3f}, {max(x['ratios']):.3f}",
            "late ranks ms": f"{1e3 * x['measured_late_s']:.2f}", "beyond the ends ms": f"{1e3 * beyond:.2f}", "of link": percent(beyond / x["comm_s"]),
            "step / makespan": f"{x['step_s'] / x['makespan_s']:.3f}", "others' CPU": percent(others)}


def overlap(options):
    """Sections: waits for a link that delays."""
    lines = []
    for kind, cases in (("paced", PACED), ("as it is", REAL)):
        for case in cases:
            with Load() as load:
                x = json.loads(run([options.overlap, *case]))
            lines.append(overlap_line(x, kind, load.others))
    note = ("Real steps of rank threads over a link that delays each collective by alpha and beta; the forecast replays what "
            "they issued with the times that their compute took. link: all collectives one after the other, what compute "
            "would wait without overlap. The ends: the first gather and the last reduction, which nothing hides. Late ranks: waits in "
            "agreements (loss, norm) until the last rank had computed, when nothing was on its way; not in what is beyond the ends. Paced: each "
            "op sleeps until a block's forward takes 20 ms, so compute is longer than what goes over the link beside it, on "
            "any number of cores.")
    return [Section("Waiting for the wire, measured and forecast", f"{options.overlap.name} --ranks 2 --zero 3 --pace 20",
                    lines, note)]
