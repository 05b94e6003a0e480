#!/usr/bin/env python3
"""Times a training step in PyTorch: the peer beside trireme's own step in bench/ and, on a GPU, in tools/gpu_check.

The models are written plainly with PyTorch's fused pieces (scaled_dot_product_attention, layer_norm,
rms_norm, cross_entropy, fused AdamW), as nanoGPT and llm.c do, not through transformers, whose wrappers cost
time that PyTorch does not need. A step is forward, backward, clipping at norm 1 and AdamW, on one batch.

    ~/goldens-venv/bin/python tools/peer_step.py --model gpt2-124m --precision f32 bf16 --threads 2
    ~/goldens-venv/bin/python tools/peer_step.py --model llama-6x384 --mode eager compile --threads 1 2

(the environment of tools/make_goldens.py). Prints one JSON object per combination, each measured in a process
of its own: median and all step seconds, tokens per second, and the model's FLOPs by trireme's convention
(3 x forward, a multiply-add counts 2, causal attention at half, embedding look-ups free).

precision: f32; autocast = f32 weights, bf16 products (torch.autocast); bf16 = weights, gradients and moments
all bf16, without f32 masters: less work, and less exact, than trireme's bf16, which keeps both in f32; fp8 = autocast
with torchao's float8 linear layers (dynamic scales, one a tensor), on a GPU that has them.

    python3 tools/peer_step.py --device cuda --model gpt2-124m --precision autocast --mode compile --batch 32 --seq 1024

On a GPU steps are timed by CUDA events, without waiting for one before the next is issued; attention is cuDNN's or
FlashAttention's, whichever is faster at the model's shape in the same process ("attention" of the output says which).
"""

import argparse
import itertools
import json
import platform
import statistics
import subprocess
import sys
import time

MODELS = {
    "gpt2-124m": {"arch": "gpt2", "vocab": 50257, "layers": 12, "hidden": 768, "heads": 12, "ffn": 3072,
                  "batch": 4, "seq": 256},
    "gpt2-6x384": {"arch": "gpt2", "vocab": 4096, "layers": 6, "hidden": 384, "heads": 6, "ffn": 1536,
                   "batch": 12, "seq": 256},
    "gpt2-1.5b": {"arch": "gpt2", "vocab": 50257, "layers": 48, "hidden": 1600, "heads": 25, "ffn": 6400,
                  "batch": 8, "seq": 1024},
    "llama-1b": {"arch": "llama", "vocab": 128256, "layers": 16, "hidden": 2048, "heads": 32, "kv": 8, "ffn": 8192,
                 "batch": 8, "seq": 2048, "tied": True, "theta": 500000.0},
    "llama-6x384": {"arch": "llama", "vocab": 4096, "layers": 6, "hidden": 384, "heads": 6, "ffn": 1024,
                    "batch": 12, "seq": 256},
}


def build(m):
    """The model of a row of MODELS: ids i64 [B, S], targets i64 [B, S] -> mean loss."""
    import torch
    import torch.nn.functional as F
    from torch import nn

    hidden, heads, llama = m["hidden"], m["heads"], m["arch"] == "llama"
    kv = m.get("kv", heads)
    dim = hidden // heads
    sizes = [heads * dim, kv * dim, kv * dim]
    bias = not llama

    def norm():
        return nn.RMSNorm(hidden, eps=1e-5) if llama else nn.LayerNorm(hidden)

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm1, self.norm2 = norm(), norm()
            self.qkv = nn.Linear(hidden, sum(sizes), bias=bias)
            self.o = nn.Linear(hidden, hidden, bias=bias)
            self.up = nn.Linear(hidden, m["ffn"] * (2 if llama else 1), bias=bias)  # gate | up for llama
            self.down = nn.Linear(m["ffn"], hidden, bias=bias)

        def forward(self, x, cos, sin):
            q, k, v = (t.unflatten(-1, (-1, dim)).transpose(1, 2)
                       for t in self.qkv(self.norm1(x)).split(sizes, dim=-1))
            if llama:
                q, k = rotate(q, cos, sin), rotate(k, cos, sin)
            shared = {"enable_gqa": True} if kv != heads else {}
            a = F.scaled_dot_product_attention(q, k, v, is_causal=True, **shared)
            x = x + self.o(a.transpose(1, 2).flatten(2))
            u = self.up(self.norm2(x))
            if llama:
                gate, up = u.chunk(2, dim=-1)
                u = F.silu(gate) * up
            else:
                u = F.gelu(u, approximate="tanh")
            return x + self.down(u)

    def rotate(x, cos, sin):
        a, b = x.chunk(2, dim=-1)
        return torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1).to(x.dtype)

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.tokens = nn.Embedding(m["vocab"], hidden)
            self.positions = None if llama else nn.Embedding(m["seq"], hidden)
            self.blocks = nn.ModuleList(Block() for _ in range(m["layers"]))
            self.norm = norm()
            self.head = nn.Linear(hidden, m["vocab"], bias=False)
            for p in self.parameters():
                if p.dim() >= 2:
                    nn.init.normal_(p, std=0.02)
            if not llama or m.get("tied"):
                self.head.weight = self.tokens.weight
            angle = torch.arange(m["seq"])[:, None] * m.get("theta", 10000.0) ** (-torch.arange(0, dim, 2) / dim)
            self.register_buffer("cos", angle.cos(), persistent=False)
            self.register_buffer("sin", angle.sin(), persistent=False)

        def forward(self, ids, targets):
            x = self.tokens(ids)
            if not llama:
                x = x + self.positions.weight
            for block in self.blocks:
                x = block(x, self.cos, self.sin)
            logits = self.head(self.norm(x))
            return F.cross_entropy(logits.flatten(0, 1).float(), targets.flatten())

    return Model()


