"""Two NCCL ranks on one GPU next to the same run with ranks as threads."""
import json
import os
import random
import socket
import struct

BOUND = 1e-5  # relative difference of losses: NCCL adds in another order
STEPS = 20
RUN = """model.arch = "llama"
model.vocab = 512
model.layers = 4
model.hidden = 256
model.heads = 4
model.kv_heads = 2
model.ffn = 512
data.train = "{data}"
data.valid = "{data}"
data.seq_len = 128
batch.global = 8
batch.micro = 4
layout.dp = 2
layout.zero = {zero}
precision.compute = "f32"
optimizer.warmup = 2
train.steps = {steps}
train.checkpoint_every = 0
train.eval_batches = 1
train.device = "{device}"
train.comm = "{comm}"
train.sum_order = "auto"
train.dir = "{folder}"
"""


def two_ranks(c, zero, most=40, device="cuda"):
    """Trains with dp = 2 by threads and by NCCL processes, and compares the losses of every step."""
    library = c.home / "nccl/libnccl.so.2"
    name = f"nccl-zero{zero}"
    if not library.is_file():
        return c.row(name, "left out", 0, "no libnccl that allows two ranks per GPU is packed (pack --nccl)")
    data = c.out / "problems/two_ranks.bin"
    data.parent.mkdir(exist_ok=True)
    draw = random.Random(1)
    data.write_bytes(struct.pack("<40000H", *(draw.randrange(512) for _ in range(40000))))  # raw uint16 tokens
    files = {}
    for comm in ("thread", "nccl"):
        files[comm] = c.out / f"{name}-{comm}.toml"
        files[comm].write_text(RUN.format(data=data, zero=zero, steps=STEPS, comm=comm, device=device,
                                          folder=c.out / f"problems/{name}-{comm}"))
    train = c.home / "bin/trireme"
    threads = c.step(f"{name}:threads", [train, "train", files["thread"]], most)
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    shared = {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port),
              "NCCL_MULTI_RANK_GPU_ENABLE": "1", "NCCL_SOCKET_IFNAME": "lo", "NCCL_MAX_CTAS": "8", "NCCL_DEBUG": "WARN",
              "LD_LIBRARY_PATH": f"{library.parent}:{c.env.path}", "CUDA_VISIBLE_DEVICES": os.environ.get(
                  "CUDA_VISIBLE_DEVICES", "0").split(",")[0]}
    ranks = c.pool(2, [{"name": f"{name}:rank{r}", "command": [train, "train", files["nccl"]], "most": most,
                        "more": shared | {"RANK": str(r), "LOCAL_RANK": str(r)}} for r in range(2)])
    if not threads or not all(ranks.values()):
        return c.row(name, "failed", 0, "not all ranks ended well")
    ours, want = losses(c.out / f"problems/{name}-nccl"), losses(c.out / f"problems/{name}-thread")
    off = max((abs(a / b - 1) for a, b in zip(ours, want)), default=float("inf"))
    good = len(ours) == len(want) == STEPS and off <= BOUND
    return c.row(name, "passed" if good else "failed", 0, f"{len(ours)} steps by two NCCL ranks on one GPU, losses at most "
                 f"{off:.1e} from those of threads (bound {BOUND:.0e}), last {ours[-1:]} and {want[-1:]}")


def losses(folder):
    return [json.loads(line)["loss"] for line in (folder / "metrics.jsonl").read_text().splitlines() if line.strip()]
