#!/usr/bin/env python3
"""compare.py SLIP OUT.json [--quick] - all_reduce of two ranks on one GPU, in turns with the peers, medians:

    BAR gpu_ranks name ours peer ratio target ok|missed|skipped

Ours: `slip bench all_reduce --device cuda:0` as threads, as processes under MPS, and as processes without it. Peers: NCCL,
which runs two ranks on one GPU only if each pretends to be another host (NCCL_HOSTID), and Gloo, both through PyTorch.
Times are microseconds; above 4 MiB the bars are of the bus bandwidth, which for two ranks is bytes / time, in GB/s.
Exit status 1: a bar is missed.
"""

import json
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

KIB, MIB = 1 << 10, 1 << 20
SIZES = (8, 4 * MIB, 64 * MIB, 256 * MIB)
# What must be reached: by way, by size. us up to 4 MiB, GB/s above.
TARGETS = {"processes": (60, 160, 250, 500), "mps": (10, 12, 900, 960), "threads": (8, None, None, 950)}


def calls_of(size, peer):
    if peer:
        return 20 if size <= 4 * MIB else 3
    return 300 if size <= 4 * MIB else 60


def ours(slip, way, size):
    """The time of a call in microseconds, out of place; every result is checked."""
    command = [slip, "bench", "all_reduce", "--device", "cuda:0", "-n", "2", "-b", str(size), "-e", str(size),
               "--iters", str(calls_of(size, False))]
    if way == "threads":
        command.append("--threads")
    text = subprocess.run(command, check=True, capture_output=True, text=True, timeout=120).stdout
    row = next(line.split() for line in text.splitlines() if re.match(r"\s*\d+\s+\d+\s+F32", line))
    if row[8] != "0" or row[12] != "0":
        raise SystemExit(f"{way}, {size} B: wrong elements: {row}")
    return float(row[5])


def peer_main(backend, rank):
    """A rank of a peer: prints the time of a call for each size."""
    import torch
    import torch.distributed as dist
    torch.cuda.set_device(0)
    dist.init_process_group(backend, rank=rank, world_size=2)
    times = []
    for size in SIZES:
        tensor = torch.ones(size // 4, device="cuda")
        for _ in range(2):
            dist.all_reduce(tensor)
        torch.cuda.synchronize()
        calls = calls_of(size, True)
        begin = time.monotonic()
        for _ in range(calls):
            dist.all_reduce(tensor)
        torch.cuda.synchronize()
        times.append((time.monotonic() - begin) / calls * 1e6)
    if rank == 0:
        print(json.dumps(times), flush=True)
    dist.destroy_process_group()


def peer(backend):
    """Times by size, or None if the peer cannot run here."""
    ranks = []
    for rank in range(2):
        env = dict(os.environ, MASTER_ADDR="127.0.0.1", MASTER_PORT="29531", NCCL_HOSTID=f"bench-{rank}",
                   NCCL_SOCKET_IFNAME="lo", GLOO_SOCKET_IFNAME="lo")
        ranks.append(subprocess.Popen([sys.executable, __file__, "--peer", backend, str(rank)], env=env, text=True,
                                      stdout=subprocess.PIPE, stderr=subprocess.DEVNULL))
    try:
        text = ranks[0].communicate(timeout=120)[0]
        return json.loads(text.strip().splitlines()[-1])
    except (subprocess.TimeoutExpired, ValueError, IndexError):
        return None
    finally:
        for one in ranks:
            one.kill()
            one.wait()


class Mps:
    """The MPS daemon, with folders of its own, while it is used."""

    def __enter__(self):
        self.folder = tempfile.mkdtemp()
        os.environ["CUDA_MPS_PIPE_DIRECTORY"] = os.path.join(self.folder, "pipe")
        os.environ["CUDA_MPS_LOG_DIRECTORY"] = os.path.join(self.folder, "log")
        os.makedirs(os.environ["CUDA_MPS_PIPE_DIRECTORY"])
        subprocess.run(["nvidia-cuda-mps-control", "-d"], check=True)
        return self

    def __exit__(self, *_):
        subprocess.run(["nvidia-cuda-mps-control"], input="quit\n", text=True, check=False)
        for name in ("CUDA_MPS_PIPE_DIRECTORY", "CUDA_MPS_LOG_DIRECTORY"):
            del os.environ[name]
        shutil.rmtree(self.folder, ignore_errors=True)


def label(size):
    return f"{size} B" if size < KIB else f"{size // MIB} MiB"


def main():
    if sys.argv[1] == "--peer":
        return peer_main(sys.argv[2], int(sys.argv[3]))
    slip, out = sys.argv[1], sys.argv[2]
    turns = 1 if "--quick" in sys.argv else 3
    seen = {way: [[] for _ in SIZES] for way in TARGETS}
    peers = {"nccl": [], "gloo": []}
    has_mps = shutil.which("nvidia-cuda-mps-control") is not None
    for _ in range(turns):
        for way in ("threads", "processes"):
            for i, size in enumerate(SIZES):
                seen[way][i].append(ours(slip, way, size))
        if has_mps:
            with Mps():
                for i, size in enumerate(SIZES):
                    seen["mps"][i].append(ours(slip, "mps", size))
        for backend, times in peers.items():
            if len(times) < 2:   # they take long, and differ little
                times.append(peer(backend))
    best = [min((statistics.median(t[i] for t in runs) for runs in peers.values() if all(runs)), default=None)
            for i in range(len(SIZES))]
    rows, missed = [], 0
    for way, targets in TARGETS.items():
        for i, size in enumerate(SIZES):
            if not seen[way][i] or targets[i] is None:
                continue
            us = statistics.median(seen[way][i])
            rate = size > 4 * MIB
            value, other = (size / us / 1e3, best[i] and size / best[i] / 1e3) if rate else (us, best[i])
            ok = value >= targets[i] if rate else value <= targets[i]
            missed += not ok
            ratio = f"{best[i] / us:.0f}x" if best[i] else "-"
            print(f"BAR gpu_ranks {way}_{label(size).replace(' ', '')} {value:.1f} {f'{other:.1f}' if other else '-'} {ratio} "
                  f"{'>=' if rate else '<='}{targets[i]} {'ok' if ok else 'missed'}", flush=True)
            rows.append({"way": way, "bytes": size, "us": us, "best_peer_us": best[i], "target": targets[i], "ok": ok})
    with open(out, "w", encoding="utf-8") as file:
        json.dump({"rows": rows, "peers_us": peers}, file, indent=1)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
