"""Reports that pages are tried with: a run of 16 ranks with everything, one without a trace, a comparison.

Made from a seed, so that what a chart must show can be counted. Their form is that of `trireme report RUN --json`
(docs/report.md). Names and texts are hostile: none of them may end a script or become an element.
"""
import math
import random

CAUSES = ["forward", "backward", "recompute", "update", "bubble", "dp", "tp", "data", "checkpoint", "other"]
WORK = ["forward", "backward", "recompute", "update"]
HOSTILE = "</script><img src=x onerror=alert(1)>"


def comb(draw, ranks, bins):
    rows = []
    for rank in range(ranks):
        shares = []
        for b in range(bins):
            phase = (b / bins * 3 + rank / ranks * 0.3) % 1
            wait = 0.08 + 0.1 * draw.random() if phase < 0.9 else 0.75
            work = 1 - wait
            row = dict.fromkeys(CAUSES, 0.0)
            kind = "forward" if phase < 0.3 else "backward" if phase < 0.8 else "update"
            row[kind] = work * 0.9
            row["recompute"] = work * 0.1 if kind == "backward" else 0
            row["forward"] += 0 if kind == "backward" else work * 0.1
            gap = "bubble" if phase < 0.12 else "data" if phase < 0.2 else "dp" if phase > 0.8 else "tp"
            row[gap] += wait * 0.8
            row["other"] += wait * 0.2
            whole = sum(row.values())
            shares.append([round(row[c] / whole, 4) for c in CAUSES])
        totals = {c: sum(s[i] for s in shares) / bins for i, c in enumerate(CAUSES)}
        gaps = [{"begin_s": round(0.2 + 0.3 * g + 0.004 * rank, 4), "end_s": round(0.2 + 0.3 * g + 0.03 * draw.random() + 0.004 * rank, 4),
                 "cause": "dp", "what": f"waits for rank {(rank + 1) % ranks}, all_reduce of 3.1 MB in backward", "microbatch": g}
                for g in range(3)]
        rows.append({"name": f"rank {rank}", "shares": shares, "totals": totals,
                     "utilisation": sum(totals[c] for c in WORK), "gaps": gaps})
    totals = {c: sum(r["totals"][c] for r in rows) / ranks for c in CAUSES}
    return {"steps": [10, 11, 12], "span_s": 0.91, "bins": bins, "causes": CAUSES, "work": WORK, "rows": rows,
            "totals": totals, "sum": sum(totals.values()), "why_not": None}


def memory(draw, ranks):
    mib = 2**20
    peak = {"weights": 7 * mib, "grads": 14 * mib, "optimizer": 29 * mib, "activations": 61 * mib, "logits": 16 * mib, "scratch": 3 * mib}
    over = []
    for rank in range(ranks):
        times = [round(0.91 * i / 119, 4) for i in range(120)]
        wave = [abs(math.sin(i / 120 * math.pi * 3)) for i in range(120)]
        held = {"weights": [7 * mib] * 120, "grads": [14 * mib] * 120, "optimizer": [29 * mib] * 120,
                "activations": [int(58 * mib * w) for w in wave], "logits": [16 * mib if 0.8 < w else 0 for w in wave],
                "scratch": [int(3 * mib * draw.random()) for _ in wave]}
        over.append({"rank": rank, "t_s": times, "bytes": held})
    return {"buckets": list(peak), "capacity": 160 * mib, "forecast_peak": peak,
            "measured_peak": {k: int(v * (0.96 + 0.06 * draw.random())) for k, v in peak.items()}, "arena": 131 * mib,
            "over_time": over, "why_not": None}


