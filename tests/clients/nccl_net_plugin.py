"""NVIDIA's NCCL over Slipstream's network plug-in: two ranks of PyTorch on one GPU, which NCCL takes for ranks of two hosts.

usage: python3 tests/clients/nccl_net_plugin.py PLUGIN [RANKS]

PLUGIN is the path of libnccl-net-slip.so. Needs a GPU and PyTorch with NCCL. The script starts the ranks itself. Each has
an NCCL_HOSTID of its own, so that NCCL sends over the network. It checks the results of collectives and messages, and
that NCCL's log says that this plug-in carried them.
"""

import os
import re
import subprocess
import sys
import tempfile
import time

NAME = "Slipstream"   # what the plug-in calls itself
SIZES = (1, 1000, 1 << 20, (16 << 20) + 3)   # elements


def require(condition, text):
    if not condition:
        raise AssertionError(text)


def check_collectives(dist, torch, rank, ranks, size):
    total = ranks * (ranks + 1) / 2
    tensor = torch.full((size,), float(rank + 1), device="cuda")
    dist.all_reduce(tensor)
    require(bool((tensor == total).all()), f"all_reduce of {size}: {tensor[:4].tolist()}, expected {total}")

    tensor = torch.arange(size, device="cuda", dtype=torch.float32) * (rank + 1)
    parts = [torch.empty_like(tensor) for _ in range(ranks)]
    dist.all_gather(parts, tensor)
    for other, part in enumerate(parts):
        expected = torch.arange(size, device="cuda", dtype=torch.float32) * (other + 1)
        require(torch.equal(part, expected), f"all_gather of {size}: part {other} differs")

    tensor = torch.full((size,), float(rank), device="cuda")
    dist.broadcast(tensor, src=ranks - 1)
    require(bool((tensor == ranks - 1).all()), f"broadcast of {size} differs")


def check_messages(dist, torch, rank, ranks, size):
    right, left = (rank + 1) % ranks, (rank - 1) % ranks
    sent = torch.arange(size, device="cuda", dtype=torch.int64) + rank * 1000
    got = torch.empty_like(sent)
    for request in dist.batch_isend_irecv([dist.P2POp(dist.isend, sent, right), dist.P2POp(dist.irecv, got, left)]):
        request.wait()
    require(torch.equal(got, torch.arange(size, device="cuda", dtype=torch.int64) + left * 1000),
            f"a message of {size} from rank {left} differs")


def rank_main(rank, ranks):
    import torch
    import torch.distributed as dist
    torch.cuda.set_device(0)
    dist.init_process_group("nccl", rank=rank, world_size=ranks)
    for size in SIZES:
        check_collectives(dist, torch, rank, ranks, size)
        check_messages(dist, torch, rank, ranks, size)
    tensor = torch.ones(16 << 20, device="cuda")   # 64 MiB
    begin = 0.0
    for turn in range(6):
        if turn == 1:
            torch.cuda.synchronize()
            begin = time.monotonic()
        dist.all_reduce(tensor)
    torch.cuda.synchronize()
    if rank == 0:
        print(f"all_reduce of 64 MiB: {(time.monotonic() - begin) / 5 * 1e3:.1f} ms", flush=True)
        print("torch", torch.__version__, "NCCL", ".".join(map(str, torch.cuda.nccl.version())), flush=True)
    dist.destroy_process_group()
    print(f"rank {rank}: ok", flush=True)


def main():
    if len(sys.argv) > 1 and sys.argv[1] == "--rank":
        rank_main(int(sys.argv[2]), int(sys.argv[3]))
        return 0
    if len(sys.argv) < 2:
        print(__doc__, file=sys.stderr)
        return 2
    plugin, ranks = os.path.abspath(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 2
    logs = tempfile.mkdtemp(prefix="nccl-net-")
    children = []
    for rank in range(ranks):
        env = dict(os.environ, MASTER_ADDR="127.0.0.1", MASTER_PORT="29521", NCCL_HOSTID=f"host{rank}",
                   NCCL_NET_PLUGIN=plugin, NCCL_NET=NAME, NCCL_DEBUG="INFO", NCCL_DEBUG_SUBSYS="INIT,NET",
                   NCCL_DEBUG_FILE=f"{logs}/rank{rank}.log", NCCL_P2P_DISABLE="1", NCCL_SHM_DISABLE="1")
        env.setdefault("NCCL_SOCKET_IFNAME", "lo")
        children.append(subprocess.Popen([sys.executable, __file__, "--rank", str(rank), str(ranks)], env=env))
    status = [child.wait(timeout=300) for child in children]
    faults = [f"rank {rank} ended with {code}" for rank, code in enumerate(status) if code != 0]
    for rank in range(ranks):
        with open(f"{logs}/rank{rank}.log", encoding="utf-8", errors="replace") as file:
            text = file.read()
        shown = [line for line in text.splitlines() if NAME in line]
        print(f"NCCL's log of rank {rank}:", *shown[:6], sep="\n  ")
        if not re.search(rf"[Uu]sing network {NAME}", text):
            faults.append(f"rank {rank}: NCCL's log does not say 'Using network {NAME}' ({logs})")
        if not re.search(rf"via NET/{NAME}/", text):
            faults.append(f"rank {rank}: no channel went via NET/{NAME} ({logs})")
    print("NCCL over our plug-in:", "ok" if not faults else "FAILED: " + "; ".join(faults))
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
