#!/usr/bin/env python3
"""Times torch.mm in bf16 on a GPU, on the matmul lines of the op harness: the peer of trireme's matrix products.

    python3 tools/peer_matmul.py tests/ops/gpu/matmul.txt tests/ops/gpu/matmul_gpt2.txt

Each 16-bit `matmul` line of the files (m, n, k, trans_a, trans_b) is measured: median of 5 times 20 calls between two
events, after 5 calls more. The host waits only at the end of 20 calls, as `trireme_ops perf` does. Operands are stored as
the line says (trans_b=1: b is [n, k]) and filled with standard normals; torch.mm writes bf16. A line's bias, addend and
f32 output are left out, so torch.mm does less work there. Prints TFLOP/s (2 m n k) and the line.
The environment is one that has PyTorch for CUDA.
"""

import argparse
import statistics
import sys

TIMES, TOGETHER, WARM = 5, 20, 5


def problems(paths):
    """(keys as written, less `for`; m, n, k, trans_a, trans_b) of the 16-bit matmul lines of the files."""
    for path in paths:
        for line in open(path, encoding="ascii"):
            words = line.split("#")[0].split()
            keys = dict(word.split("=", 1) for word in words[1:]) if words[:1] == ["matmul"] else {}
            if keys.get("dtype") in ("bf16", "f16"):
                yield (" ".join(w for w in words[1:] if not w.startswith("for=")),
                       *(int(keys[k]) for k in ("m", "n", "k")), *(keys.get(t, "0") != "0" for t in ("trans_a", "trans_b")))


def flops(m, n, k):
    return 2 * m * n * k


def told(text):
    """[(line, TFLOP/s)] of what this script printed."""
    found = []
    for line in text.splitlines():
        rate, _, keys = line.strip().partition(" ")
        if keys.strip() and all("=" in w for w in keys.split()):
            found.append((keys.strip(), float(rate)))
    return found


def seconds(torch, m, n, k, trans_a, trans_b):
    """Median seconds per product."""
    def operand(rows, cols, turned):
        stored = torch.randn(*((cols, rows) if turned else (rows, cols)), device="cuda", dtype=torch.bfloat16)
        return stored.t() if turned else stored

    a = operand(m, k, trans_a)
    b = operand(k, n, trans_b)
    out = torch.empty(m, n, device="cuda", dtype=torch.bfloat16)
    for _ in range(WARM):
        torch.mm(a, b, out=out)
    times = []
    for _ in range(TIMES):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        for _ in range(TOGETHER):
            torch.mm(a, b, out=out)
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end) * 1e-3 / TOGETHER)
    return statistics.median(times)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("problems", nargs="+", help="files of op problems; their matmul lines are measured")
    args = parser.parse_args()
    lines = list(problems(args.problems))
    if not lines:
        sys.exit(f"peer_matmul: {', '.join(args.problems)} has no 16-bit line of op matmul")
    try:
        import torch
    except ImportError:
        sys.exit(f"peer_matmul: {sys.executable} has no PyTorch; give a Python that has it for CUDA")
    if not torch.cuda.is_available():
        sys.exit("peer_matmul: PyTorch sees no GPU")
    torch.manual_seed(1)
    print(f"{torch.cuda.get_device_name()}, PyTorch {torch.__version__}")
    print("TFLOP/s of torch.mm, bf16")
    for line, m, n, k, trans_a, trans_b in lines:
        print(f"{flops(m, n, k) / seconds(torch, m, n, k, trans_a, trans_b) * 1e-12:8.1f}  {line}", flush=True)


if __name__ == "__main__":
    main()