def curves(draw, points, every=1):
    steps = [1 + every * i for i in range(points)]
    loss = [round(2.1 + 4.8 * math.exp(-s / (points * every / 6)) + 0.09 * draw.gauss(0, 1), 4) for s in steps]
    step_s = [0.30 + 0.02 * draw.random() + (0.2 if i % 97 == 96 else 0) for i in range(points)]
    time = {"forward": [0.31 * s for s in step_s], "backward": [0.55 * s for s in step_s], "update": [0.07 * s for s in step_s],
            "norm": [0.02 * s for s in step_s], "other": [0.05 * s for s in step_s]}
    tokens = 8192
    return {"step": steps, "loss": loss, "eval": [[s, round(2.16 + 4.7 * math.exp(-s / (points * every / 6)), 4)] for s in steps[99::100]],
            "tokens_per_s": [tokens / s for s in step_s], "mfu": [0.125 / s for s in step_s], "hfu": [0.15 / s for s in step_s],
            "grad_norm": [0.4 + 2 * math.exp(-i / 40) + 0.05 * draw.random() for i in range(points)],
            "lr": [1e-3 * min(1, (i + 1) / 50) * (0.55 + 0.45 * math.cos(math.pi * i / points)) for i in range(points)],
            "step_s": step_s, "data_s": [0.004 + 0.004 * draw.random() for _ in steps], "comm_s": [0.02 + 0.02 * draw.random() for _ in steps],
            "time": time, "tokens": [tokens * s for s in steps], "thinned": f"every {every}th of {points * every} steps" if every > 1 else None}


def roofline(draw):
    peak, bandwidth = 120e9, 21e9
    ops = []
    for name, layer, intensity, reach, share in [
            ("matmul", "blocks.mlp", 42, 0.81, 0.41), ("matmul", "blocks.attn", 24, 0.74, 0.18), ("matmul", "head", 60, 0.86, 0.14),
            ("attention", "blocks.attn", 13, 0.55, 0.09), ("norm", "blocks.mlp", 0.8, 0.62, 0.05), ("swiglu", "blocks.mlp", 0.4, 0.7, 0.04),
            ("cross_entropy", "head", 1.9, 0.5, 0.03), ("adamw", "", 0.35, 0.66, 0.03), ("embedding", "embed", 0.05, 0.4, 0.02), ("rope", "blocks.attn", 0.5, 0.3, 0.01)]:
        rate = reach * min(peak, bandwidth * intensity)
        seconds = 0.3 * share
        ops.append({"name": name, "layer": layer, "flops": rate * seconds, "bytes": rate * seconds / intensity, "seconds": seconds, "intensity": intensity,
                    "flops_per_s": rate, "share": share, "bound": "compute" if intensity * bandwidth > peak else "memory"})
    return {"peak_flops": peak, "bandwidth": bandwidth, "network": 3e9, "device": "AMD EPYC, 2 cores", "ops": ops,
            "traffic": {"measured_or_counted_bytes": 1610612736, "least_bytes": 1073741824, "ratio": 1.5, "what": "counted from the operands of every op"}, "why_not": None}