def forward_flops(m):
    """Of one batch: products of all matrices, logits, and causal attention at half."""
    tokens = m["batch"] * m["seq"]
    up = 2 if m["arch"] == "llama" else 1
    kv = m.get("kv", m["heads"]) / m["heads"]
    layer = (2 + 2 * kv) * m["hidden"] ** 2 + (up + 1) * m["hidden"] * m["ffn"]
    weights = m["layers"] * layer + m["vocab"] * m["hidden"]
    attention = m["layers"] * 2 * 2 * m["seq"] * m["hidden"] / 2  # scores and values, per token
    return tokens * (2 * weights + attention)


def choose_attention(m):
    """Leaves PyTorch the faster of cuDNN's and FlashAttention's fused attention, forward and backward; its name."""
    import torch

    heads, kv, dim = m["heads"], m.get("kv", m["heads"]), m["hidden"] // m["heads"]
    q, k, v = (torch.randn(m["batch"], m["seq"], n, dim, device="cuda", dtype=torch.bfloat16).transpose(1, 2)
               .requires_grad_() for n in (heads, kv, kv))

    def use(name):
        torch.backends.cuda.enable_cudnn_sdp(name == "cudnn")
        torch.backends.cuda.enable_flash_sdp(name == "flash")
        torch.backends.cuda.enable_mem_efficient_sdp(False)
        torch.backends.cuda.enable_math_sdp(False)

    seconds = {}
    for name in ("cudnn", "flash"):
        use(name)
        times = []
        try:
            for i in range(8):
                begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
                begin.record()
                shared = {"enable_gqa": True} if kv != heads else {}
                o = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True, **shared)
                torch.autograd.grad(o, (q, k, v), o)
                end.record()
                end.synchronize()
                times.append(begin.elapsed_time(end) * 1e-3)
            seconds[name] = statistics.median(times[3:])
        except RuntimeError as e:
            print(f"# {name}: {str(e).splitlines()[0]}", file=sys.stderr)
    if not seconds:
        sys.exit("peer_step: neither cuDNN's nor FlashAttention's attention takes this model's heads")
    best = min(seconds, key=seconds.get)
    use(best)
    return best


def with_fp8(model):
    """Its linear layers but the head in 8-bit floats, by torchao."""
    try:
        from torchao.float8 import convert_to_float8_training
    except ImportError:
        sys.exit(f"peer_step: {sys.executable} has no torchao for precision fp8; give another precision")
    convert_to_float8_training(model, module_filter_fn=lambda module, name: name != "head")


