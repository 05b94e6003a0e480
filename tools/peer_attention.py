#!/usr/bin/env python3
"""Times fused attention in PyTorch on a GPU, by cuDNN and by FlashAttention: the peers of trireme's own kernels.

    python3 tools/peer_attention.py tests/ops/gpu/attention.txt

Each `attention` line of the file (b, s, h, kv, d, dv, causal; bf16) is measured forward and backward: median of 5 times
20 calls between two events, after 5 calls more. The host waits only at the end of 20 calls, as `trireme_ops perf` does,
so that launches cost nothing. TFLOP/s by FlashAttention's formula (2307.08691, section 4.1), for heads whose
values have another width too: 2 B S^2 H (D + DV) forward, half of it where causal, 2 B S^2 H (3 D + 2 DV) backward.
The environment is one that has PyTorch for CUDA.
"""

import argparse
import statistics
import sys

TIMES, TOGETHER, WARM = 5, 20, 5
BACKENDS = ("cudnn", "flash")


def problems(path):
    """Of the file's attention lines: dicts of b, s, h, kv, d, dv, causal."""
    for line in open(path, encoding="ascii"):
        words = line.split()
        if words[:1] == ["attention"]:
            yield problem_of(dict(word.split("=", 1) for word in words[1:]))


def problem_of(keys):
    """b, s, h, kv, d, dv, causal of a line's keys."""
    h = int(keys.get("h", 1))
    return {"b": int(keys.get("b", 1)), "s": int(keys["s"]), "h": h, "kv": int(keys.get("kv", h)),
            "d": int(keys["d"]), "dv": int(keys.get("dv", keys["d"])), "causal": keys.get("causal", "1") != "0"}


def told(text):
    """[(problem, {backend: (forward, backward) in TFLOP/s or None})] of what this script printed."""
    found = []
    for line in text.splitlines():
        words = line.split()
        if len(words) > 4 and all("=" in w for w in words[4:]):
            rates = [None if w == "-" else float(w) for w in words[:4]]
            found.append((problem_of(dict(w.split("=", 1) for w in words[4:])),
                          {b: tuple(rates[2 * i:2 * i + 2]) for i, b in enumerate(BACKENDS)}))
    return found


def flops(p):
    """(forward, backward)."""
    pairs = 2 * p["b"] * p["s"] ** 2 * p["h"] * (0.5 if p["causal"] else 1)
    return pairs * (p["d"] + p["dv"]), pairs * (3 * p["d"] + 2 * p["dv"])


def median_seconds(torch, run):
    """Median seconds per call."""
    for _ in range(WARM):
        run()
    times = []
    for _ in range(TIMES):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        for _ in range(TOGETHER):
            run()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end) * 1e-3 / TOGETHER)
    return statistics.median(times)


def measure(torch, p, backend):
    """(forward, backward) in TFLOP/s; None for what the backend does not take."""
    from torch.nn.attention import sdpa_kernel

    torch.manual_seed(1)
    shapes = ((p["h"], p["d"]), (p["kv"], p["d"]), (p["kv"], p["dv"]))
    q, k, v = (torch.randn(p["b"], p["s"], heads, width, device="cuda", dtype=torch.bfloat16).transpose(1, 2)
               .requires_grad_() for heads, width in shapes)

    def forward():
        return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=p["causal"],
                                                                enable_gqa=p["kv"] != p["h"])

    rates = [None, None]
    try:
        with sdpa_kernel(backend):
            with torch.no_grad():
                rates[0] = flops(p)[0] / median_seconds(torch, forward) * 1e-12
            o = forward()
            do = torch.randn_like(o)
            back = median_seconds(torch, lambda: torch.autograd.grad(o, (q, k, v), do, retain_graph=True))
            rates[1] = flops(p)[1] / back * 1e-12
    except RuntimeError as e:
        print(f"# {backend}: {str(e).splitlines()[0]}", file=sys.stderr)
    return rates


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("problems", help="file of op problems; its attention lines are measured")
    args = parser.parse_args()
    lines = list(problems(args.problems))
    if not lines:
        sys.exit(f"peer_attention: {args.problems} has no line of op attention")
    try:
        import torch
    except ImportError:
        sys.exit(f"peer_attention: {sys.executable} has no PyTorch; give a Python that has it for CUDA")
    if not torch.cuda.is_available():
        sys.exit("peer_attention: PyTorch sees no GPU")
    from torch.nn.attention import SDPBackend

    print(f"{torch.cuda.get_device_name()}, PyTorch {torch.__version__}, cuDNN {torch.backends.cudnn.version()}")
    print("TFLOP/s: cuDNN forward, backward; FlashAttention forward, backward")
    for p in lines:
        rates = [measure(torch, p, b) for b in (SDPBackend.CUDNN_ATTENTION, SDPBackend.FLASH_ATTENTION)]
        print("  ".join(" ".join("      -" if x is None else f"{x:7.1f}" for x in r) for r in rates),
              " ".join(f"{k}={int(v)}" for k, v in p.items()), flush=True)


if __name__ == "__main__":
    main()