def run(ranks=16, bins=240, points=1000):
    draw = random.Random(7)
    advice = [
        {"id": "input_stall", "title": "The run waits for data", "gain_share": 0.12, "gain_s": 0.041, "number": "12 % of each step",
         "evidence": ["data_s is 41 ms of 340 ms (median of steps 3 to 678)", f"the shard is at {HOSTILE}"], "key": "data.prefetch", "from": "1", "to": "4",
         "command": "trireme train run.toml --set data.prefetch=4", "sure": "measured"},
        {"id": "checkpoints_often", "title": "Checkpoints are too frequent", "gain_share": 0.03, "gain_s": 0.01, "number": "3 % of the run",
         "evidence": ["a save stalls training for 0.4 s, every 50 steps"], "key": "train.checkpoint_every", "from": "50", "to": "auto", "command": None, "sure": "measured"},
        {"id": "microbatch", "title": "Microbatch too small", "gain_share": 0.02, "gain_s": 0.006, "number": "2 % of each step",
         "evidence": ["matmuls reach 71 % of the roofline at micro = 2, 79 % at 4"], "key": "batch.micro", "from": "2", "to": "4", "command": None, "sure": "estimated"}]
    titles = ["Serialised communication", "Microbatch too small", "The run waits for data", "Checkpoints are too frequent", "Needless recompute",
              "Straggler", "Wrong placement", "Clock throttling", "Host launch overhead", "Slow storage"]
    return {
        "version": 1, "kind": "run", "folder": f"runs/demo {HOSTILE}", "name": f"demo {HOSTILE} & \"quotes\"", "state": "finished",
        "headline": [{"label": "model", "value": "qwen3, 4 layers", "note": "1.82 M parameters, bf16"}, {"label": "ranks", "value": "16 on 1 host", "note": "dp 4, tp 2, pp 2"},
                     {"label": "speed", "value": "26.4 k tokens/s", "note": "median of 998 steps"}, {"label": "step", "value": "310 ms", "note": "forecast 296 ms"},
                     {"label": "MFU", "value": "40.1 %", "note": "of 120 GFLOP/s"}, {"label": "loss", "value": "2.104", "note": "held out 2.162"},
                     {"label": "wall time", "value": "5 min 21 s", "note": "goodput 93 %"}, {"label": "peak memory", "value": "131 MiB", "note": "per rank"}],
        "advice": advice,
        "checked": [{"id": f"d{i}", "title": t, "found": i in (1, 2, 3), "number": f"{[0.1, 2, 12, 3, 0, 0.4, 0, 0, 0.6, 0.2][i]} % of each step"} for i, t in enumerate(titles)],
        "tolls": [
            {"toll": "state shelf", "unit": "bytes", "forecast": 52428800, "measured": 53477376, "terms": [{"name": "gradients kept in f32", "value": 1048576}], "note": "per rank"},
            {"toll": "scratchpad", "unit": "bytes", "forecast": 83886080, "measured": 80740352, "terms": [{"name": "logits in bf16", "value": -3145728}], "note": ""},
            {"toll": "cable", "unit": "s", "forecast": 0.021, "measured": 0.038, "terms": [{"name": "waits for the last rank", "value": 0.013}, {"name": "links slower than forecast", "value": 0.004}], "note": "exposed"},
            {"toll": "bubble", "unit": "s", "forecast": 0.030, "measured": 0.033, "terms": [{"name": "stages of unequal length", "value": 0.003}, {"name": "messages", "value": 0}], "note": ""},
            {"toll": "last inch", "unit": "bytes", "forecast": 1503238553, "measured": None, "terms": [], "note": "no counter of this device"}],
        "step_time": {"forecast": 0.296, "bound": 0.21, "low": 0.27, "high": 0.33, "measured": 0.310,
                      "terms": [{"name": "products slower than forecast", "value": 0.012}, {"name": "waits for the last rank, in collectives of the backward pass", "value": 0.013},
                                {"name": "data", "value": 0.003}, {"name": "update faster than forecast", "value": -0.014}]},
        "comb": comb(draw, ranks, bins), "memory": memory(draw, ranks), "curves": curves(draw, points), "roofline": roofline(draw),
        "checkpoints": {"saves": [{"step": 200 * (i + 1), "stall_s": 0.11 + 0.02 * draw.random(), "write_s": 0.6 + 0.2 * draw.random()} for i in range(5)],
                        "stall_share": 0.002, "cadence": "every 200 steps", "best_cadence": "every 340 steps"},
        "events": [{"time": "2026-03-01 10:00:00", "step": 0, "kind": "start", "text": "first launch"}, {"time": "2026-03-01 10:02:10", "step": 410, "kind": "failure", "text": f"rank 3 lost {HOSTILE}"},
                   {"time": "2026-03-01 10:02:31", "step": 400, "kind": "resume", "text": "from checkpoint 400"}, {"time": "2026-03-01 10:05:21", "step": 1000, "kind": "end", "text": "finished"}],
        "goodput": {"wall_s": 321, "useful_s": 298.5, "share": 298.5 / 321, "lost": [{"cause": "steps done twice after a restart", "s": 3.1, "share": 3.1 / 321}, {"cause": "start-up", "s": 6.2, "share": 6.2 / 321},
                                                                              {"cause": "checkpoint stalls", "s": 0.6, "share": 0.6 / 321}, {"cause": "stood still between launches", "s": 12.6, "share": 12.6 / 321}]},
        "record": [{"key": "device", "value": "AMD EPYC, 2 cores", "source": "measured"}, {"key": "nodes", "value": 1, "source": "measured"}, {"key": "interconnect", "value": "memory of one host", "source": "run file"},
                   {"key": "effective batch", "value": "32 sequences", "source": "run file"}, {"key": "sequence length", "value": 256, "source": "run file"}, {"key": "precision", "value": "bf16", "source": "run file"},
                   {"key": "checkpoint cadence", "value": "every 200 steps", "source": "run file"}, {"key": "tokens per second", "value": 26425, "source": "measured"}, {"key": "failures", "value": 1, "source": "measured"}],
        "record_markdown": "| what | value |\n|---|---|\n| device | AMD EPYC, 2 cores |\n",
        "tables": [{"title": "Routing", "columns": ["block", "imbalance"], "rows": [["blocks.0", 1.08], ["blocks.1", 1.21]]}],
    }


