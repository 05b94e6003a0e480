"""One rank of the peer's collectives: torch.distributed over gloo, seconds as JSON lines from rank 0.

    MASTER_ADDR=... MASTER_PORT=... WORLD_SIZE=2 RANK=r python collectives_gloo.py BYTES...
"""

import json
import statistics
import sys
import time

import torch
import torch.distributed as dist


def main():
    dist.init_process_group("gloo")
    rank, ranks = dist.get_rank(), dist.get_world_size()
    for size in map(int, sys.argv[1:]):
        full = torch.zeros(size // 4)
        parts = list(full.chunk(ranks))
        mine = parts[rank].clone()
        calls = {"all_reduce": lambda: dist.all_reduce(full),
                 "all_gather": lambda: dist.all_gather(parts, mine),
                 "reduce_scatter": lambda: dist.reduce_scatter(mine, parts)}
        for op, call in calls.items():
            def batch(n):
                dist.barrier()
                begin = time.perf_counter()
                for _ in range(n):
                    call()
                return (time.perf_counter() - begin) / n
            batch(2)
            count = torch.tensor([max(1, min(2000, int(0.03 / max(batch(2), 1e-6))))])
            dist.broadcast(count, 0)
            seconds = statistics.median(batch(int(count)) for _ in range(7))
            if rank == 0:
                print(json.dumps({"op": op, "bytes": size, "seconds": seconds}), flush=True)
    dist.destroy_process_group()


main()