def measure(args):
    try:
        import torch
    except ImportError:
        sys.exit(f"peer_step: {sys.executable} has no PyTorch; give a Python that has it")

    m = dict(MODELS[args.model[0]])
    for key in ("batch", "seq", "vocab"):
        m[key] = getattr(args, key) or m[key]
    threads, precision, mode = args.threads[0], args.precision[0], args.mode[0]
    cuda = args.device == "cuda"
    if cuda and not torch.cuda.is_available():
        sys.exit("peer_step: --device cuda: PyTorch sees no GPU; give --device cpu")
    if precision == "fp8" and not cuda:
        sys.exit("peer_step: --precision fp8: torchao's float8 layers want a GPU; give another, or --device cuda")
    torch.set_num_threads(threads)
    torch.manual_seed(1)
    if cuda:
        torch.set_float32_matmul_precision("high" if precision != "f32" else "highest")
    attention = choose_attention(m) if cuda and precision != "f32" else "PyTorch's choice"
    with torch.device(args.device):
        model = build(m)
    if precision == "bf16":
        model = model.bfloat16()
    if precision == "fp8":
        with_fp8(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, betas=(0.9, 0.95), weight_decay=0.1,
                                  fused=True)
    ids = torch.randint(m["vocab"], (m["batch"], m["seq"] + 1), device=args.device)
    inputs, targets = ids[:, :-1].contiguous(), ids[:, 1:].contiguous()
    loss_of = torch.compile(model) if mode == "compile" else model

    def step():
        with torch.autocast(args.device, torch.bfloat16, enabled=precision in ("autocast", "fp8")):
            loss = loss_of(inputs, targets)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss.detach()

    seconds, losses, events = [], [], []
    for i in range(args.warmup + args.steps):
        start = time.perf_counter()
        if cuda and i >= args.warmup:
            events.append(torch.cuda.Event(enable_timing=True))
            events[-1].record()
            losses.append(step())
            continue
        losses.append(step().item())
        seconds.append(time.perf_counter() - start)
    if cuda:
        events.append(torch.cuda.Event(enable_timing=True))
        events[-1].record()
        events[-1].synchronize()
        seconds += [a.elapsed_time(b) * 1e-3 for a, b in zip(events, events[1:])]
        losses = [float(loss) for loss in losses]
    timed = seconds[args.warmup:]
    median = statistics.median(timed)
    flops = 3 * forward_flops(m)
    on_gpu = {"device": torch.cuda.get_device_name(), "attention": attention,
              "peak_bytes": torch.cuda.max_memory_allocated()} if cuda else {}
    print(json.dumps({
        "model": args.model[0], "precision": precision, "mode": mode, "threads": threads,
        "batch": m["batch"], "seq": m["seq"], "parameters": sum(p.numel() for p in model.parameters()),
        "step_s": round(median, 4), "step_s_min": round(min(timed), 4),
        "tokens_per_s": round(m["batch"] * m["seq"] / median, 1),
        "gflops_per_s": round(flops / median / 1e9, 1), "all_step_s": [round(s, 4) for s in timed],
        "warmup_s": round(sum(seconds[:args.warmup]), 1), "first_loss": round(losses[0], 4),
        "last_loss": round(losses[-1], 4), "torch": torch.__version__, "machine": platform.machine(), **on_gpu}),
        flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", nargs="+", choices=MODELS, default=["llama-6x384"])
    parser.add_argument("--precision", nargs="+", choices=["f32", "autocast", "bf16", "fp8"],
                        default=["f32", "bf16"])
    parser.add_argument("--mode", nargs="+", choices=["eager", "compile"], default=["eager"])
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--threads", nargs="+", type=int, default=[2])
    parser.add_argument("--steps", type=int, default=10, help="timed steps (default 10)")
    parser.add_argument("--warmup", type=int, default=3, help="steps before them (default 3)")
    parser.add_argument("--batch", type=int, help="sequences, in place of the model's own")
    parser.add_argument("--seq", type=int, help="tokens a sequence, in place of the model's own")
    parser.add_argument("--vocab", type=int, help="in place of the model's own (50304 is a rounder GPT-2)")
    args = parser.parse_args()
    combinations = list(itertools.product(args.model, args.precision, args.mode, args.threads))
    if len(combinations) == 1:
        measure(args)
        return
    same = [f"--{k}={v}" for k in ("device", "steps", "warmup", "batch", "seq", "vocab") if (v := getattr(args, k))]
    failed = False
    for model, precision, mode, threads in combinations:
        one = [f"--model={model}", f"--precision={precision}", f"--mode={mode}", f"--threads={threads}"]
        failed |= subprocess.run([sys.executable, __file__, *one, *same]).returncode != 0
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