def plain_run():
    """A short run of one rank, without trace, forecast or checkpoint."""
    report = run(1, 1, 40)
    no_trace = "No step was traced. Train with --trace-steps 10-12."
    report.update({"name": "plain", "folder": "runs/plain", "state": "stopped", "advice": [], "step_time": None, "tolls": [], "events": [], "tables": None, "goodput": None,
                   "comb": {"rows": [], "why_not": no_trace}, "roofline": {"ops": [], "why_not": no_trace}, "checkpoints": None})
    report["checked"] = [dict(c, found=False) for c in report["checked"]]
    report["memory"].update({"over_time": [], "forecast_peak": None, "capacity": None, "why_not": no_trace})
    report["record"][0]["value"] = HOSTILE
    report["curves"].update({"eval": [], "mfu": [None] * 40, "hfu": [None] * 40})
    return report


def comparison():
    a, b = run(2, 4, 300), run(2, 4, 250)
    b["curves"]["step"] = [4 * s for s in b["curves"]["step"]]
    b["headline"][2]["value"] = "31.0 k tokens/s"
    slower = dict(b["step_time"], measured=0.264, forecast=0.25)
    return {"version": 1, "kind": "comparison", "runs": [{"name": f"first {HOSTILE}", "headline": a["headline"]}, {"name": "prefetch 4", "headline": b["headline"]}],
            "steps": [a["step_time"], slower],
            "tolls": [{"toll": "state shelf", "unit": "bytes", "values": [53477376, 53477376], "change": 0}, {"toll": "cable", "unit": "s", "values": [0.038, 0.029], "change": -0.009},
                      {"toll": "bubble", "unit": "s", "values": [0.033, 0.035], "change": 0.002}],
            "curves": [a["curves"], b["curves"]],
            "scaling": [{"name": "1 rank", "devices": 1, "tokens_per_s": 3100, "speedup": 1, "ideal": 1, "efficiency": 1}, {"name": "2 ranks", "devices": 2, "tokens_per_s": 5900, "speedup": 1.9, "ideal": 2, "efficiency": 0.95},
                        {"name": "4 ranks", "devices": 4, "tokens_per_s": 10900, "speedup": 3.5, "ideal": 4, "efficiency": 0.88}, {"name": "16 ranks", "devices": 16, "tokens_per_s": 33000, "speedup": 10.6, "ideal": 16, "efficiency": 0.66}],
            "differences": [{"what": "data.prefetch", "a": "1", "b": "4", "cost_s": -0.041, "cost_share": -0.13, "note": "measured data stall"},
                            {"what": "CPU model", "a": "EPYC 7B13", "b": "EPYC 9B14", "cost_s": -0.005, "cost_share": -0.016, "note": "ratio of the measured peaks"}],
            "text": ["prefetch 4 takes 264 ms per step, 15 % less than first.", "The cable fell by 24 %, the bubble rose by 6 %."]}
