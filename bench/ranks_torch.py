"""Steps of PyTorch's DDP or FSDP over gloo, one process a rank, one thread each; rank 0 prints a JSON line.

    MASTER_ADDR=127.0.0.1 MASTER_PORT=29500 WORLD_SIZE=2 RANK=0 python ranks_torch.py --wrap ddp   # and RANK=1

The model, its batch and what a step is are those of tools/peer_step.py; each rank has its part of the batch. ddp:
DistributedDataParallel, replicas and bucketed all_reduce. fsdp: fully_shard of each block and of the rest (FSDP2), which
is ZeRO 3. precision bf16: torch.autocast in ddp, bf16 parameters and reductions beside f32 shards in fsdp.
"""

import argparse
import json
import statistics
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tools"))
from peer_step import MODELS, build  # noqa: E402


def wrapped(model, wrap, precision):
    if wrap == "ddp":
        return torch.nn.parallel.DistributedDataParallel(model, gradient_as_bucket_view=True)
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    low = torch.bfloat16 if precision == "bf16" else None
    options = {"mesh": mesh, "mp_policy": MixedPrecisionPolicy(param_dtype=low, reduce_dtype=low)}
    for block in model.blocks:
        fully_shard(block, **options)
    return fully_shard(model, **options)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=MODELS, default="llama-6x384")
    parser.add_argument("--wrap", choices=["ddp", "fsdp"], default="ddp")
    parser.add_argument("--precision", choices=["f32", "bf16"], default="f32")
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--warmup", type=int, default=3)
    args = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    m = MODELS[args.model]
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(1)
    model = wrapped(build(m), args.wrap, args.precision)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, betas=(0.9, 0.95), weight_decay=0.1, fused=args.wrap == "ddp")
    torch.manual_seed(2 + rank)
    ids = torch.randint(m["vocab"], (m["batch"] // world, m["seq"] + 1))
    inputs, targets = ids[:, :-1].contiguous(), ids[:, 1:].contiguous()
    seconds, losses = [], []
    for _ in range(args.warmup + args.steps):
        dist.barrier()
        begin = time.perf_counter()
        with torch.autocast("cpu", torch.bfloat16, enabled=args.precision == "bf16" and args.wrap == "ddp"):
            loss = model(inputs, targets)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        losses.append(loss.item())
        seconds.append(time.perf_counter() - begin)
    if rank == 0:
        timed = seconds[args.warmup:]
        print(json.dumps({"model": args.model, "wrap": args.wrap, "precision": args.precision, "ranks": world,
                          "step_s": statistics.median(timed), "all_step_s": timed, "first_loss": losses[0],
                          "last_loss": losses[-1], "torch": torch.__version__}), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
